"""Answers for the whole node: this process alone, or, in a worker, through the parent of all workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from longboat.core.clock import Clock
from longboat.core.errors import ClusterError
from longboat.gateway.admin.control_client import GatewayControl
from longboat.gateway.config import GatewayConfig
from longboat.gateway.records.metrics import Metrics
from longboat.gateway.records.recent import RecentRequests, summary, timeline
from longboat.gateway.upstreams.response_affinity import Owner

__all__ = ("Answers", "LocalAnswers", "LocalNode", "Node", "ObservedState", "ParentNode", "node_of")

USAGE_DAYS = 31
_PARENT_TIMEOUT_S = 2.5  # the parent gives each worker one second
_ELSEWHERE = ["the gateway's other processes"]


class Answers(Protocol):
    """What one process knows, or all of a node together.

    Documents carry ``missing``: names of processes that did not answer in a second.
    """

    async def metrics(self) -> dict[str, Any]:
        """A snapshot: see ``metrics.merge``."""

    async def request(self, request_id: str, tenant: str | None = None) -> dict[str, Any]:
        """{"request": timeline or None, "missing": […]}. tenant: only a request of this one."""

    async def requests(self, tenant: str | None, limit: int) -> dict[str, Any]:
        """{"requests": […], "missing": […]}: the newest first, of one tenant or (None) of all."""

    async def usage(self, days: int = USAGE_DAYS) -> dict[str, Any]:
        """{"days": [UsageRow's fields …], "shared": whether all processes keep one file, "missing": […]}."""

    async def owner(self, response_id: str) -> dict[str, Any]:
        """{"owner": {"tenant", "model", "key"} or None, "missing": […]}: who holds a response of the Responses API."""


class Node(Answers, Protocol):
    """A node's gateway, whichever of its processes is hit. Raises ClusterError where it cannot be reached."""

    async def report(self) -> dict[str, Any]: ...
    async def drain(self) -> None: ...
    async def undrain(self) -> None: ...


class _Owners(Protocol):
    def find(self, response_id: str) -> Owner | None: ...


class _Usage(Protocol):
    def report(self, days: int, now_s: float) -> Sequence[Any]: ...


class _Table(Protocol):
    def upstreams(self) -> Sequence[Any]: ...


class _Dropping(Protocol):
    @property
    def num_dropped(self) -> int: ...


class _Degrading(Protocol):
    @property
    def num_degraded(self) -> int: ...


class _Accounting(Protocol):
    @property
    def access_log(self) -> _Dropping | None: ...
    @property
    def tracer(self) -> _Dropping | None: ...
    @property
    def remote_counters(self) -> _Degrading | None: ...
    def flush(self) -> None: ...


class ObservedState(Protocol):
    """What one process keeps and may be asked for."""

    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> GatewayConfig: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def recent(self) -> RecentRequests: ...
    @property
    def accounting(self) -> _Accounting: ...
    @property
    def owners(self) -> _Owners: ...
    @property
    def usage(self) -> _Usage: ...
    @property
    def table(self) -> _Table: ...

    connections: set[Any]
    held_bytes: int


class Reporting(Protocol):
    """A gateway process, as far as a node's answers need it."""

    async def report(self) -> dict[str, Any]: ...
    async def drain(self) -> None: ...
    async def undrain(self) -> None: ...


class LocalAnswers:
    """What this process knows."""

    def __init__(self, state: ObservedState) -> None:
        self._state = state

    async def metrics(self) -> dict[str, Any]:
        state = self._state
        state.accounting.flush()
        snapshot = state.metrics.snapshot(state.table.upstreams(), state)
        snapshot["events"].update(_losses(state))
        return snapshot

    async def request(self, request_id: str, tenant: str | None = None) -> dict[str, Any]:
        self._state.accounting.flush()
        record = self._state.recent.get(request_id, tenant)
        return {"request": timeline(record) if record else None, "missing": []}

    async def requests(self, tenant: str | None, limit: int) -> dict[str, Any]:
        self._state.accounting.flush()
        return {"requests": [summary(r) for r in self._state.recent.newest(tenant, limit)], "missing": []}

    async def usage(self, days: int = USAGE_DAYS) -> dict[str, Any]:
        self._state.accounting.flush()
        rows = self._state.usage.report(days, self._state.clock.unix_s())
        shared = self._state.config.state_folder is not None
        return {"days": [dataclasses.asdict(row) for row in rows], "shared": shared, "missing": []}

    async def owner(self, response_id: str) -> dict[str, Any]:
        owner = self._state.owners.find(response_id)
        return {"owner": owner._asdict() if owner else None, "missing": []}


class LocalNode(LocalAnswers):
    """A gateway that is one process."""

    def __init__(self, state: ObservedState, gateway: Reporting) -> None:
        super().__init__(state)
        self.report = gateway.report
        self.drain = gateway.drain
        self.undrain = gateway.undrain


class ParentNode:
    """A worker's way to ask for all workers. While the parent does not answer, what this worker knows is told."""

    def __init__(self, control: GatewayControl, local: LocalAnswers) -> None:
        self._control = control
        self._local = local

    async def metrics(self) -> dict[str, Any]:
        return await self._or_local(self._control.metrics, self._local.metrics)

    async def request(self, request_id: str, tenant: str | None = None) -> dict[str, Any]:
        return await self._or_local(
            lambda: self._control.request(request_id, tenant), lambda: self._local.request(request_id, tenant)
        )

    async def requests(self, tenant: str | None, limit: int) -> dict[str, Any]:
        return await self._or_local(
            lambda: self._control.requests(tenant, limit), lambda: self._local.requests(tenant, limit)
        )

    async def usage(self, days: int = USAGE_DAYS) -> dict[str, Any]:
        return await self._or_local(lambda: self._control.usage(days), lambda: self._local.usage(days))

    async def owner(self, response_id: str) -> dict[str, Any]:
        """This worker's own answer where it has one: the parent is asked for the others' only."""
        mine = await self._local.owner(response_id)
        if mine["owner"] is not None:
            return mine
        return await self._or_local(lambda: self._control.owner(response_id), lambda: self._local.owner(response_id))

    async def report(self) -> dict[str, Any]:
        return await self._control.state()

    async def drain(self) -> None:
        await self._control.drain()

    async def undrain(self) -> None:
        await self._control.undrain()

    async def _or_local(
        self, ask: Callable[[], Awaitable[dict[str, Any]]], local: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        try:
            return await ask()
        except ClusterError:
            return {**await local(), "missing": _ELSEWHERE}


def _losses(state: ObservedState) -> dict[str, int]:
    """What was given up so that requests could go on."""
    losses = {}
    if state.accounting.access_log is not None:
        losses["log_lines_dropped"] = state.accounting.access_log.num_dropped
    if state.accounting.tracer is not None:
        losses["spans_dropped"] = state.accounting.tracer.num_dropped
    if state.accounting.remote_counters is not None:
        losses["counted_without_redis"] = state.accounting.remote_counters.num_degraded
    return losses


def node_of(state: ObservedState, gateway: Reporting) -> Node:
    """Whom the process of ``state`` asks for its node."""
    config = state.config
    if config.parent_socket is None:
        return LocalNode(state, gateway)
    control = GatewayControl(config.parent_socket, config.control_token, timeout_s=_PARENT_TIMEOUT_S, from_worker=True)
    return ParentNode(control, LocalAnswers(state))
