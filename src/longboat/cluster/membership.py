"""Who is in the fleet right now: announcements in, endpoint table and verdicts out. Pure: the clock is an argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from longboat.cluster.messages import Announcement, Verdict
from longboat.core.states import Endpoint, EndpointTable, Phase, ReplicaState

__all__ = ("SILENCE_S", "Membership")

SILENCE_S = 5.0
"""A replica that announced nothing for this long takes no new requests until it is heard again."""

FORGET_S = 60.0
"""Silent, failed and ended replicas are shown for this long, then forgotten."""


@dataclass(slots=True)
class _Member:
    announcement: Announcement
    heard_at_s: float
    order: int  # grows with every replica heard for the first time: who is newer does not hang on clocks of nodes
    was_lost: bool = False

    @property
    def state(self) -> ReplicaState:
        return self.announcement.state

    def serves(self, now_s: float) -> bool:
        return self.state.phase is Phase.READY and now_s - self.heard_at_s <= SILENCE_S


class Membership:
    """The controller's memory of replicas."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._failures: dict[str, Announcement] = {}
        self._order = 0
        self._version = 0
        self._last: tuple[tuple[str, ...], tuple[Endpoint, ...]] | None = None

    def hear(self, announcement: Announcement, now_s: float) -> Verdict:
        """Take one announcement in. Who was silent and comes back after a newer one took the slot is to stop."""
        state = announcement.state
        member = self._members.get(state.replica)
        if member is None:
            self._order += 1
            member = _Member(announcement, now_s, self._order)
            self._members[state.replica] = member
        if now_s - member.heard_at_s > SILENCE_S:
            member.was_lost = True
        member.announcement, member.heard_at_s = announcement, now_s
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
                del self._members[replica]

    def table(self, models: Iterable[str], now_s: float) -> EndpointTable:
        """The endpoint table; its version grows when anything in it changed."""
        names = tuple(models)
        endpoints = tuple(
            Endpoint(
                model=member.state.model,
                replica=member.state.replica,
                generation=member.state.generation,
                url=member.state.url,
                api_key=member.announcement.api_key,
            )
            for member in sorted(self._members.values(), key=lambda m: m.order)
            if member.serves(now_s) and not self._superseded(member, now_s) and member.state.model in names
        )
        if (names, endpoints) != self._last:
            self._version += 1
            self._last = (names, endpoints)
        return EndpointTable(version=self._version, models=names, endpoints=endpoints)

    def states(self, now_s: float) -> tuple[ReplicaState, ...]:
        """All replicas known, oldest first; a ready one that went silent is shown as suspect."""
        return tuple(_seen(m, now_s) for m in sorted(self._members.values(), key=lambda m: m.order))

    def failures(self) -> dict[str, Announcement]:
        """Model → its newest failure, until a replica of it is ready again."""
        return dict(self._failures)

    def _verdict(self, member: _Member, now_s: float) -> Verdict:
        if self._superseded(member, now_s):
            return Verdict(stop=True, reason="a newer generation of this replica runs elsewhere")
        return Verdict(stop=False)

    def _superseded(self, member: _Member, now_s: float) -> bool:
        """Only a replica that was lost can be superseded: siblings swap slots while both are alive and well."""
        return member.was_lost and any(
            other.order > member.order
            and other.announcement.slot == member.announcement.slot
            and other.state.model == member.state.model
            and now_s - other.heard_at_s <= SILENCE_S
            and other.state.phase not in (Phase.FAILED, Phase.GONE)
            for other in self._members.values()
        )


def _seen(member: _Member, now_s: float) -> ReplicaState:
    silent_s = now_s - member.heard_at_s
    if silent_s > SILENCE_S and member.state.phase not in (Phase.FAILED, Phase.GONE):
        return dataclasses.replace(
            member.state, phase=Phase.SUSPECT, detail=f"silent for {silent_s:.0f} s", announced_at_s=member.heard_at_s
        )
    return dataclasses.replace(member.state, announced_at_s=member.heard_at_s)
