"""A line that moves during a wait; without a terminal, nothing is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ("waiting",)


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Show ``what`` with the time it has taken so far, until the block is left."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield
