"""The one way to log: loggers below ``longboat``, and one line on stderr for each message of a process."""

from __future__ import annotations

import logging
import sys

__all__ = ("log_to_stderr", "logger")


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


def log_to_stderr(program: str) -> None:
    """Show the messages of this process on stderr, each behind the name of its program. Call it once, at the start."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter(f"{program}: %(message)s"))
    root = logging.getLogger("longboat")
    root.setLevel(logging.INFO)
    root.propagate = False
    root.handlers = [handler]
