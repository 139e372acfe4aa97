"""The fleet's present members: announcements in, endpoint table and verdicts out. Pure: the clock is an argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable
from dataclasses import dataclass

from longboat.cluster.protocol.messages import Announcement, Verdict
from longboat.core.states import Endpoint, EndpointTable, Phase, ReplicaState

__all__ = ("SILENCE_S", "Membership")

SILENCE_S = 5.0
"""A replica that announced nothing for this long takes no new requests until it is heard again."""

FORGET_S = 60.0
"""Silent, failed and ended replicas are shown for this long, then forgotten."""

ORDERS_KEPT = 10_000
"""The number of forgotten replicas whose order is kept, so that one that returns later still counts as old."""


@dataclass(slots=True)
class _Member:
    announcement: Announcement
    heard_at_s: float
    order: float  # grows with every replica heard for the first time; seldom depends on the nodes' clocks
    was_lost: bool = False
    times_heard: int = 0
    doubted_at_s: float | None = None  # first heard beside a live newer generation in its slot
    is_settled: bool = False  # its place in the order is sure; generations say nothing more

    @property
    def is_newcomer(self) -> bool:
        return not (self.was_lost or self.is_settled)

    @property
    def state(self) -> ReplicaState:
        return self.announcement.state

    def lives(self, now_s: float) -> bool:
        return self.state.phase not in (Phase.FAILED, Phase.GONE) and now_s - self.heard_at_s <= SILENCE_S

    def serves(self, now_s: float) -> bool:
        """A draining replica too: its requests run on."""
        works = self.state.phase is Phase.READY or (self.state.phase is Phase.DRAINING and bool(self.state.url))
        return works and now_s - self.heard_at_s <= SILENCE_S


class Membership:
    """The controller's memory of replicas."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._failures: dict[str, Announcement] = {}
        self._forgotten: dict[str, float] = {}  # replica → its order
        self._order = 0
        self._version = 0
        self._last: tuple[tuple[str, ...], tuple[Endpoint, ...]] | None = None

    def hear(self, announcement: Announcement, now_s: float) -> Verdict:
        """Take one announcement in. Who was silent and comes back after a newer one took the slot is to stop."""
        state = announcement.state
        member = self._members.get(state.replica) or self._admit(announcement, now_s)
        if now_s - member.heard_at_s > SILENCE_S:
            member.was_lost = True
        member.announcement, member.heard_at_s = announcement, now_s
        member.times_heard += 1
        if member.is_newcomer:
            self._settle(member, now_s)
        if state.phase is Phase.FAILED:
            self._failures[state.model] = announcement
        elif state.phase is Phase.READY:
            self._failures.pop(state.model, None)
        return self._verdict(member, now_s)

    def expire(self, now_s: float) -> None:
        """Mark the silent, forget the long gone."""
        for replica, member in list(self._members.items()):
            silent_s = now_s - member.heard_at_s
            member.was_lost = member.was_lost or silent_s > SILENCE_S
            if silent_s > FORGET_S or (silent_s > SILENCE_S and member.state.phase in (Phase.GONE, Phase.FAILED)):
                self._forget(replica)

    def table(self, models: Iterable[str], now_s: float, moving: Container[str] = ()) -> EndpointTable:
        """Make the endpoint table; its version grows when it changes. moving: replicas to be emptied now."""
        names = tuple(models)
        endpoints = tuple(
            Endpoint(
                model=member.state.model,
                replica=member.state.replica,
                generation=member.state.generation,
                url=member.state.url,
                api_key=member.announcement.api_key,
                ready=member.state.phase is Phase.READY,
                capacity=member.announcement.capacity,
                moving=member.state.replica in moving,
                resume=member.state.resume,
                revision=member.state.revision,
                beats=member.announcement.beats,
                adapters=member.state.adapters,
                adapters_held=member.announcement.adapters_held,
            )
            for member in sorted(self._members.values(), key=lambda m: m.order)
            if member.serves(now_s) and not self._is_held_back(member, now_s) and member.state.model in names
        )
        if (names, endpoints) != self._last:
            self._version += 1
            self._last = (names, endpoints)
        return EndpointTable(version=self._version, models=names, endpoints=endpoints)

    def states(self, now_s: float) -> tuple[ReplicaState, ...]:
        """Return all replicas known, oldest first; a ready one that went silent is shown as suspect."""
        return tuple(_seen(m, now_s) for m in sorted(self._members.values(), key=lambda m: m.order))

    def failures(self) -> dict[str, Announcement]:
        """Return model → its newest failure, until a replica of it is ready again."""
        return dict(self._failures)

    def _admit(self, announcement: Announcement, now_s: float) -> _Member:
        """Admit a replica; one that was forgotten gets its old place in the order back."""
        replica = announcement.state.replica
        known = self._forgotten.pop(replica, None)
        order = self._next_order() if known is None else known
        member = _Member(announcement, now_s, order, was_lost=known is not None)
        self._members[replica] = member
        return member

    def _forget(self, replica: str) -> None:
        self._forgotten[replica] = self._members.pop(replica).order
        if len(self._forgotten) > ORDERS_KEPT:
            del self._forgotten[next(iter(self._forgotten))]

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _settle(self, member: _Member, now_s: float) -> None:
        """Find out whether a newcomer is an old replica that this controller, started since, never heard.

        It is one when a newer generation in its slot is heard between two of its announcements. Once is not enough:
        siblings swap slots, and a clock that is ahead makes a replica that just died look newer than its substitute.
        """
        newer = self._newer_generations(member, now_s)
        if newer and member.doubted_at_s is None:
            member.doubted_at_s = now_s
            member.order = min(other.order for other in newer) - 0.5
        elif newer:
            member.was_lost = any(other.heard_at_s > (member.doubted_at_s or 0.0) for other in newer)
        elif member.times_heard > 1:
            member.is_settled = True
            if member.doubted_at_s is not None:
                member.order = self._next_order()

    def _newer_generations(self, member: _Member, now_s: float) -> list[_Member]:
        return [r for r in self._rivals(member, now_s) if r.state.generation > member.state.generation]

    def _rivals(self, member: _Member, now_s: float) -> list[_Member]:
        """Live replicas of the same make that say they hold the same slot."""
        return [
            other
            for other in self._members.values()
            if other is not member
            and other.announcement.slot == member.announcement.slot
            and (other.state.model, other.state.digest) == (member.state.model, member.state.digest)
            and other.lives(now_s)
        ]

    def _is_held_back(self, member: _Member, now_s: float) -> bool:
        doubtful = member.is_newcomer and bool(self._newer_generations(member, now_s))
        return doubtful or self._superseded(member, now_s)

    def _verdict(self, member: _Member, now_s: float) -> Verdict:
        if self._superseded(member, now_s):
            return Verdict(stop=True, reason="a newer generation of this replica runs elsewhere")
        return Verdict(stop=False)

    def _superseded(self, member: _Member, now_s: float) -> bool:
        """Return whether a newer replica has the slot. Only a lost one is: living siblings may swap slots."""
        return member.was_lost and any(other.order > member.order for other in self._rivals(member, now_s))


def _seen(member: _Member, now_s: float) -> ReplicaState:
    silent_s = now_s - member.heard_at_s
    if silent_s > SILENCE_S and member.state.phase not in (Phase.FAILED, Phase.GONE):
        return dataclasses.replace(
            member.state, phase=Phase.SUSPECT, detail=f"silent for {silent_s:.0f} s", announced_at_s=member.heard_at_s
        )
    return dataclasses.replace(member.state, announced_at_s=member.heard_at_s)
