"""The console that commands print to. Square brackets in what they print are text, never Rich's markup."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("make_console", "simple_table")

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


def simple_table(*columns: str) -> Table:
    """Return a table without lines. Columns that end with ``>`` are numbers, on the right and never folded."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_number = column.endswith(">")
        justify = "right" if is_number else "left"
        table.add_column(column.rstrip(">"), justify=justify, overflow="fold", no_wrap=is_number)
    return table
