"""The error tree: what went wrong, split by who must act.

    LongboatError
    ├── UserInputError      the person who wrote the file or the command   exit 2
    │   └── NotYetError     asks for something a later version will have   exit 2
    ├── ClusterError        the person who runs the machines               exit 3
    ├── EngineError         an engine process failed                       exit 4
    └── TransferError       bytes did not arrive                           exit 5

Every error carries ``hint``: what to do next, in one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = (
    "ClusterError",
    "EngineError",
    "LongboatError",
    "NotYetError",
    "Problem",
    "TransferError",
    "UserInputError",
    "no_fleet",
    "unwritable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in what the user gave us.

    where: path of the value, as the user would write it (``models[0].split.tensor``; ``""`` is the whole input)
    what: one sentence that names the value and the limit
    hint: the nearest thing that works
    """

    where: str
    what: str
    hint: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}"


class LongboatError(Exception):
    """Base of everything Longboat raises on purpose."""

    exit_code: int = 1
    after_document = False  # whether the command had printed its document for machines before it failed

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserInputError(LongboatError):
    """The input cannot work; nothing was started. ``problems`` lists every mistake found."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems or (Problem(where="", what=message, hint=hint),)


def unwritable(path: object, error: OSError, *, hint: str = "give a folder that exists") -> UserInputError:
    """Return the error of a file that cannot be written."""
    return UserInputError(f"{path} cannot be written: {error.strerror or error}", hint=hint)


class NotYetError(UserInputError):
    """The input is understood, but this version does not do it yet."""


class ClusterError(LongboatError):
    """The cluster (Ray, a node, the network) is not in a state that allows this."""

    exit_code = 3


def no_fleet() -> ClusterError:
    """Return the error of a command for a running fleet where none is up."""
    return ClusterError("no fleet is up on this cluster", hint="longboat up FILE starts one")


class EngineError(LongboatError):
    """An engine process did not start, died, or answered nonsense.

    log_tail: the last lines of the failing rank's log, newest last.
    """

    exit_code = 4

    def __init__(self, message: str, *, hint: str = "", log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.log_tail = log_tail


class TransferError(LongboatError):
    """Bytes did not arrive: a download, a copy, a push."""

    exit_code = 5
