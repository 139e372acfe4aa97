"""Simulated time: a heap of what happens next."""

from __future__ import annotations

import math

__all__ = ("Action", "Timeline")


class Action:
    """Something that happens at a time."""

    __slots__ = ()

    def fire(self, now_s: float) -> None:
        """Let it happen."""
        raise NotImplementedError


class _Entry:
    """An action and its place in the order of time."""

    __slots__ = ("action", "number", "time_s")

    def __init__(self, time_s: float, number: int, action: Action) -> None:
        self.time_s = time_s
        self.number = number  # of entries that were added before it
        self.action = action


class Timeline:
    """What is going to happen, earliest first; equal times keep the order in which they were added.

    A binary heap of its own: compiled, it compares plain numbers, and ``heapq`` compares tuples.
    """

    __slots__ = ("_added", "_heap", "now_s")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._added = 0
        self.now_s = 0.0  # time of the action that happens now

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """Return the time of the earliest action; endless where there is none."""
        return self._heap[0].time_s if self._heap else math.inf

    def at(self, time_s: float, action: Action) -> None:
        """Add an action."""
        self._added += 1
        entry = _Entry(time_s, self._added, action)
        self._heap.append(entry)
        self._rise(entry, len(self._heap) - 1)

    def step(self) -> None:
        """Let the earliest action happen."""
        heap = self._heap
        last = heap.pop()
        first = last
        if heap:
            first = heap[0]
            self._rise(last, self._sink())
        self.now_s = first.time_s
        first.action.fire(first.time_s)

    def _rise(self, entry: _Entry, at: int) -> None:
        """Put an entry at a free place, or above it: those above that are later move down."""
        heap, time_s = self._heap, entry.time_s
        while at > 0:
            above = (at - 1) >> 1
            other = heap[above]
            if other.time_s < time_s or (other.time_s == time_s and other.number < entry.number):
                break
            heap[at] = other
            at = above
        heap[at] = entry

    def _sink(self) -> int:
        """Move the free place at the top down to the end of the heap, and return where it is."""
        heap, count, at = self._heap, len(self._heap), 0
        below = 1
        while below < count:
            one = heap[below]
            if below + 1 < count:
                other = heap[below + 1]
                if other.time_s < one.time_s or (other.time_s == one.time_s and other.number < one.number):
                    one = other
                    below += 1
            heap[at] = one
            at = below
            below = 2 * at + 1
        return at
