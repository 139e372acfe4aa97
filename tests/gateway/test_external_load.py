"""Daily limits and overflow under load: they hold to the request, in one process and over several."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import redis_server
from fake_upstream import DEADLINE_S, STREAM_HEAD, FakeUpstream, Seen, chunk
from gateway_lab import RawClient, Response, endpoint, post_bytes, settled, started_gateway, table
from outside_lab import (
    ASK,
    END,
    PRICE,
    SECRET,
    MakeProvider,
    answers,
    authority,
    budget,
    delta,
    error,
    model,
    open_policy,
    provider,
)
from test_gateway_process import Running, Start, start

from longboat.core.external import Overflow
from longboat.core.policy import Policy, QueuePolicy
from longboat.gateway.admin.node_query import MetricsQuery, UsageQuery
from longboat.gateway.process.server import Gateway

__all__ = ("authority", "provider", "start")  # fixtures

PROGRAMS = redis_server.programs()
NUM_REQUESTS = 300
LIMIT = 120


async def one_request(port: int, body: dict[str, Any]) -> Response:
    client = await RawClient.to(port)
    client.send(post_bytes(body))
    response = await client.response()
    client.abort()
    return response


async def many(port: int, count: int, body: dict[str, Any], *, at_once: int = 40) -> list[Response]:
    """Send many requests, each over a connection of its own, which any of the processes may take."""
    gate = asyncio.Semaphore(at_once)

    async def one() -> Response:
        async with gate:
            return await one_request(port, body)

    return await asyncio.gather(*(one() for _ in range(count)))


async def running(start_: Start, policy: Policy, *engines: FakeUpstream, capacity: int = 1, **changes: Any) -> Running:
    made = await start_(policy=policy, **{"processes": 2, **changes})
    endpoints = [endpoint(e, f"r{i}", capacity=capacity) for i, e in enumerate(engines)]
    await made.control.put_table("e", table(*endpoints, models=("tiny",)))
    return made


@pytest.mark.parametrize("processes", [1, 2])
async def test_requests_of_a_day_hold_to_the_request(start: Start, provider: MakeProvider, processes: int) -> None:
    cloud = await provider()
    policy = open_policy(model(cloud.url, limits=budget(requests_per_day=LIMIT)))
    made = await running(start, policy, processes=processes)
    found = await many(made.port, NUM_REQUESTS, ASK)
    counts = collections.Counter(response.status for response in found)
    assert counts == {200: LIMIT, 429: NUM_REQUESTS - LIMIT}
    assert len(cloud.seen) == LIMIT
    refused = next(response for response in found if response.status == 429)
    assert refused.code == "external_requests_per_day"
    assert int(refused.headers["retry-after"]) > 0


async def test_tokens_and_money_of_a_day_hold(start: Start, provider: MakeProvider) -> None:
    """Each response takes 30 tokens, 45 millionths of the money; each request reserves at most that."""
    cloud = await provider()
    body = {**ASK, "max_tokens": 20, "messages": [{"role": "user", "content": "x" * 24}]}
    by_tokens = model(cloud.url, name="by-tokens", limits=budget(tokens_per_day=30 * 50))
    by_money = model(cloud.url, name="by-money", price=PRICE, limits=budget(money_per_day=0.000045 * 70))
    made = await running(start, open_policy(by_tokens, by_money))
    for name, limit in (("by-tokens", 50), ("by-money", 70)):
        before = len(cloud.seen)
        found = await many(made.port, 150, {**body, "model": name})
        served = [response for response in found if response.status == 200]
        assert {response.status for response in found} == {200, 429}
        assert len(served) == len(cloud.seen) - before == limit


async def test_failed_requests_cost_requests_and_no_tokens(start: Start, provider: MakeProvider) -> None:
    cloud = await provider(answers("500 Error", document=error("broken")))
    limits = budget(requests_per_day=LIMIT, tokens_per_day=10_000_000)
    made = await running(start, open_policy(model(cloud.url, price=PRICE, limits=limits)))
    found = await many(made.port, 200, ASK)
    assert len(cloud.seen) == LIMIT
    assert sorted({response.status for response in found}) == [429, 500]
    days = (await made.control.ask(UsageQuery(1)))["days"]
    assert sum(day["sent"] for day in days) == LIMIT
    assert sum(day["cost_nanos"] for day in days) == 0


async def test_a_restart_forgets_nothing_of_the_day(start: Start, provider: MakeProvider, tmp_path: Path) -> None:
    cloud = await provider()
    policy = open_policy(model(cloud.url, limits=budget(requests_per_day=30)))
    folder = str(tmp_path / "state")
    first = await running(start, policy, state_folder=folder)
    assert {response.status for response in await many(first.port, 20, ASK)} == {200}
    first.process.terminate()
    await first.ended()
    second = await running(start, policy, state_folder=folder)
    found = await many(second.port, 40, ASK)
    assert collections.Counter(response.status for response in found) == {200: 10, 429: 30}
    assert len(cloud.seen) == 30


class SlowEngine:
    """A script of an engine that holds each request until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, seen: Seen) -> None:
        await self.go.wait()
        await answers()(seen)


async def test_who_waits_too_long_overflows_and_who_may_not_stays(start: Start, provider: MakeProvider) -> None:
    slow = SlowEngine()
    engine = FakeUpstream(slow)
    await engine.start()
    cloud = await provider()
    policy = open_policy(
        model(cloud.url, limits=budget(requests_per_day=25)), overflow={"tiny": Overflow(to="cloud", after_s=0.5)}
    )
    made = await running(start, policy, engine, capacity=2)
    waiting = asyncio.create_task(many(made.port, 60, {**ASK, "model": "tiny"}, at_once=60))
    async with asyncio.timeout(DEADLINE_S):
        while len(cloud.seen) < 25:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)  # long enough for more to overflow, if they could
    assert len(cloud.seen) == 25
    slow.go.set()
    found = await waiting
    assert {response.status for response in found} == {200}
    outside = [response for response in found if "x-longboat-external" in response.headers]
    assert len(outside) == len(cloud.seen) == 25
    for response in outside:
        assert response.headers["x-longboat-overflow"] == "1"
        assert response.headers["x-longboat-model"] == "cloud"
    assert sum(seen.head.startswith(b"POST") for seen in engine.seen) == 35
    metrics = await made.control.ask(MetricsQuery())
    assert metrics["external"] == [[f"localhost:{cloud.port}", "ok", 25]]
    assert ["tiny", "cloud", 25] in metrics["fallbacks"]
    engine.close()


async def in_process(policy: Policy, engine: FakeUpstream, capacity: int = 1) -> Gateway:
    return await started_gateway(policy=policy, endpoints=[endpoint(engine, capacity=capacity)])


async def ended(gateway: Gateway) -> None:
    gateway.stop(0.0)
    await gateway.stopped.wait()


async def test_tenant_that_does_not_allow_it_waits(provider: MakeProvider) -> None:
    slow = SlowEngine()
    engine = FakeUpstream(slow)
    await engine.start()
    cloud = await provider()
    policy = open_policy(model(cloud.url), external=False, overflow={"tiny": Overflow(to="cloud", after_s=0.1)})
    gateway = await in_process(policy, engine)
    requests = asyncio.create_task(many(gateway.port, 5, {**ASK, "model": "tiny"}))
    await asyncio.sleep(1.0)
    slow.go.set()
    assert {response.status for response in await requests} == {200}
    assert not cloud.seen
    await ended(gateway)
    engine.close()


async def test_full_queue_overflows_at_once(provider: MakeProvider) -> None:
    slow = SlowEngine()
    engine = FakeUpstream(slow)
    await engine.start()
    cloud = await provider()
    overflow = {"tiny": Overflow(to="cloud", after_s=600.0)}
    gateway = await in_process(
        open_policy(model(cloud.url), overflow=overflow, queue=QueuePolicy(max_waiting=0)), engine
    )
    requests = asyncio.create_task(many(gateway.port, 5, {**ASK, "model": "tiny"}))
    async with asyncio.timeout(DEADLINE_S):
        while len(cloud.seen) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    slow.go.set()
    assert {response.status for response in await requests} == {200}
    assert len(cloud.seen) == 4
    await ended(gateway)
    engine.close()


async def test_overflow_that_fails_waits_for_its_own_model_again(provider: MakeProvider) -> None:
    slow = SlowEngine()
    engine = FakeUpstream(slow)
    await engine.start()
    cloud = await provider(answers("500 Error", document=error("broken")))
    policy = open_policy(model(cloud.url), overflow={"tiny": Overflow(to="cloud", after_s=0.1)})
    gateway = await in_process(policy, engine)
    requests = asyncio.create_task(many(gateway.port, 3, {**ASK, "model": "tiny"}))
    async with asyncio.timeout(DEADLINE_S):
        while not cloud.seen:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    slow.go.set()
    assert {response.status for response in await requests} == {200}
    assert sum(seen.head.startswith(b"POST") for seen in engine.seen) == 3
    await ended(gateway)
    engine.close()


async def test_model_of_the_fleet_takes_overflow_while_it_has_room(make_upstream: Any) -> None:
    slow = SlowEngine()
    engine, other = await make_upstream(slow), await make_upstream()
    policy = Policy(overflow={"tiny": Overflow(to="small", after_s=0.1)})
    endpoints = [endpoint(engine, capacity=1), endpoint(other, model="small", capacity=1)]
    gateway = await started_gateway(policy=policy, endpoints=endpoints)
    requests = asyncio.create_task(many(gateway.port, 3, {**ASK, "model": "tiny"}))
    async with asyncio.timeout(DEADLINE_S):
        while len(other.seen) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    slow.go.set()
    found = await requests
    assert {response.status for response in found} == {200}
    assert sum("x-longboat-overflow" in response.headers for response in found) == 2
    await ended(gateway)


async def test_money_of_a_day_is_written_down(provider: MakeProvider) -> None:
    async def script(seen: Seen) -> None:
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":20}}\n\n'
        await seen.send(STREAM_HEAD + delta("a") + chunk(usage) + END)

    cloud = await provider(script)
    gateway = await started_gateway(policy=open_policy(model(cloud.url, price=PRICE)))
    found = await many(gateway.port, 20, {**ASK, "stream": True})
    assert {response.status for response in found} == {200}
    assert not any(b'"usage"' in response.body for response in found)  # the gateway asked for it, not the client
    rows = settled(gateway).usage.report(1, gateway.state.clock.unix_s())
    assert [(row.model, row.requests, row.sent, row.cost_nanos) for row in rows] == [("cloud", 20, 20, 20 * 45_000)]
    await ended(gateway)


def _command_lines() -> list[bytes]:
    """Return the command line of every process, of those that ended meanwhile nothing."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


async def test_the_key_is_nowhere(start: Start, provider: MakeProvider, tmp_path: Path) -> None:
    """It is in no log, no status and no process list, whatever the provider answers."""
    cloud = await provider(answers("401 Unauthorized", document=error(f"key {SECRET} is wrong")))
    log = tmp_path / "access.log"
    policy = open_policy(model(cloud.url, price=PRICE, limits=budget(requests_per_day=100)))
    made = await running(start, policy, access_log=str(log), state_folder=str(tmp_path / "state"))
    bodies = [response.body for response in await many(made.port, 20, ASK)]
    cloud.script = answers()
    bodies += [response.body for response in await many(made.port, 20, ASK)]
    assert cloud.seen[0].header("authorization") == f"Bearer {SECRET}"
    queries = (MetricsQuery(), UsageQuery(1))
    told = [json.dumps(await made.control.state()), *[json.dumps(await made.control.ask(query)) for query in queries]]
    processes = b"".join(await asyncio.to_thread(_command_lines))
    made.process.terminate()
    await made.ended()
    assert made.process.stdout is not None
    assert made.process.stderr is not None
    output = await made.process.stdout.read() + await made.process.stderr.read()
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["replica"] for line in lines} == {f"localhost:{cloud.port}"}
    for text in (*bodies, output, *files, processes, *(word.encode() for word in told)):
        assert SECRET.encode() not in text
    assert os.environ["LB_TEST_PROVIDER_KEY"] == SECRET


@pytest.mark.skipif(not PROGRAMS, reason="no redis-server is here: install the development requirements")
async def test_gateways_of_several_nodes_share_a_limit_in_redis(
    provider: MakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_server.wait_for_redis(monkeypatch)
    cloud = await provider()
    server = redis_server.RedisServer(next(iter(PROGRAMS.values())), tmp_path)
    server.start()
    try:
        policy = open_policy(model(cloud.url, limits=budget(requests_per_day=60)), num_gateways=2)
        settings = {"redis_url": server.url, "fleet": "f"}
        gateways = [await started_gateway(policy=policy, settings=settings) for _ in range(2)]
        halves = await asyncio.gather(*(many(gateway.port, 70, ASK) for gateway in gateways))
        counts = collections.Counter(response.status for half in halves for response in half)
        assert counts == {200: 60, 429: 80}
        assert len(cloud.seen) == 60
        for gateway in gateways:
            await ended(gateway)
    finally:
        server.kill()
