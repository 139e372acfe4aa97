"""The console that commands print their tables to."""

from __future__ import annotations

from rich.console import Console

__all__ = ("make_console",)

WIDTH_WITHOUT_TERMINAL = 200


def make_console(*, stderr: bool = False) -> Console:
    """A console that does not fold tables when nobody sees it live."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH_WITHOUT_TERMINAL)
