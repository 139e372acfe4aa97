"""One replica's places for running sequences: how long until one is free for a request that is sent now."""

from __future__ import annotations

from typing import Final

from longboat.routing.policies.contract import EngineReport, ReplicaLoad

__all__ = ("Places",)

_MEMORY: Final = 0.995  # weight that an ended request keeps with each new one: about 200 count


class Places:
    """The places of one replica. A request takes one when its prefill begins, and gives it back when it ends."""

    def __init__(self) -> None:
        self.others = 0  # requests of other senders there, by the engine's last report
        self._waiting: set[str] = set()  # requests that were sent when no place was free, until their first token
        self._began: dict[str, float] = {}  # when each running request had its first token
        self._held_s = 0.0  # seconds for which the requests that ended had places, with forgetting
        self._ended = 0.0  # number of those requests

    def is_full(self, replica: ReplicaLoad) -> bool:
        """Return whether a request that is sent now has to wait for a place."""
        return 0 < replica.sequences <= replica.requests + self.others

    def is_overfull(self, replica: ReplicaLoad) -> bool:
        """Return whether requests wait there for a place."""
        return 0 < replica.sequences < replica.requests + self.others

    def wait_s(self, replica: ReplicaLoad) -> float:
        """Return how long until a full replica has a place; requests that have waited there get theirs before."""
        if self._ended == 0.0:
            return 0.0
        ahead = replica.requests + self.others - replica.sequences + 1
        return ahead * self._held_s / (self._ended * replica.sequences)

    def sent(self, key: str, replica: ReplicaLoad) -> None:
        """Note whether a request that is sent now waits for a place. ``replica`` does not count it yet."""
        if self.is_full(replica):
            self._waiting.add(key)

    def began(self, key: str, now_s: float) -> bool:
        """Note a first token. Return whether the request may have waited for its place."""
        self._began[key] = now_s
        waited = key in self._waiting
        self._waiting.discard(key)
        return waited

    def ended(self, key: str, now_s: float) -> None:
        """Note that a request left."""
        self._waiting.discard(key)
        began_s = self._began.get(key)
        if began_s is not None:
            del self._began[key]
            self._held_s = self._held_s * _MEMORY + now_s - began_s
            self._ended = self._ended * _MEMORY + 1.0

    def correct(self, replica: ReplicaLoad, report: EngineReport) -> None:
        """Take what an engine says it has: what is more than our own requests are other senders'."""
        self.others = max(0, report.running + report.waiting - replica.requests)
