"""Decides how long an engine may be silent before it is treated as hung: by its own past pauses."""

from __future__ import annotations

import math

__all__ = ("PauseStats",)

_SILENCE_RATIO = 4.0
_MIN_SILENCE_S = 3.0  # an engine that keeps a journal sends something every second
_MAX_SILENCE_S = 60.0
_HEADLESS_RATIO = 4.0
_STALL_RATIO = 10.0
_MIN_STALL_S = 10.0  # the engine steps, but this stream gets no tokens
_MIN_STOP_S = 20.0  # the engine makes no step: one step of a long prompt may take long
_MIN_STOP_WATCHED_S = 60.0  # where heartbeats are heard, they detect a hang sooner and better
_MAX_STALL_S = 600.0
_HALF_LIFE_S = 60.0


class PauseStats:
    """The longest pauses of one endpoint's streams, halved each minute.

    A *silence* is a time without any byte; a *stall* is a time without a token of the stream, though bytes come. Times
    are those of one steady clock, in seconds.
    """

    __slots__ = ("_at_s", "_silence_s", "_stall_s")

    def __init__(self) -> None:
        self._at_s = 0.0
        self._silence_s = 0.0
        self._stall_s = 0.0

    def learn(self, now_s: float, *, silence_s: float = 0.0, stall_s: float = 0.0) -> None:
        """Note that a stream continued after a pause."""
        self._silence_s = max(silence_s, self._faded(self._silence_s, now_s))
        self._stall_s = max(stall_s, self._faded(self._stall_s, now_s))
        self._at_s = now_s

    def silence_limit_s(self, now_s: float, *, headless: bool = False) -> float:
        """Return the longest silence to accept.

        headless: the response has not begun, so no rhythm is known yet
        """
        limit_s = _within(_SILENCE_RATIO * self._faded(self._silence_s, now_s), _MIN_SILENCE_S, _MAX_SILENCE_S)
        return limit_s * _HEADLESS_RATIO if headless else limit_s

    def stall_limit_s(self, now_s: float, *, steps: bool, watched: bool) -> float:
        """Return the longest stall to accept.

        steps: the engine made steps since the stream's last token; watched: its heartbeats are heard
        """
        low_s = _MIN_STALL_S if steps else _MIN_STOP_WATCHED_S if watched else _MIN_STOP_S
        return _within(_STALL_RATIO * self._faded(self._stall_s, now_s), low_s, _MAX_STALL_S)

    def _faded(self, pause_s: float, now_s: float) -> float:
        return pause_s * math.pow(0.5, max(0.0, now_s - self._at_s) / _HALF_LIFE_S)


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
