"""Asks engines how busy they are, so that slots which others take are not given out twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from longboat.engines.metrics import read_samples, total_of
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.capacity.slots import corrected

if TYPE_CHECKING:
    from longboat.gateway.requests.state import GatewayState

__all__ = ("follow_load",)

_TIMEOUT_S = 2.0
_MAX_BYTES = 4 * 1024 * 1024
_AT_ONCE = 16


async def follow_load(state: GatewayState, every_s: float) -> None:
    """Look at each engine's ``/metrics`` every so often, for ever. An engine that tells nothing keeps its capacity."""
    gate = asyncio.Semaphore(_AT_ONCE)
    while True:
        await asyncio.sleep(every_s)
        wanted = [u for u in state.table.upstreams() if u.ready and u.capacity]
        await asyncio.gather(*(_look(upstream, state.table.engine_capacity(upstream), gate) for upstream in wanted))
        for pool in state.table.pools():
            if pool.num_waiting:
                pool.pump_soon()


async def _look(upstream: Upstream, whole: int | None, gate: asyncio.Semaphore) -> None:
    """whole: requests that the engine works on at once, ours and others'."""
    async with gate:
        try:
            text = await asyncio.wait_for(_metrics_text(upstream), _TIMEOUT_S)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            upstream.room_told = None
            return
    lines = (line for line in text.splitlines() if line.startswith("vllm:num_requests_"))
    samples = list(read_samples("\n".join(lines)))
    running = total_of(samples, "vllm:num_requests_running")
    waiting = total_of(samples, "vllm:num_requests_waiting")
    if running is None or not upstream.capacity or whole is None:
        upstream.room_told = None
        return
    own = upstream.outstanding
    # What the engine has beyond ours is others' work: room that it takes is not ours, even where our part is larger.
    upstream.room_told = own + corrected(whole, own, int(running), int(waiting or 0))


async def _metrics_text(upstream: Upstream) -> str:
    host, port = upstream.target
    reader, writer = await asyncio.open_connection(host, port, limit=_MAX_BYTES)
    try:
        writer.write(upstream.get_head(b"/metrics"))
        data = await reader.read(-1)
    finally:
        writer.close()
    head, _, body = data[:_MAX_BYTES].partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError("no metrics")
    return body.decode(errors="replace")
