"""Shows the steps of an installation: a live line on a terminal, one plain line a step elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from longboat.cli.shared.console import make_console

__all__ = ("Progress",)


class Progress:
    """A ``Reporter`` that writes to stderr. Use as a context manager; it ends the last step."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or make_console(stderr=True, plain_lines=True)
        self._status: Status | None = None
        self._text = ""
        self._since_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end("failed" if error else "done")

    def step(self, text: str) -> None:
        """Begin a step: the one before gets its seconds."""
        self._end("done")
        self._text, self._since_s = text, time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(Text(f"{text} …"))
            self._status.start()

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._console.print(f"note: {text}")

    def _end(self, how: str) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._text:
            self._console.print(f"{self._text}: {how}, {time.monotonic() - self._since_s:.1f} s")
            self._text = ""
