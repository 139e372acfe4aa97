"""Answers for the whole node: from this process alone, or, in a worker, from the parent of all workers."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from longboat.core.errors import ClusterError
from longboat.gateway.admin.control_client import GatewayControl
from longboat.gateway.admin.node_query import NodeQuery, ObservedState, OwnerQuery

__all__ = ("Answers", "LocalAnswers", "LocalNode", "Node", "ParentNode", "make_node")

_PARENT_TIMEOUT_S = 2.5  # the parent gives each worker one second


class Answers(Protocol):
    """What one process knows, or what all processes of a node know together."""

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        """Reply to the query. ``missing`` names the processes that did not reply in time."""


class Reporting(Protocol):
    """A gateway's state and its drain."""

    async def report(self) -> dict[str, Any]: ...
    async def drain(self) -> None: ...
    async def undrain(self) -> None: ...


class Node(Answers, Reporting, Protocol):
    """A node's gateway, from whichever of its processes. Its methods raise ClusterError where it cannot be reached."""


class LocalAnswers:
    """What this process knows."""

    def __init__(self, state: ObservedState) -> None:
        self._state = state

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        self._state.accounting.flush()
        found = await asyncio.to_thread(query.local, self._state) if query.is_slow else query.local(self._state)
        return {**found, "missing": []}


class LocalNode(LocalAnswers):
    """A gateway that is one process."""

    def __init__(self, state: ObservedState, gateway: Reporting) -> None:
        super().__init__(state)
        self.report = gateway.report
        self.drain = gateway.drain
        self.undrain = gateway.undrain


class ParentNode:
    """A worker's way to ask all workers. While the parent does not reply, the worker's own knowledge has to do."""

    def __init__(self, control: GatewayControl, local: LocalAnswers) -> None:
        self._control = control
        self._local = local
        self.report = control.state
        self.drain = control.drain
        self.undrain = control.undrain

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        if isinstance(query, OwnerQuery) and (own := await self._local.ask(query))["owner"] is not None:
            return own  # a response has one owner: the other workers know nothing of it
        try:
            return await self._control.ask(query)
        except ClusterError:
            return {**await self._local.ask(query), "missing": ["the gateway's other processes"]}


def make_node(state: ObservedState, gateway: Reporting) -> Node:
    """Make the node's view for one of its processes."""
    config = state.config
    if config.parent_socket is None:
        return LocalNode(state, gateway)
    control = GatewayControl(config.parent_socket, config.control_token, timeout_s=_PARENT_TIMEOUT_S, from_worker=True)
    return ParentNode(control, LocalAnswers(state))
