"""The console that commands print to. Square brackets in what they print are text, never Rich's markup."""

from __future__ import annotations

import os

from rich.console import Console

__all__ = ("make_console",)

WIDTH_WITHOUT_TERMINAL = 200


def make_console(*, stderr: bool = False, width: int = WIDTH_WITHOUT_TERMINAL, plain_lines: bool = False) -> Console:
    """Return a console that does not fold tables when its output is not a terminal.

    width: columns without a terminal and without the variable COLUMNS
    plain_lines: colour no words, and fold nothing
    """
    terminal = Console(stderr=stderr).is_terminal
    own_width = terminal or plain_lines or os.environ.get("COLUMNS", "").isdigit()
    return Console(
        stderr=stderr,
        width=None if own_width else width,
        markup=False,
        highlight=not plain_lines,
        soft_wrap=plain_lines,
    )
