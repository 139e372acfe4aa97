"""Asks engines how busy they are, so that slots which other clients use are not given out twice."""

from __future__ import annotations

import asyncio
import time

from longboat.engines.metrics import KV_USAGE, REQUESTS, largest_of, read_samples, total_of
from longboat.gateway.http.message import ask
from longboat.gateway.upstreams.pool import Pool
from longboat.gateway.upstreams.table import LiveTable
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.capacity.slots import corrected
from longboat.routing.policies.contract import EngineReport
from longboat.telemetry import Guard, logger

__all__ = ("follow_load",)

log = logger("gateway")

_TIMEOUT_S = 2.0
_AT_ONCE = 16
_LOOKS_A_SECOND = 32.0
"""Where there are more engines, each is looked at less often; those with a prefix feed tell their load there."""
_NAMES = (*REQUESTS, *REQUESTS.values(), *KV_USAGE)


async def follow_load(table: LiveTable, every_s: float) -> None:
    """Read each engine's ``/metrics`` every ``every_s`` seconds, or in turn where there are many.

    An engine that reports nothing keeps its capacity.
    """
    guard = Guard(log, "the look at engines' load")
    gate = asyncio.Semaphore(_AT_ONCE)
    most, begin = max(1, round(_LOOKS_A_SECOND * every_s)), 0
    while True:
        await asyncio.sleep(every_s)
        with guard:
            known = [(pool, u) for pool in table.pools() for u in pool.upstreams if _is_worth_a_look(pool, u)]
            wanted, begin = _next_ones(known, begin, most)
            await asyncio.gather(*(_look(pool, u, table.engine_capacity(u), gate) for pool, u in wanted))
            for pool in table.pools():
                if pool.num_waiting:
                    pool.pump_soon()


def _next_ones(known: list[tuple[Pool, Upstream]], begin: int, most: int) -> tuple[list[tuple[Pool, Upstream]], int]:
    """Return those whose turn it is, and where the next turn begins."""
    if len(known) <= most:
        return known, 0
    begin %= len(known)
    return (known[begin:] + known[:begin])[:most], begin + most


def _is_worth_a_look(pool: Pool, upstream: Upstream) -> bool:
    """Return whether its load changes what it gets: it has slots, or there are others."""
    return upstream.ready and upstream.address is None and (bool(upstream.capacity) or len(pool.upstreams) > 1)


async def _look(pool: Pool, upstream: Upstream, whole: int | None, gate: asyncio.Semaphore) -> None:
    """Take one engine's report. whole: requests of all senders that the engine works on at once"""
    async with gate:
        try:
            answer = await ask(upstream.url, "/metrics", api_key=upstream.api_key, timeout_s=_TIMEOUT_S)
        except (OSError, ValueError):
            answer = None
    if upstream.gone:
        return
    report = _report_of(answer.body) if answer is not None and answer.status == 200 else None
    if report is not None:
        pool.router.reported(upstream.key, report)
    if report is None or not upstream.capacity or whole is None:
        upstream.reported_slots = None
        return
    own = upstream.outstanding
    # Requests of other senders take slots from this process, even where its part of the engine is larger.
    upstream.reported_slots = own + corrected(whole, own, report.running, report.waiting)


def _report_of(body: bytes) -> EngineReport | None:
    """Read what an engine says of its load; None where it does not."""
    lines = (line for line in body.decode(errors="replace").splitlines() if line.startswith(_NAMES))
    samples = list(read_samples("\n".join(lines)))
    name = next((name for name in REQUESTS if total_of(samples, name) is not None), "")
    running, waiting = total_of(samples, name), total_of(samples, REQUESTS.get(name, ""))
    if running is None:
        return None
    usage = max((found for name in KV_USAGE if (found := largest_of(samples, name)) is not None), default=0.0)
    return EngineReport(taken_s=time.monotonic(), running=int(running), waiting=int(waiting or 0), kv_usage=usage)
