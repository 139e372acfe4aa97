"""The console that commands print their tables to."""

from __future__ import annotations

from rich.console import Console

__all__ = ("make_console",)

WIDTH_WITHOUT_TERMINAL = 200


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that does not fold tables when its output is not a terminal."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH_WITHOUT_TERMINAL)
