"""What the node's daemon, or the parent of several processes, may ask of a gateway through its control socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from longboat.core.clock import Clock
from longboat.core.states import EndpointTable
from longboat.gateway.admin.node_view import Answers, LocalAnswers
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.limits.lease_document import decode_shares
from longboat.gateway.limits.leased_counters import LeasedCounters
from longboat.gateway.records.model_counts import counts_by_model
from longboat.routing.capacity.shares import written_demands

__all__ = ("Steering",)


class Steering:
    """The ``Steered`` methods of a gateway that is one process. stop: ends the gateway, by a deadline in seconds"""

    def __init__(self, state: GatewayState, clock: Clock, stop: Callable[[float | None], None]) -> None:
        self.state = state
        self.answers: Answers = LocalAnswers(state)
        self.port = state.config.port
        self._clock = clock
        self._stop = stop
        self._base_models: dict[str, str] = {}  # adapter → its model, removed ones included

    async def offer_table(self, epoch: str, table: EndpointTable) -> bool:
        return self.state.offer_table(epoch, table)

    async def offer_policy(self, document: bytes) -> bool:
        return self.state.offer_policy(document)

    async def offer_view(self, document: bytes) -> None:
        self.state.console.offer_view(document, self._clock.monotonic_s())

    async def report(self) -> dict[str, Any]:
        state = self.state
        return {
            "pid": os.getpid(),
            "version": state.table.version,
            "epoch": state.table.epoch,
            "host": state.config.host,
            "port": self.port,
            "in_flight": state.in_flight,
            "requests_total": state.requests_total,
            "connections": len(state.connections),
            "held_bytes": state.held_bytes,
            "fleet": state.config.fleet,
            "node": state.config.node,
            "uptime_s": round(self._clock.monotonic_s() - state.started_s, 3),
            "draining": state.draining,
            "stopping": state.stopping,
            "models": list(state.table.models),
            "policy_digest": state.live.digest,
            "waiting": sum(pool.num_waiting for pool in state.table.pools()),
            "demands": state.table.demands(),
            "ready": sum(upstream.ready for upstream in state.table.upstreams()),
            "lost": {upstream.key: upstream.lost for upstream in state.table.upstreams() if upstream.lost},
            "tenant_demands": written_demands(state.table.tenant_demands()),
            "model_counts": self._model_counts(),
            "log_lines_dropped": state.accounting.access_log.num_dropped if state.accounting.access_log else 0,
            "processes": [os.getpid()],
            "watched": state.console.is_watched(self._clock.monotonic_s()),
        }

    def _model_counts(self) -> dict[str, dict[str, Any]]:
        """Return what this process counted, by its number; nothing where no model follows the load."""
        state, table, answers = self.state, self.state.table.table, self.state.metrics.answers
        answers.is_on = table is not None and table.follows_load
        if not answers.is_on:
            return {}
        state.accounting.flush()
        parked = {pool.model: len(pool.parked) for pool in state.table.pools() if pool.parked}
        priorities = {tenant.name: tenant.priority for tenant in state.live.policy.tenants}
        series = state.metrics.series_counts()
        found = counts_by_model(series, parked, priorities, self._model_of, answers.by_model())
        return {str(os.getpid()): found}

    def _model_of(self, name: str) -> str:
        """Return the model whose replicas serve a name, also where the name is of an adapter that was removed."""
        if base := self.state.table.adapted_by(name):
            self._base_models[name] = base
        elif name in self.state.table.models:
            return name
        return self._base_models.get(name, name)

    async def wakes(self, timeout_s: float) -> list[str]:
        """Return the sleeping models that requests asked for, as soon as there is one."""
        return await self.state.table.wakes.wait(timeout_s)

    async def leases(self, document: bytes) -> Mapping[str, Any]:
        """Take new shares of the limits; report what is counted and wanted."""
        counters = self.state.accounting.counters
        if not isinstance(counters, LeasedCounters):
            return {}
        return counters.take(*decode_shares(document), self._clock.unix_s())

    async def drain(self) -> None:
        """Become unready; requests are still served, each on a connection that then closes."""
        self.state.draining = True

    async def undrain(self) -> None:
        """Become ready again, unless the gateway stops."""
        self.state.draining = self.state.stopping

    def stop(self, deadline_s: float | None = None) -> None:
        """End the gateway once running requests have finished, at the latest at the deadline."""
        self._stop(deadline_s)

    def heard(self) -> None:
        """Note that the owner of the control token called."""
        self.state.last_contact_s = self._clock.monotonic_s()
