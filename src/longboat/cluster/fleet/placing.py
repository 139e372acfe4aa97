"""Finds places for more replicas: on nodes that have the weights, or on nodes that Ray's autoscaler starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from longboat.cluster.counts.preferred_nodes import NodeFacts, Preference, preference
from longboat.cluster.fleet.deployed import Applications, arguments_in_force, bundles_in_force, num_placed
from longboat.cluster.fleet.node_requests import AskForNodes, NodeRequests
from longboat.core.errors import LongboatError
from longboat.telemetry import logger

__all__ = ("Held", "HoldRoom", "Placing")

log = logger("placement")


class Held(Protocol):
    """Room on nodes that nothing else gets."""

    def release_when(self, is_placed: Callable[[], bool]) -> None: ...


HoldRoom = Callable[[Mapping[str, int], Mapping[str, float]], Held]
"""(node → number of bundles, bundle) → the room that is held from then on."""


class Placing:
    """The places of replicas that the controller asks Serve for."""

    def __init__(
        self,
        node_facts: Callable[[Mapping[str, list[dict[str, float]]]], tuple[NodeFacts, ...]],
        hold: HoldRoom,
        ask: AskForNodes,
    ) -> None:
        """node_facts: returns the nodes, by what one replica of each model takes; hold: holds room on nodes

        ask: asks Ray's autoscaler
        """
        self._node_facts = node_facts
        self._hold = hold
        self._requests = NodeRequests(ask)
        self._apps: Applications = {}
        self._releases: set[asyncio.Task[None]] = set()

    def take(self, apps: Applications) -> None:
        """Take in what Serve has."""
        self._apps = apps

    async def steer(self, model: str, more: int, read: Callable[[], Applications]) -> str:
        """Hold the room of the nodes that are worse for this many more replicas, and return why; empty: none is.

        read: returns what Serve has then. The room is let go when the replicas are placed, or after some seconds.
        Until then no other model is steered: two could hold each other's nodes.
        """
        args = arguments_in_force(self._apps).get(model)
        if args is None or more <= 0 or self._releases:
            return ""
        wanted = preference(args, self._node_facts(bundles_in_force(self._apps)), more)
        if wanted.num_gangs:
            try:
                await self._held(model, args, wanted, read)
            except Exception as error:  # replicas go anywhere then
                log.warning("%s is placed anywhere: %r", model, error)
                return ""
        return wanted.reason

    async def ask_for_nodes(self, short: Mapping[str, int]) -> bool:
        """Ask Ray's autoscaler for what replicas need; returns whether it was asked for more.

        short: model → replicas, those without room included; empty: all have room
        """
        try:
            await self._requests.follow(short, arguments_in_force(self._apps))
        except Exception as error:  # numbers of replicas are kept without an autoscaler
            log.warning("Ray's autoscaler cannot be asked: %r", error)
        return self._requests.is_heard

    async def _held(
        self, model: str, args: Mapping[str, Any], wanted: Preference, read: Callable[[], Applications]
    ) -> None:
        goal = num_placed(await asyncio.to_thread(read), model) + wanted.num_gangs
        held = await asyncio.to_thread(self._hold, wanted.held, args["bundles"][0])

        def is_placed() -> bool:
            try:
                return num_placed(read(), model) >= goal
            except LongboatError:
                return False

        release = asyncio.create_task(asyncio.to_thread(held.release_when, is_placed))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
