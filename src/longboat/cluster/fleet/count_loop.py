"""Keeps Serve's numbers of replicas equal to what is decided, about once a second, and at once when a request waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longboat.cluster.counts.keeper import Change, CountKeeper
from longboat.cluster.fleet.deployed import Applications, bundles_in_force, counts_in_force, labels_in_force
from longboat.cluster.fleet.placing import Placing
from longboat.cluster.fleet.serve_rest import ServeRest
from longboat.cluster.fleet.unplaced import end_unplaced
from longboat.cluster.host.cluster_token import cluster_token
from longboat.cluster.members.relay_book import order_every_s
from longboat.cluster.protocol.messages import NodeReport
from longboat.core.errors import ClusterError
from longboat.core.scaling import ReplicaSpeed, ScaledModel
from longboat.core.states import Asleep, ReplicaState
from longboat.spec.files.load import load_fleet
from longboat.spec.scaling import scaled_models
from longboat.telemetry import logger
from longboat.user import user_home

__all__ = ("CountLoop",)

log = logger("counts")

LOOK_EVERY_S = 1.0
MAX_DRIFT_S = 5.0
"""The wall clock was set where it differs by more from the time that has passed."""
READ_EVERY_S = 15.0
"""Serve is asked this often what it has: a command's document may have changed a number."""


class CountLoop:
    """The controller's part that decides and applies numbers of replicas."""

    def __init__(
        self,
        states: Callable[[], Sequence[ReplicaState]],
        is_partial: Callable[[], bool],
        on_sleep: Callable[[], None],
        placing: Placing,
    ) -> None:
        """states: returns all replicas; is_partial: says whether more may live; on_sleep: is called when models fell
        asleep, or woke; placing: finds places for more replicas"""
        self.keeper = CountKeeper()
        self._states = states
        self._is_partial = is_partial
        self._on_sleep = on_sleep
        self._placing = placing
        self._rest: ServeRest | None = None
        self._news = asyncio.Event()
        self._read_s = -READ_EVERY_S
        self._clocks_s = time.time() - time.monotonic()
        self._asleep: Mapping[str, Asleep] = {}
        self.nodes: tuple[Mapping[str, Any], ...] = ()  # as Ray last listed them: ``Resources`` and ``Labels``
        self.figures: Mapping[str, Mapping[str, float]] = {}  # of each model's number, for metrics

    def take(self, values: Mapping[str, Any]) -> None:
        """Take over a fleet. values: the controller's"""
        text = str(values.get("text", ""))
        models = scaled_models(load_fleet(text, "the running fleet")) if text else ()
        self.keeper.take([_with_speed(model, values) for model in models], values)
        dashboard = str(values.get("dashboard", ""))
        if dashboard and (self._rest is None or self._rest.url != dashboard):
            self._rest = ServeRest(dashboard, cluster_token(os.environ, user_home()))
        self._read_s = -READ_EVERY_S
        self._news.set()

    async def end_unplaced(self) -> int:
        """End replicas that are to end and never had a place; returns how many there were."""
        if self._rest is None:
            return 0
        return await asyncio.to_thread(end_unplaced, await asyncio.to_thread(_apps_of, self._rest))

    def take_nodes(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Take over the nodes that are alive, as Ray lists them."""
        self.nodes = tuple(entries)
        names = {entry["NodeID"] for entry in entries}
        self.keeper.tally.keep(names, time.monotonic(), order_every_s(len(names)))

    def hear(self, node_id: str, report: NodeReport) -> None:
        """Take in what a node counted for each model."""
        self.keeper.tally.hear(node_id, report.gateway.model_counts, time.monotonic())

    def woken(self, models: Iterable[str]) -> None:
        """Look at once where requests wait for models that sleep."""
        if self.keeper.woken(models):
            self._news.set()

    @property
    def asleep(self) -> Mapping[str, Asleep]:
        """Return how models slept at the last look."""
        return self._asleep

    async def run(self) -> None:
        """Look again and again, without end."""
        while True:
            self._news.clear()
            try:
                await self._turn()
                self._tell_who_sleeps()
            except Exception as error:  # a task root: the next turn tries again
                log.warning("numbers of replicas cannot be decided or applied: %r", error)
                self._read_s = -READ_EVERY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._news.wait()

    def _tell_who_sleeps(self) -> None:
        if (asleep := self.keeper.asleep(self._states())) != self._asleep:
            self._asleep = asleep
            self._on_sleep()

    async def _turn(self) -> None:
        rest = self._rest
        if rest is None:
            return
        if not self.keeper.is_complete or time.monotonic() - self._read_s >= READ_EVERY_S:
            self._read_s = time.monotonic()
            apps = await asyncio.to_thread(_apps_of, rest)
            self.keeper.found(counts_in_force(apps), bundles_in_force(apps), labels_in_force(apps))
            self._placing.take(apps)
            await asyncio.to_thread(end_unplaced, apps)
        now_s = self._now_s()
        states, partial = self._states(), self._is_partial()
        have, carry = [node["Resources"] for node in self.nodes], [node.get("Labels") or {} for node in self.nodes]
        for change in self.keeper.look(states, now_s, partial=partial, nodes=have, labels=carry):
            await self._apply(rest, change)
        self.figures = self.keeper.book.figures()
        await self._ask_for_nodes()

    async def _ask_for_nodes(self) -> None:
        self.keeper.has_asked = await self._placing.ask_for_nodes(self.keeper.short)

    async def end(self) -> None:
        """Need no more nodes."""
        self.keeper.short = {}
        await self._ask_for_nodes()

    async def _apply(self, rest: ServeRest, change: Change) -> None:
        log.warning("%s: %d replicas: %s", change.model, change.replicas, change.why)
        if (more := self.keeper.more_in(change)) > 0:
            place = await self._placing.steer(change.model, more, lambda: _apps_of(rest))
            self.keeper.book.placed(change.model, place)
        try:
            await asyncio.to_thread(rest.scale, change.model, change.replicas)
        except ClusterError as error:  # other models' changes do not wait for this one
            log.warning("%s does not get %d replicas: %s", change.model, change.replicas, error)
            self._read_s = -READ_EVERY_S
        else:
            self.keeper.applied(change, self._now_s())

    def _now_s(self) -> float:
        """Return Unix seconds that go on evenly; where the wall clock was set, the keeper learns of it."""
        now_s = self._clocks_s + time.monotonic()
        if abs(step_s := time.time() - now_s) <= MAX_DRIFT_S:
            return now_s
        log.warning("the clock was set by %.0f s; numbers of replicas are decided from what comes now", step_s)
        self._clocks_s += step_s
        self.keeper.shift(step_s)
        return now_s + step_s


def _apps_of(rest: ServeRest) -> Applications:
    apps: Applications = rest.details().get("applications", {})
    return apps


def _with_speed(model: ScaledModel, values: Mapping[str, Any]) -> ScaledModel:
    """Return the model with the speed that the plan foresees for a replica, where it says one."""
    speed = values.get("planned", {}).get("speeds", {}).get(model.name)
    return replace(model, speed=ReplicaSpeed(**speed)) if speed else model
