"""Watches one response, five times a second: whether its engine still works on it, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("Told", "Watch")


class Told(Protocol):
    """The part of a response's journal that the watchdog reads."""

    engine_steps: int  # steps that the engine has made; -1: it reported none yet

    @property
    def num_tokens(self) -> int: ...


class Watch:
    """The watch over one response at one engine. Times are monotonic seconds."""

    __slots__ = ("_looked_s", "_progress_s", "_silent_s", "_steps", "_tokens", "started")

    def __init__(self, now_s: float, tokens: int) -> None:
        self._looked_s = self._progress_s = now_s
        self._silent_s = 0.0
        self._steps = -1
        self._tokens = tokens
        self.started = False  # a token has arrived

    def paused(self, now_s: float) -> None:
        """Start counting again: the client does not read, so the gateway does not read from the engine."""
        self._looked_s = self._progress_s = now_s
        self._silent_s = 0.0

    def look(self, upstream: Upstream, journal: Told | None, now_s: float, silent_s: float) -> tuple[int, float]:
        """Learn from what arrived since the last look. Return its tokens and the seconds that they took."""
        if silent_s < self._silent_s:
            upstream.pace.learn(now_s, silence_s=self._silent_s)
        self._silent_s = silent_s
        looked_s, self._looked_s = self._looked_s, now_s
        if journal is None:
            return 0, 0.0
        tokens = journal.num_tokens
        new = tokens - self._tokens
        if not new:
            return 0, now_s - looked_s if self.started else 0.0
        if self.started:
            upstream.pace.learn(now_s, stall_s=looked_s - self._progress_s)
        was_started, self.started = self.started, True
        self._tokens, self._progress_s, self._steps = tokens, now_s, journal.engine_steps
        return (new, now_s - looked_s) if was_started else (0, 0.0)

    def verdict(self, upstream: Upstream, journal: Told | None, now_s: float) -> str:
        """Return the reason to give the engine up; empty: it works."""
        if self._silent_s > upstream.pace.silence_limit_s(now_s, headless=journal is None):
            return f"it sent nothing for {self._silent_s:.1f} s"
        if journal is None:
            return ""
        stalled_s = now_s - self._progress_s
        steps = self.started and journal.engine_steps > self._steps + 1
        if stalled_s > upstream.pace.stall_limit_s(now_s, steps=steps, watched=bool(upstream.beats)):
            if journal.engine_steps > self._steps and not self.started:
                self._progress_s = now_s  # it waits for its turn, or for a long prompt
                self._steps = journal.engine_steps
                return ""
            return f"it made no token for {stalled_s:.0f} s"
        return ""
