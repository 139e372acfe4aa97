"""The fleet's present members: announcements in, endpoint table and verdicts out.

Pure: the clock is an argument. It is monotonic, so that a step of the wall clock makes no replica silent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from longboat.cluster.members.succession import SILENCE_S, Member, Succession
from longboat.cluster.protocol.messages import Announcement, Verdict
from longboat.core.states import Asleep, Endpoint, EndpointTable, Phase, ReplicaState

__all__ = ("SILENCE_S", "Membership", "RelayView")

FORGET_S = 60.0
"""Silent, failed and ended replicas are shown for this long, then forgotten."""

ORDERS_KEPT = 10_000
"""The number of forgotten replicas whose order is kept, so that one that returns later still counts as old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayView:
    """The relays of heartbeats, as a table needs them."""

    by_node: Mapping[str, str] = field(default_factory=dict)  # node → HOST:PORT
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)  # HOST:PORT → key
    unwell: Container[str] = ()  # keys of endpoints that take nothing new


NO_RELAYS = RelayView()


class Membership:
    """The controller's memory of replicas."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._succession = Succession()
        self._failures: dict[str, Announcement] = {}
        self._forgotten: dict[str, float] = {}  # replica → its order
        self._version = 0
        self._last: EndpointTable | None = None
        self.num_changes = 0  # of what the table is made of

    def __len__(self) -> int:
        return len(self._members)

    def hear(self, announcement: Announcement, now_s: float) -> Verdict:
        """Take one announcement in. Who was silent and comes back after a newer one took the slot is to stop."""
        state = announcement.state
        member = self._members.get(state.replica) or self._admit(announcement, now_s)
        if not member.is_heard(now_s):
            member.was_lost = True
        if member.is_newcomer or member.is_silent or _row(member.announcement) != _row(announcement):
            self.num_changes += 1
        self._succession.place(member, announcement)
        member.announcement, member.heard_at_s = announcement, now_s
        member.is_silent = member.is_unwatched = False
        member.times_heard += 1
        if member.is_newcomer:
            self._succession.settle(member, now_s)
        if state.phase is Phase.FAILED:
            self._failures[state.model] = announcement
        elif state.phase is Phase.READY:
            self._failures.pop(state.model, None)
        if self._succession.is_superseded(member, now_s):
            return Verdict(stop=True, reason="a newer generation of this replica runs elsewhere")
        return Verdict(stop=False)

    def leave_node(self, node_id: str) -> None:
        """Note that a node left: no relay watches its gangs any more, so none may be silent for longer than others."""
        for member in self._members.values():
            if member.state.ranks and member.state.ranks[0].node_id == node_id:
                member.is_unwatched = True

    def expire(self, now_s: float) -> None:
        """Mark the silent, forget the long gone."""
        for replica, member in list(self._members.items()):
            is_silent = not member.is_heard(now_s)
            if is_silent and not member.is_silent:
                self.num_changes += 1
            member.is_silent = is_silent
            member.was_lost = member.was_lost or is_silent
            is_over = now_s - member.heard_at_s > FORGET_S + member.silence_s - SILENCE_S
            if is_over or (is_silent and member.state.phase in (Phase.GONE, Phase.FAILED)):
                self._forget(replica)

    def table(
        self,
        models: Iterable[str],
        now_s: float,
        moving: Container[str] = (),
        asleep: Mapping[str, Asleep] = MappingProxyType({}),
        scaling: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        relays: RelayView = NO_RELAYS,
    ) -> EndpointTable:
        """Make the endpoint table; its version grows when it changes.

        moving: replicas to be emptied now; asleep: models without a replica that requests may wake
        scaling: figures of models' numbers of replicas
        """
        names = tuple(models)
        endpoints = tuple(
            _endpoint(member, moving, relays)
            for member in sorted(self._members.values(), key=lambda m: m.order)
            if member.serves(now_s) and not self._succession.is_held_back(member, now_s) and member.state.model in names
        )
        awake = {endpoint.model for endpoint in endpoints if endpoint.ready}
        sleeping = {model: how for model, how in asleep.items() if model in names and model not in awake}
        table = EndpointTable(
            version=0,
            models=names,
            endpoints=endpoints,
            asleep=sleeping,
            scaling=dict(scaling),
            relays=dict(relays.keys),
        )
        if table != self._last:
            self._version += 1
            self._last = table
        return dataclasses.replace(table, version=self._version)

    def states(self, now_s: float, clocks_s: float = 0.0) -> tuple[ReplicaState, ...]:
        """Return all replicas known, oldest first; a ready one that went silent is shown as suspect.

        clocks_s: Unix time less the time of ``now_s``
        """
        return tuple(_seen(m, now_s, clocks_s) for m in sorted(self._members.values(), key=lambda m: m.order))

    def failures(self) -> dict[str, Announcement]:
        """Return model → its newest failure, until a replica of it is ready again."""
        return dict(self._failures)

    def _admit(self, announcement: Announcement, now_s: float) -> Member:
        """Admit a replica; one that was forgotten gets its old place in the order back."""
        replica = announcement.state.replica
        known = self._forgotten.pop(replica, None)
        order = self._succession.next_order() if known is None else known
        member = Member(announcement, now_s, order, was_lost=known is not None)
        self._members[replica] = member
        return member

    def _forget(self, replica: str) -> None:
        member = self._members.pop(replica)
        self._succession.leave(member)
        self._forgotten[replica] = member.order
        if len(self._forgotten) > ORDERS_KEPT:
            del self._forgotten[next(iter(self._forgotten))]


def _row(announcement: Announcement) -> tuple[object, ...]:
    """Return what of an announcement the table, a drain and rivals for a slot depend on."""
    state, first = announcement.state, announcement.state.ranks[:1]
    return (
        *(state.model, state.generation, state.phase, state.url, state.digest, state.resume, state.revision),
        *(state.adapters, announcement.adapters_held, announcement.capacity, announcement.context_tokens),
        *(announcement.beats, announcement.api_key, announcement.slot, [rank.node_id for rank in first]),
    )


def _endpoint(member: Member, moving: Container[str], relays: RelayView) -> Endpoint:
    """Return a member's endpoint: the same object as before where nothing of it changed."""
    announcement, state = member.announcement, member.state
    made = Endpoint(
        model=state.model,
        replica=state.replica,
        generation=state.generation,
        url=state.url,
        api_key=announcement.api_key,
        ready=state.phase is Phase.READY,
        capacity=announcement.capacity,
        moving=state.replica in moving,
        resume=state.resume,
        revision=state.revision,
        beats=announcement.beats,
        relay=relays.by_node.get(state.ranks[0].node_id, "") if state.ranks and announcement.beats else "",
        adapters=state.adapters,
        adapters_held=announcement.adapters_held,
        context_tokens=announcement.context_tokens,
    )
    if made.relay and made.ready and made.key in relays.unwell:
        made = dataclasses.replace(made, ready=False, unwell=True)
    if made != member.endpoint:
        member.endpoint = made
    return member.endpoint if member.endpoint is not None else made


def _seen(member: Member, now_s: float, clocks_s: float) -> ReplicaState:
    silent_s, announced_at_s = now_s - member.heard_at_s, member.heard_at_s + clocks_s
    if silent_s > member.silence_s and member.state.phase not in (Phase.FAILED, Phase.GONE):
        return dataclasses.replace(
            member.state, phase=Phase.SUSPECT, detail=f"silent for {silent_s:.0f} s", announced_at_s=announced_at_s
        )
    return dataclasses.replace(member.state, announced_at_s=announced_at_s)
