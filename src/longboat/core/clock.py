"""The time, as classes with state are given it."""

from __future__ import annotations

from typing import Protocol

__all__ = ("Clock",)


class Clock(Protocol):
    """Tells the time. ``longboat.clock.WALL`` is the real one; tests give one that they turn by hand."""

    def monotonic_s(self) -> float:
        """Return seconds since some moment; they never go back."""
        ...

    def unix_s(self) -> float:
        """Return seconds since 1970, which the machine's owner may set."""
        ...
