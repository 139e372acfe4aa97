"""The background work of one gateway process: counters, usage, traces, the loop's lag, engines' health."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from longboat.gateway.admin.control_client import GatewayControl
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import GatewayConfig
from longboat.gateway.external.budgets import spent_today
from longboat.gateway.limits.counters import LocalCounters
from longboat.gateway.limits.leased_counters import LeasedCounters
from longboat.gateway.prefixes.feed import follow_prefixes
from longboat.gateway.process.rounds import Rounds
from longboat.gateway.records.tracing import Tracer
from longboat.gateway.upstreams.engine_load import follow_load
from longboat.gateway.upstreams.heartbeat_monitor import follow_beats
from longboat.telemetry import Guard, logger

__all__ = ("Services", "counters_of")

log = logger("gateway")

_DIVIDE_S = 2.5  # the parent gives each worker one second


class Services:
    """Background work that starts before the first client and stops after the last one."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._tasks: list[asyncio.Task[None]] = []
        self._lag_timer: asyncio.TimerHandle | None = None
        self._flushing = Guard(log, "writing down requests")

    async def start(self) -> None:
        """Start. Raise UserInputError where a directory or the Redis address cannot be used."""
        state, config = self._state, self._state.config
        state.usage.open()
        state.accounting.counters = counters_of(config, state.live.policy.num_gateways)
        if config.worker_index is None:  # the parent restores the day for all of its workers
            now_s = state.clock.unix_s()
            state.accounting.counters.restore_today(spent_today(state.usage, now_s), now_s=now_s)
        if config.redis_url:
            from longboat.gateway.limits.redis_counters import RedisCounters

            remote = RedisCounters(config.redis_url, fleet=config.fleet, fallback=state.accounting.counters)
            await remote.start()
            state.accounting.remote_counters = remote
        if config.tracing_endpoint:
            resource = {"longboat.fleet": config.fleet, "longboat.node": config.node}
            state.accounting.tracer = Tracer(
                config.tracing_endpoint, sample_ratio=config.tracing_sample_ratio, resource=resource
            )
        self._spawn(state.usage.run())
        self._spawn(follow_beats(state.table, clock=state.clock))
        if config.scrape_s is not None:
            self._spawn(follow_load(state.table, config.scrape_s))
        takes_names = config.worker_index in (None, 0)  # one process puts them into the index that all share
        feeds = follow_prefixes(state.table, state.trips, names=takes_names, states=state.trips.feeds, least_replicas=2)
        self._spawn(feeds)
        self._tick()

    async def stop(self) -> None:
        """Stop, and write what is not written yet."""
        state = self._state
        if self._lag_timer is not None:
            self._lag_timer.cancel()
        state.accounting.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if state.accounting.remote_counters is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(state.accounting.remote_counters.stop(), 2.0)
        if state.accounting.tracer is not None:
            await asyncio.to_thread(state.accounting.tracer.close)
        await asyncio.to_thread(state.usage.close)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        with self._flushing:
            self._state.accounting.flush()
        due_s = self._state.metrics.lag.tick(loop.time())
        self._lag_timer = loop.call_at(due_s, self._tick)


def counters_of(config: GatewayConfig, num_gateways: int) -> LocalCounters:
    """Make the counters of one process: a worker keeps to the leases that its parent makes."""
    if config.parent_socket is None:
        return LocalCounters(num_gateways=num_gateways)
    parent = GatewayControl(config.parent_socket, config.control_token, timeout_s=_DIVIDE_S, from_worker=True)
    return LeasedCounters(Rounds(parent.leases), num_gateways=num_gateways)
