"""Mistakes in trace files: each names the file, the line and what a line must have."""

from __future__ import annotations

from collections.abc import Mapping

from longboat.core.errors import Problem, UserInputError

__all__ = ("MAX_TOKENS", "LineReader")

MAX_TOKENS = 100_000_000
_DAY_S = 86_400.0
_MAX_PAUSE_S, _MAX_TRACE_S = 7 * _DAY_S, 92 * _DAY_S  # a fleet reports each second: a run through years does not end
_MOST = 1e18


class LineReader:
    """The place in a trace file, and the checks that all formats share."""

    __slots__ = ("_first_s", "_last_s", "cut", "expected", "line", "name")

    def __init__(self, name: str, expected: str) -> None:
        self.name = name  # of the file
        self.expected = expected  # what a line must have
        self.line = 0  # number of the line that is read
        self.cut = ""  # what an error says of a line that may be cut off
        self._first_s: float | None = None
        self._last_s = 0.0

    def look(self, line: str) -> str:
        """Return the line, and remember whether it ends as lines do."""
        self.cut = "" if line.endswith("\n") else ", and the line ends without a new line: the file may be cut off"
        return line

    def error(self, what: str) -> UserInputError:
        """Return the error of the current line."""
        where = f"{self.name}:{self.line}" if self.line else self.name
        return UserInputError(
            f"{where}: {what}", hint=self.expected, problems=(Problem(where=where, what=what, hint=self.expected),)
        )

    def count(self, row: Mapping[str, object], field: str, *, least: int) -> int:
        """Return a field that is a whole number."""
        value = self.present(row, field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_TOKENS:
            raise self.error(f"{field} is {_shown(value)}, and must be a whole number from {least} to {MAX_TOKENS}")
        return value

    def seconds(self, row: Mapping[str, object], field: str, unit_s: float) -> float:
        """Return a field that is a time, in seconds since the trace began."""
        value = self.present(row, field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _MOST:
            raise self.error(f"{field} is {_shown(value)}, and must be a number below {_MOST:g}")
        return self.since_start(value * unit_s)

    def since_start(self, time_s: float) -> float:
        """Return the time since the first request. Requests must be in the order of their times."""
        if self._first_s is None:
            self._first_s = self._last_s = time_s
        if time_s < self._last_s:
            early_s = self._last_s - time_s
            raise self.error(f"the request is {early_s:g} s before the one above it: sort the file by time")
        if time_s - self._last_s > _MAX_PAUSE_S:
            pause_s = time_s - self._last_s
            raise self.error(f"the request is {pause_s:g} s after the one above it, and at most {_MAX_PAUSE_S:g} works")
        if time_s - self._first_s > _MAX_TRACE_S:
            days = (time_s - self._first_s) / _DAY_S
            raise self.error(
                f"the request is {days:.0f} days after the first, and at most {_MAX_TRACE_S / _DAY_S:g} work"
            )
        self._last_s = time_s
        return time_s - self._first_s

    def present(self, row: Mapping[str, object], field: str) -> object:
        """Return a field that must be there."""
        if field not in row:
            raise self.error(f"{field} is missing")
        return row[field]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
