"""Real requests counted in a real Redis, with clients that leave at any moment."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis_server
from fake_upstream import DEADLINE_S, Seen
from gateway_lab import eventually, keyed, post_bytes, push_policy, settled

from longboat.core.external import Price
from longboat.core.policy import TenantPolicy

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
PROGRAMS = redis_server.programs()


@pytest.mark.skipif(not PROGRAMS, reason="no redis-server is here: install the development requirements")
async def test_nothing_stays_reserved_of_clients_that_leave(
    make_upstream: Any, make_gateway: Any, connect: Any, tmp_path: Path
) -> None:
    async def soon(seen: Seen) -> None:
        await asyncio.sleep(0.002)
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    server = redis_server.RedisServer(next(iter(PROGRAMS.values())), tmp_path)
    server.start()
    try:
        limits = {"concurrent_requests": 1000, "tokens_per_day": 10**9, "money_per_day": 1e6}
        policy, (key,) = keyed(TenantPolicy(name="a", **limits))  # type: ignore[arg-type]
        policy = replace(policy, prices={"tiny": Price(input_per_million=10, output_per_million=10)})
        settings = {"redis_url": server.url, "fleet": "f"}
        gateway = await make_gateway(await make_upstream(soon), policy=policy, settings=settings)
        first = await connect(gateway)
        assert (await first.post(ASK, headers=key)).status == 200
        first.abort()
        assert gateway.state.accounting.remote_counters is not None
        counts_of = gateway.state.accounting.remote_counters._fallback.counts_of
        estimate = counts_of("a", time.time()).tokens_today  # which stands where an engine tells nothing
        chance = random.Random(5)

        async def one() -> None:
            client = await connect(gateway)
            client.send(post_bytes(ASK, headers=key) * chance.choice((1, 2)))
            await asyncio.sleep(chance.random() * 0.006)
            if chance.random() < 0.7:
                client.abort()
            else:
                assert (await client.response()).status == 200
                client.abort()

        for _ in range(8):
            await asyncio.gather(*(one() for _ in range(25)))
        await eventually(lambda: not gateway.state.connections, "all clients are gone")
        assert gateway.state.in_flight == gateway.state.held_bytes == 0
        settled(gateway)
        counts = counts_of("a", time.time())
        assert counts.running == 0
        assert counts.tokens_today % estimate == 0  # each was paid in full or not at all
        money = counts_of("tenant:a:money_per_day", time.time())
        assert money.running == 0
        assert money.tokens_today % (estimate * 10_000) == 0
        push_policy(gateway, replace(policy, tenants=(TenantPolicy(name="a", money_per_day=1e-9),)))
        assert (await (await connect(gateway)).post(ASK, headers=key)).code == "money_per_day"
        alone, (mine,) = keyed(TenantPolicy(name="a", concurrent_requests=1))
        other = await make_gateway(await make_upstream(), policy=alone, settings=settings)  # asks Redis
        client = await connect(other)
        async with asyncio.timeout(DEADLINE_S):  # Redis is told of the last ends in a moment, or when it is back
            while (await client.post(ASK, headers=mine)).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        server.kill()
