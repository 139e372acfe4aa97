"""The endpoint table of the whole fleet, kept up to date with what supervisors, relays and operators say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from longboat.clock import WALL
from longboat.cluster.gang.drain_tracker import LeaveRules, Leaving
from longboat.cluster.members.awake_clock import AwakeClock
from longboat.cluster.members.drains import Drains, read_drains
from longboat.cluster.members.membership import Membership, RelayView
from longboat.cluster.members.relay_book import QUIET_EVERY_S, RelayBook, announce_every_s
from longboat.cluster.members.startup_grace import HoldOff
from longboat.cluster.protocol.messages import Announcement, NodeReport, Verdict
from longboat.cluster.protocol.planner_figures import with_predictions
from longboat.core.clock import Clock
from longboat.core.states import Asleep, EndpointTable, Phase, ReplicaState

__all__ = ("FleetTable", "Numbers")

TABLE_AGE_S = 0.25
STATES_AGE_S = 0.5
"""A table, and the states of replicas, are made again after this time, or sooner where something changed."""


class Numbers(Protocol):
    """What a table says about models' numbers of replicas."""

    @property
    def asleep(self) -> Mapping[str, Asleep]:
        """Models without a replica that requests may wake."""

    @property
    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Model → figures for metrics."""


class FleetTable:
    """The replicas that announced themselves, and the table made of them."""

    def __init__(self, on_change: Callable[[], None], clock: Clock = WALL) -> None:
        """on_change: called where gateways should get a new table at once"""
        self.members = Membership()
        self.relays = RelayBook()
        self._on_change = on_change
        self._clock = AwakeClock(clock)
        self._hold_off = HoldOff(self._clock.monotonic_s())
        self._values: Mapping[str, Any] = {}  # the controller's
        self._drains = Drains()
        self._leaving = Leaving()
        self._relay_view = RelayView()
        self._made: tuple[tuple[float, ...], EndpointTable] | None = None  # what the newest table was made for
        self._states: tuple[tuple[float, ...], tuple[ReplicaState, ...]] | None = None

    def take(self, values: Mapping[str, Any]) -> None:
        """Take over a fleet. values: the controller's"""
        self._values = values
        self._drains = read_drains(values)
        self.change()

    def change(self) -> None:
        """Have the next table made again, and sent."""
        self._made = None
        self._on_change()

    def hear(self, announcement: Announcement) -> Verdict:
        """Take in a supervisor's announcement of its gang."""
        before, again_s = self.members.num_changes, self._again_s(announcement)
        announcement = dataclasses.replace(announcement, every_s=max(announcement.every_s, again_s))
        self._hold_off.heard(self._clock.monotonic_s(), announcement.every_s)
        verdict = self.members.hear(announcement, self._clock.monotonic_s())
        if self.members.num_changes != before:
            self.change()
        return self._with_leave(dataclasses.replace(verdict, again_s=again_s), announcement.state)

    def hear_relay(self, node_id: str, report: NodeReport) -> None:
        """Take in what a node says of its relay, and what its relay found."""
        before = self.relays.num_changes
        self.relays.hear(node_id, report)
        if self.relays.num_changes != before:
            self.change()

    def is_partial(self) -> bool:
        """Return whether replicas may live that were not heard yet."""
        return self._hold_off.holds(self._clock.monotonic_s())

    def is_drained(self, node_id: str) -> bool:
        """Return whether a node's gateway takes no new requests."""
        return self._drains.is_drained(node_id)

    def states(self) -> tuple[ReplicaState, ...]:
        """Return all replicas as they are now, or were a moment ago where nothing changed since."""
        now_s = self._clock.monotonic_s()
        made_for = self.members.num_changes, now_s // STATES_AGE_S
        if self._states is None or self._states[0] != made_for:
            self._states = made_for, self.members.states(now_s, self._clock.unix_s() - now_s)
        return self._states[1]

    def states_now(self) -> tuple[ReplicaState, ...]:
        """Return all replicas as they are at this moment, without those that left long ago."""
        now_s = self._clock.monotonic_s()
        self.members.expire(now_s)
        return self.members.states(now_s, self._clock.unix_s() - now_s)

    def table(self, numbers: Numbers) -> EndpointTable:
        """Return the newest table: made a moment ago, where nothing changed since."""
        now_s = self._clock.monotonic_s()
        made_for = self.members.num_changes, self.relays.num_changes, now_s // TABLE_AGE_S
        if self._made is None or self._made[0] != made_for:
            self._made = made_for, self._make(numbers, now_s)
        return self._made[1]

    def _make(self, numbers: Numbers, now_s: float) -> EndpointTable:
        self.members.expire(now_s)
        stays = self._leaving.look(self.states(), self._leave_rules, now_s)
        moving = [replica for replica, stay in stays.items() if stay.moving]
        by_node = self.relays.by_node(len(self.members))
        self._relay_view = RelayView(by_node=by_node, keys=self.relays.keys(), unwell=self.relays.unwell())
        models = tuple(self._values.get("models", ()))
        planned = self._values.get("planned", {}).get("models", {})
        figures = with_predictions(numbers.figures, planned, self.states())
        return self.members.table(models, now_s, moving, numbers.asleep, figures, relays=self._relay_view)

    def _leave_rules(self, state: ReplicaState) -> LeaveRules:
        """Return how long responses may take to end: as the file says, or only briefly where the model was removed."""
        told = self._values.get("updates", {}).get(state.model)
        rules = LeaveRules(drain_s=told["drain_s"], limit_s=told["limit_s"]) if told else LeaveRules()
        return dataclasses.replace(rules, drain_s=0.0) if self._drains.moves_at_once(state) else rules

    def _with_leave(self, verdict: Verdict, state: ReplicaState) -> Verdict:
        if state.phase is Phase.DRAINING:
            now_s = self._clock.monotonic_s()
            if now_s - self._leaving.looked_s > TABLE_AGE_S:  # not at each announcement: many may leave at once
                self._leaving.look(self.states(), self._leave_rules, now_s)
            stay = self._leaving.stay(state, self._leave_rules(state), now_s)
            return dataclasses.replace(verdict, patience_s=stay.patience_s)
        return dataclasses.replace(verdict, leave=self._drains.leaves(state, self._others(state)))

    def _others(self, state: ReplicaState) -> list[ReplicaState]:
        """Return the other replicas of the model, where streams of this one are to move at once."""
        if not self._drains.moves_at_once(state):
            return []
        return [s for s in self.states() if s.model == state.model and s.replica != state.replica]

    def _again_s(self, announcement: Announcement) -> float:
        """Return when a supervisor is to announce again: soon, unless heartbeats watch its gang."""
        state = announcement.state
        if state.phase is not Phase.READY or not announcement.beats or not state.ranks:
            return 1.0
        is_relayed = state.ranks[0].node_id in self._relay_view.by_node
        return announce_every_s(len(self.members)) if is_relayed else QUIET_EVERY_S
