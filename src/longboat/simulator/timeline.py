"""Simulated time: a heap of what happens next."""

from __future__ import annotations

import heapq
import math

__all__ = ("Action", "Timeline")


class Action:
    """Something that happens at a time."""

    __slots__ = ()

    def fire(self, now_s: float) -> None:
        """Let it happen."""
        raise NotImplementedError


class Timeline:
    """What is going to happen, earliest first; equal times keep the order in which they were added."""

    __slots__ = ("_added", "_heap", "now_s")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._added = 0
        self.now_s = 0.0  # time of the action that happens now

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """Return the time of the earliest action; endless where there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, time_s: float, action: Action) -> None:
        """Add an action."""
        self._added += 1
        heapq.heappush(self._heap, (time_s, self._added, action))

    def step(self) -> None:
        """Let the earliest action happen."""
        time_s, _, action = heapq.heappop(self._heap)
        self.now_s = time_s
        action.fire(time_s)
