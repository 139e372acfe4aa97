"""The daemon's part in weights: this node's place in the swarm, and what it fetches before a replica needs it."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from longboat.cluster.protocol.messages import WeightsOrder, WeightsReport
from longboat.cluster.weights.here import hold_weights, remove_order, write_order
from longboat.cluster.weights.prewarm import Prewarm
from longboat.core.errors import LongboatError
from longboat.spec.types.weights import WeightsSpec
from longboat.telemetry import logger
from longboat.weights.fetch.node_weights import HeldWeights
from longboat.weights.fetch.options_from import limits_from
from longboat.weights.pieces.rate import Progress
from longboat.weights.pieces.tracker import StorageLimits
from longboat.weights.store.store import Store
from longboat.weights.swarm.swarm_member import SwarmMember

__all__ = ("WeightsMember",)

log = logger("weights")

LOOK_EVERY_S = 5.0
WAIT_S = 2.0
"""A home folder that hangs, on a network for instance, holds up the node's other orders for no longer than this."""


class WeightsMember:
    """This node in the swarm of weights; it is a member from the first order that names weights.

    address: of the cluster's card, on which it gives pieces; labels: that Ray knows of this node
    """

    def __init__(self, home: Path, run: Path, address: str, labels: Mapping[str, str]) -> None:
        self._home = home
        self._run = run
        self._address = address
        self._labels = labels
        self._member: SwarmMember | None = None
        self._token = ""  # of the membership
        self._known: tuple[str, ...] = ()  # sources of whole models, as they were looked up last
        self._looked_at_s = -LOOK_EVERY_S
        self._prewarm = Prewarm(self._hold)
        self._following: asyncio.Task[WeightsReport | None] | None = None
        self._report: WeightsReport | None = None
        remove_order(run)  # of a daemon before this one: its trackers may be gone

    async def report(self, order: WeightsOrder | None) -> WeightsReport | None:
        """Do what ``follow`` does; where that takes long, it goes on beside, and the last report counts meanwhile."""
        following = self._following = self._following or asyncio.create_task(self.follow(order))
        done, _ = await asyncio.wait({following}, timeout=WAIT_S)
        if done and self._following is following:  # else the member ends
            self._following, self._report = None, None
            self._report = following.result()
        return self._report

    async def follow(self, order: WeightsOrder | None) -> WeightsReport | None:
        """Do what the controller wants, and report this node's place and its whole models. None: it has no place."""
        if order is None:
            await self.stop()
            return None
        spec = WeightsSpec.model_validate(dict(order.spec), strict=False)
        swarm_member = await self._membership(order, limits_from(spec))
        member = swarm_member.follow(order.trackers)
        await asyncio.to_thread(write_order, self._run, order, member)
        if order.trackers:
            self._prewarm.want(order.sources if self._is_warmed(spec) else (), time.monotonic())
        return WeightsReport(member=member, sources=await asyncio.to_thread(self._sources))

    async def end(self) -> None:
        """Stop with the daemon, for which a home folder that hangs is not waited for."""
        await asyncio.wait({asyncio.create_task(self._end())}, timeout=WAIT_S)

    async def _end(self) -> None:
        following, self._following, self._report = self._following, None, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        try:
            await self.stop()
        except (LongboatError, OSError) as error:
            log.warning("this node's part in sharing weights did not end well: %s", error)

    async def stop(self) -> None:
        """Leave the swarm, and fetch nothing before it is needed."""
        self._prewarm.want((), time.monotonic())
        await asyncio.to_thread(remove_order, self._run)
        member, self._member = self._member, None
        if member is not None:
            await asyncio.to_thread(member.stop)

    async def _membership(self, order: WeightsOrder, limits: StorageLimits) -> SwarmMember:
        """Return this node's membership with the order's token: a new one where it has none, or another token.

        Agents fetch without the swarm where the node cannot join it.
        """
        if self._member is None or self._token != order.token:
            if self._member is not None:
                await self.stop()
            try:
                self._member = await asyncio.to_thread(self._joined, order.token, limits)
            except BaseException:
                alone = dataclasses.replace(order, trackers=())
                await asyncio.to_thread(write_order, self._run, alone, "")
                raise
            self._token = order.token
        self._member.limit(limits)
        return self._member

    def _sources(self) -> tuple[str, ...]:
        """Return the sources of the whole models of this node, looked up now and then."""
        if time.monotonic() - self._looked_at_s > LOOK_EVERY_S:
            self._looked_at_s = time.monotonic()
            found = (stored.source for stored in Store(self._home).list() if stored.is_whole)
            self._known = tuple(sorted(set(found)))
        return self._known

    def _joined(self, token: str, limits: StorageLimits) -> SwarmMember:
        member = SwarmMember(Store(self._home), token, self._address, limits=limits)
        member.start()
        return member

    def _is_warmed(self, spec: WeightsSpec) -> bool:
        """Return whether the fleet file wants weights here before a replica needs them."""
        names = (socket.gethostname(), self._address)
        return any(
            entry.node in names if entry.node else entry.labels.items() <= self._labels.items()
            for entry in spec.prewarm
        )

    def _hold(self, source: str, on_progress: Callable[[Progress], None]) -> HeldWeights:
        return hold_weights(source, self._home, self._run, on_progress)
