"""What engines report takes slots away, by what the whole engine has and not by this gateway's part."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from fake_upstream import Seen
from gateway_lab import endpoint, eventually

from longboat.gateway.upstreams.engine_load import follow_load


@pytest.mark.parametrize(
    ("capacity", "engine_capacity", "running", "slots"),
    [(4, 16, 8, 4), (4, 16, 14, 2), (4, 16, 16, 1), (8, None, 5, 3), (4, 16, 0, 4)],
)
async def test_room_is_what_the_whole_engine_has_left(
    capacity: int, engine_capacity: int | None, running: int, slots: int, make_upstream: Any, make_gateway: Any
) -> None:
    async def metrics(seen: Seen) -> None:
        body = b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n" % running
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        seen.writer.close()

    upstream = await make_upstream(metrics)
    upstream.has_metrics = True
    engine = endpoint(upstream, capacity=capacity, engine_capacity=engine_capacity)
    gateway = await make_gateway(endpoints=[engine])
    (live,) = gateway.state.table.upstreams()
    following = asyncio.create_task(follow_load(gateway.state.table, 0.01))
    try:
        await eventually(lambda: live.reported_slots is not None, "the engine told")
        assert live.slots == slots
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
