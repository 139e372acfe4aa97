"""How a command tells of an error that it ends with."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from longboat.core.errors import LongboatError, UserInputError

__all__ = ("error_values", "print_error", "print_error_document", "tell_error", "unexpected")

_FULL = (errno.ENOSPC, errno.EDQUOT)


def tell_error(error: LongboatError) -> None:
    """Print the error on stderr, and on stdout too where the command was asked for JSON."""
    if "--json" in sys.argv and not error.after_document:
        with suppress(OSError):  # stdout may be full or closed, and be what the error tells of
            print_error_document(error)
    print_error(error)


def print_error(error: LongboatError) -> None:
    """Error on stderr: the message, each problem with its place, log lines, and the hint."""
    out = sys.stderr
    problems = error.problems if isinstance(error, UserInputError) else ()
    if len(problems) > 1:
        print(f"error: {error.message}", file=out)
        for problem in problems:
            print(f"  {problem}", file=out)
            if problem.hint:
                print(f"    → {problem.hint}", file=out)
        return
    print(f"error: {error.message}", file=out)
    for line in getattr(error, "log_tail", ()):
        print(f"  | {line}", file=out)
    if error.hint:
        print(f"  → {error.hint}", file=out)


def print_error_document(error: LongboatError) -> None:
    """Error on stdout, as the one document that a command with ``--json`` prints."""
    print(json.dumps({"error": error_values(error)}, indent=2), flush=True)


def unexpected(error: Exception) -> LongboatError:
    """Return the error that tells of one that no code foresaw, or of a full disk."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return _full_disk(error)
    told = " ".join(f"{type(error).__name__}: {error}".split())
    found = LongboatError(f"unexpected {told}", hint="run it again with LONGBOAT_DEBUG=1 for the traceback")
    found.after_document = getattr(error, "after_document", False)
    return found


def _full_disk(error: OSError) -> LongboatError:
    """Return the error of a disk without room. Python would try at the end to write what stdout still holds."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    what = error.filename or "the output of this command"
    hint = "free some room on the disk that it goes to, or choose another disk"
    found = LongboatError(f"{what} cannot be written: {error.strerror}", hint=hint)
    found.after_document = getattr(error, "after_document", False)
    return found


def error_values(error: LongboatError) -> dict[str, Any]:
    """Return the error as plain values."""
    return {
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
        "problems": [asdict(problem) for problem in error.problems] if isinstance(error, UserInputError) else [],
        "log_tail": list(getattr(error, "log_tail", ())),
    }
