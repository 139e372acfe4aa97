"""The one way to log: loggers below ``longboat``, and one line on stderr for each message of a process."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

__all__ = ("Guard", "log_to_stderr", "logger")


class _Stderr(logging.Handler):
    """Writes to whatever ``sys.stderr`` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def logger(name: str) -> logging.Logger:
    """Return the logger of one part of Longboat, such as ``gateway``."""
    return logging.getLogger(f"longboat.{name}")


class Guard:
    """Keeps a loop that must not end: ``with`` it, a round that fails is logged, and the loop goes on.

    Only the first of several failures in a row is logged. Pause outside the ``with``, so that failures do not spin.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self.is_failing = False  # whether the last round failed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False  # a cancellation
        was_failing, self.is_failing = self.is_failing, error is not None
        if error is not None and not was_failing:
            self._log.error("%s failed, and is tried again", self._what, exc_info=error)
        elif error is None and was_failing:
            self._log.warning("%s works again", self._what)
        return error is not None


def log_to_stderr(program: str) -> None:
    """Show the messages of this process on stderr, each behind the name of its program. Call it once, at the start."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter(f"{program}: %(message)s"))
    root = logging.getLogger("longboat")
    root.setLevel(logging.INFO)
    root.propagate = False
    root.handlers = [handler]
