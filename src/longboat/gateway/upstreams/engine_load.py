"""Asks engines how busy they are, so that slots which other clients use are not given out twice."""

from __future__ import annotations

import asyncio

from longboat.engines.metrics import REQUESTS, read_samples, total_of
from longboat.gateway.http.message import ask
from longboat.gateway.upstreams.table import LiveTable
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.capacity.slots import corrected

__all__ = ("follow_load",)

_TIMEOUT_S = 2.0
_AT_ONCE = 16
_NAMES = (*REQUESTS, *REQUESTS.values())


async def follow_load(table: LiveTable, every_s: float) -> None:
    """Read each engine's ``/metrics`` every ``every_s`` seconds. An engine that reports nothing keeps its capacity."""
    gate = asyncio.Semaphore(_AT_ONCE)
    while True:
        await asyncio.sleep(every_s)
        wanted = [u for u in table.upstreams() if u.ready and u.capacity and u.address is None]
        await asyncio.gather(*(_look(upstream, table.engine_capacity(upstream), gate) for upstream in wanted))
        for pool in table.pools():
            if pool.num_waiting:
                pool.pump_soon()


async def _look(upstream: Upstream, whole: int | None, gate: asyncio.Semaphore) -> None:
    """Set the reported slots of one engine. whole: requests of all senders that the engine works on at once"""
    async with gate:
        try:
            answer = await ask(upstream.url, "/metrics", api_key=upstream.api_key, timeout_s=_TIMEOUT_S)
        except (OSError, ValueError):
            answer = None
    if answer is None or answer.status != 200:
        upstream.reported_slots = None
        return
    text = answer.body.decode(errors="replace")
    lines = (line for line in text.splitlines() if line.startswith(_NAMES))
    samples = list(read_samples("\n".join(lines)))
    name = next((name for name in REQUESTS if total_of(samples, name) is not None), "")
    running, waiting = total_of(samples, name), total_of(samples, REQUESTS.get(name, ""))
    if running is None or not upstream.capacity or whole is None:
        upstream.reported_slots = None
        return
    own = upstream.outstanding
    # Requests of other senders take slots from this process, even where its part of the engine is larger.
    upstream.reported_slots = own + corrected(whole, own, int(running), int(waiting or 0))
