"""Processors that several engines share: steps that run at the same time slow one another down."""

from __future__ import annotations

from typing import Protocol

__all__ = ("Host", "Neighbour")


class Neighbour(Protocol):
    """An engine on a host."""

    def cut(self, now_s: float) -> None:
        """End a stretch of alike steps with the step that is under way: the next one may take longer or shorter."""


class Host:
    """The engines of one machine. A step under way keeps its speed; the next ones get that of the moment."""

    __slots__ = ("_busy", "crowding")

    def __init__(self, crowding: float) -> None:
        self.crowding = crowding  # part of its time by which each other engine that computes makes a step longer
        self._busy: list[Neighbour] = []

    @property
    def slowness(self) -> float:
        """Return how many times as long a step takes as on an idle host."""
        return 1.0 + self.crowding * max(0, len(self._busy) - 1)

    def began(self, engine: Neighbour, now_s: float) -> None:
        """Note that an engine computes."""
        for other in self._busy:
            other.cut(now_s)
        self._busy.append(engine)

    def ended(self, engine: Neighbour, now_s: float) -> None:
        """Note that an engine has nothing to compute any more."""
        self._busy.remove(engine)
        for other in self._busy:
            other.cut(now_s)
