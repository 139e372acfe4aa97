"""Streams that make room for a better class, at real (fake) engines: their clients see a pause and nothing else."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from engine_lab import CHAT, Engine, Json, Reader, Stream, streamed
from gateway_lab import EVEN, eventually, keyed, settled, table

from longboat.core.policy import PreemptionPolicy, QueuePolicy, ResumePolicy, TenantPolicy
from longboat.core.states import ResumeLevel
from longboat.gateway.process.server import Gateway
from longboat.gateway.records.recent import timeline

PATH = "/v1/chat/completions"
RULES = PreemptionPolicy(wait_s=0.05, run_s=0.1, max_pauses=2)
FAST, SLOW = TenantPolicy(name="fast", priority=0), TenantPolicy(name="slow", priority=2)


async def gateway_with(
    make_gateway: Any, engines: list[Engine], *, slots: int, rules: PreemptionPolicy = RULES, **changes: Any
) -> tuple[Gateway, str, str]:
    """A gateway before these engines, and the headers of a better and of a worse class."""
    queue = QueuePolicy(preemption=rules, headroom_ratio=0.0)
    policy, headers = keyed(FAST, SLOW, routing=EVEN, queue=queue, resume=ResumePolicy(wait_s=30))
    gateway = await make_gateway(policy=policy)
    endpoints = [engine.endpoint(f"r{i}", capacity=slots, **changes) for i, engine in enumerate(engines)]
    gateway.state.offer_table("f", table(*endpoints))
    return gateway, headers[0], headers[1]


def chat(seed: int, max_tokens: int = 60) -> Json:
    return {**CHAT, "seed": seed, "temperature": 1, "max_tokens": max_tokens, "stream_options": {"include_usage": True}}


def series(gateway: Gateway, tenant: str) -> Json:
    rows = settled(gateway).metrics.snapshot()["series"]
    return next(row for row in rows if row["tenant"] == tenant)


def same(paused: Stream, whole: Stream) -> None:
    assert (paused.status, paused.done) == (200, True), paused.body[-300:]
    assert paused.meaning() == whole.meaning()


async def test_stream_makes_room_at_any_token_and_goes_on_where_it_was(pair: list[Engine], make_gateway: Any) -> None:
    gateway, fast, slow = await gateway_with(make_gateway, pair[:1], slots=1)
    whole = await streamed(gateway, PATH, chat(5, 200), slow)
    reader = Reader(gateway)
    await reader.ask(PATH, chat(5, 200), slow)
    await reader.events(20)
    answer = await streamed(gateway, PATH, chat(6, 10), fast)
    assert answer.done and not reader.stream.done
    same(await reader.rest(), whole)
    assert (series(gateway, "slow")["preemptions"], series(gateway, "slow")["preempted"]) == (1, 0)
    assert ["preempted", "resumed", 1] in gateway.state.metrics.snapshot()["resumes"]
    events = timeline(gateway.state.accounting.recent.get(reader.stream.headers["x-request-id"]))["events"]
    pause = next(event for event in events if event["event"] == "pause")
    assert pause["reason"] == "a request of class 0 gets its slot"


async def test_hundreds_of_streams_make_room_and_none_is_lost_or_differs(pair: list[Engine], make_gateway: Any) -> None:
    gateway, fast, slow = await gateway_with(make_gateway, pair, slots=20)
    wholes = await asyncio.gather(*(streamed(gateway, PATH, chat(seed), slow) for seed in range(20)))
    dice = random.Random(5)

    async def urgent(seed: int) -> Stream:
        await asyncio.sleep(dice.uniform(0.0, 3.0))
        return await streamed(gateway, PATH, chat(seed % 20, 20), fast)

    runs = [streamed(gateway, PATH, chat(seed % 20), slow) for seed in range(200)]
    *found, urgents = await asyncio.gather(*runs, asyncio.gather(*(urgent(seed) for seed in range(150))))
    for number, stream in enumerate(found):
        same(stream, wholes[number % 20])
    assert all(stream.done for stream in urgents)
    rows = series(gateway, "slow")
    assert rows["preemptions"] >= 20 and rows["preempted"] == rows["waiting"] == rows["in_flight"] == 0
    assert {result for _, result, _ in gateway.state.metrics.snapshot()["resumes"]} == {"resumed"}
    pool = gateway.state.table.pools()[0]
    assert (pool.in_use, pool.num_waiting, pool.scheduler.num_paused) == (0, 0, 0)


async def test_stream_is_paused_so_many_times_and_then_runs_to_its_end(pair: list[Engine], make_gateway: Any) -> None:
    gateway, fast, slow = await gateway_with(make_gateway, pair[:1], slots=1)
    whole = await streamed(gateway, PATH, chat(5, 150), slow)
    running = asyncio.create_task(streamed(gateway, PATH, chat(5, 150), slow))
    await asyncio.sleep(0.3)
    for seed in range(4):
        await streamed(gateway, PATH, chat(seed, 5), fast)
        await asyncio.sleep(0.2)
    same(await running, whole)
    assert series(gateway, "slow")["preemptions"] == RULES.max_pauses
    assert series(gateway, "fast")["preemptions_denied"] >= 1


async def test_stream_of_an_engine_that_cannot_take_tokens_over_keeps_its_slot(
    pair: list[Engine], make_gateway: Any
) -> None:
    for level in (ResumeLevel.NONE, ResumeLevel.REPLAY):
        gateway, fast, slow = await gateway_with(make_gateway, pair[:1], slots=1, resume=level)
        reader = Reader(gateway)
        await reader.ask(PATH, chat(5, 60), slow)
        await reader.events(20)
        await streamed(gateway, PATH, chat(6, 5), fast)
        await reader.rest()
        assert series(gateway, "slow")["preemptions"] == 0


async def test_client_that_leaves_during_the_pause_leaves_nothing_behind(pair: list[Engine], make_gateway: Any) -> None:
    gateway, fast, slow = await gateway_with(make_gateway, pair[:1], slots=1)
    reader = Reader(gateway)
    await reader.ask(PATH, chat(5, 200), slow)
    await reader.events(20)
    urgent = asyncio.create_task(streamed(gateway, PATH, chat(6, 60), fast))
    await eventually(lambda: series(gateway, "slow")["preempted"] == 1, "the stream is paused")
    reader.close()
    await eventually(lambda: series(gateway, "slow")["in_flight"] == 0, "it left")
    assert (await urgent).done
    assert (gateway.state.table.pools()[0].in_use, series(gateway, "slow")["waiting"]) == (0, 0)


async def test_stream_without_a_slot_is_not_paused(pair: list[Engine], make_gateway: Any) -> None:
    gateway, _, slow = await gateway_with(make_gateway, pair[:1], slots=1)
    reader = Reader(gateway)
    await reader.ask(PATH, chat(5, 60), slow)
    await reader.events(20)
    pool = gateway.state.table.pools()[0]
    (visit,) = pool.upstreams[0].streams
    ticket = visit.ticket
    assert ticket is not None
    pool.scheduler.release(ticket, now_s=time.monotonic())  # as it is once it runs on without a slot
    assert visit.ticket is None
    assert (await reader.rest()).done


async def test_paused_streams_wait_for_their_engine_while_it_is_lost(pair: list[Engine], make_gateway: Any) -> None:
    gateway, fast, slow = await gateway_with(make_gateway, pair[:1], slots=1)
    whole = await streamed(gateway, PATH, chat(5, 120), slow)
    reader = Reader(gateway)
    await reader.ask(PATH, chat(5, 120), slow)
    await reader.events(20)
    urgent = asyncio.create_task(streamed(gateway, PATH, chat(6, 200), fast))
    await eventually(lambda: series(gateway, "slow")["preempted"] == 1, "the stream is paused")
    (upstream,) = gateway.state.table.upstreams()
    upstream.mark_down("no beats", moves=False)
    await asyncio.sleep(0.6)  # more than two sweeps
    assert (series(gateway, "slow")["preempted"], upstream.outstanding) == (1, 1)
    upstream.mark_up()
    same(await reader.rest(), whole)
    assert (await urgent).done


async def test_paused_stream_ends_at_the_replica_that_drains_if_it_is_the_last_of_its_revision(
    pair: list[Engine], make_gateway: Any
) -> None:
    gateway, fast, slow = await gateway_with(make_gateway, pair[:1], slots=1)
    whole = await streamed(gateway, PATH, chat(5, 120), slow)
    reader = Reader(gateway)
    await reader.ask(PATH, chat(5, 120), slow)
    await reader.events(20)
    urgent = asyncio.create_task(streamed(gateway, PATH, chat(6, 100), fast))
    await eventually(lambda: series(gateway, "slow")["preempted"] == 1, "the stream is paused")
    leaving = pair[0].endpoint("r0", capacity=1, ready=False)
    gateway.state.offer_table("f", table(leaving, pair[1].endpoint("r1", capacity=1, revision="two"), version=2))
    same(await reader.rest(), whole)
    assert (await urgent).done


async def test_stream_that_outlived_its_models_absence_gives_back_the_slot_that_it_had(
    pair: list[Engine], make_gateway: Any
) -> None:
    gateway, fast, slow = await gateway_with(make_gateway, pair, slots=1)
    whole = await streamed(gateway, PATH, chat(5, 200), slow)
    reader = Reader(gateway)
    await reader.ask(PATH, chat(5, 200), slow)
    await reader.events(5)
    endpoints = [engine.endpoint(f"r{i}", capacity=1) for i, engine in enumerate(pair)]
    for version, models in ((2, ("other",)), (3, ("tiny",))):
        gateway.state.offer_table("f", table(*endpoints[: 2 * version - 4], version=version, models=models))
    host = next(i for i in (0, 1) if reader.stream.headers["x-longboat-replica"] == f"r{i}")
    await pair[host].fault("break", after_tokens=30)
    await reader.events(60)  # the other engine continues it now
    longer = Reader(gateway)  # it costs more to continue, so the first stream makes room
    await longer.ask(PATH, {**chat(7, 200), "messages": [{"role": "user", "content": "row " * 500}]}, slow)
    await longer.events(20)
    urgent = await asyncio.gather(*(streamed(gateway, PATH, chat(seed, 20), fast) for seed in range(2)))
    assert all(each.done for each in urgent)
    same(await reader.rest(), whole)
    assert (await longer.rest()).done
    events = timeline(settled(gateway).accounting.recent.get(reader.stream.headers["x-request-id"]))["events"]
    assert "pause" in [event["event"] for event in events]
    pool = gateway.state.table.pool("tiny")
    assert pool is not None
    assert pool.in_use == 0
