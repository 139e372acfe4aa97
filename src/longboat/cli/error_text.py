"""How a command tells of an error that it ends with."""

from __future__ import annotations

import sys

from longboat.core.errors import LongboatError, UserInputError

__all__ = ("print_error",)


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
