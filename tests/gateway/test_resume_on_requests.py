"""Streams whose engine dies go on from another, and the client cannot tell."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_lab import CHAT, REQUESTS, Engine, Json, Reader, Stream, streamed
from fake_upstream import STREAM_HEAD, Seen, chunk, event
from gateway_lab import API_KEY, EVEN, RawClient, Response, endpoint, eventually, settled, table

from longboat.core.policy import Policy, ResumePolicy
from longboat.core.states import ResumeLevel
from longboat.gateway.process.server import Gateway
from longboat.gateway.records.recent import timeline
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Life, RankBeat

UNSEEDED = Policy(resume=ResumePolicy(seeds=False))
"""The fake engine's answer is then the same each time."""
POISONED = {**CHAT, "messages": [{"role": "user", "content": "drink poison now"}], "stream": False}


@pytest.fixture
def mortals() -> Iterator[Callable[..., Engine]]:
    """Makes engines that a test may kill."""
    made: list[Engine] = []

    def make(*options: str) -> Engine:
        engine = Engine(options=options or ("--itl-ms", "20"))
        engine.start()
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.signal(signal.SIGCONT)
        engine.kill()


async def fleet(make_gateway: Any, engines: list[Engine], *changes: Json, policy: Policy | None = None) -> Gateway:
    """A gateway before these engines. changes: of their endpoints, one after the other"""
    gateway: Gateway = await make_gateway(policy=dataclasses.replace(policy or UNSEEDED, routing=EVEN))
    values = [*changes, *({} for _ in engines)]
    endpoints = [engine.endpoint(f"r{i}", **values[i]) for i, engine in enumerate(engines)]
    gateway.state.offer_table("f", table(*endpoints))
    return gateway


def resumes(gateway: Gateway) -> dict[tuple[str, str], int]:
    return {(why, result): count for why, result, count in gateway.state.metrics.snapshot()["resumes"]}


def same(broken: Stream, whole: Stream) -> None:
    assert (broken.status, broken.done) == (200, True)
    assert len(broken.ids) == len(whole.ids)
    assert broken.meaning() == whole.meaning()


@pytest.mark.parametrize("name", REQUESTS)
async def test_answer_that_breaks_twice_reads_as_unbroken(name: str, pair: list[Engine], make_gateway: Any) -> None:
    path, document = REQUESTS[name]
    gateway = await fleet(make_gateway, pair, policy=UNSEEDED)
    whole = await streamed(gateway, path, document)
    await pair[0].fault("break", after_tokens=2)
    await pair[1].fault("break", after_tokens=5)
    same(await streamed(gateway, path, document), whole)
    assert resumes(gateway).get(("lost", "resumed"), 0) >= 1
    await asyncio.gather(*(engine.fault("none") for engine in pair))


async def test_request_without_a_seed_gets_one_and_goes_on_with_it(pair: list[Engine], make_gateway: Any) -> None:
    gateway = await fleet(make_gateway, pair, policy=Policy(resume=ResumePolicy(wait_s=30)))
    path, document = "/v1/chat/completions", {**CHAT, "max_tokens": 40, "temperature": 1}
    await pair[0].fault("break", after_tokens=5)
    await pair[1].fault("break", after_tokens=9)
    broken = await streamed(gateway, path, document)
    seed = re.search(rb'"fake-seed-([0-9]+)"', broken.body)
    assert seed is not None
    same(broken, await streamed(gateway, path, {**document, "seed": int(seed[1])}))


@pytest.mark.parametrize("kind", ["truncate", "garbage", "nonsense", "report"])
async def test_answer_of_an_engine_that_talks_nonsense_goes_on_elsewhere(
    kind: str, pair: list[Engine], make_gateway: Any
) -> None:
    gateway = await fleet(make_gateway, pair)
    for path, document in (REQUESTS["usage"], REQUESTS["message"], REQUESTS["response"]):
        whole = await streamed(gateway, path, document)
        for engine in pair:
            await engine.fault(kind, after_tokens=4)
        same(await streamed(gateway, path, document), whole)
        same(await streamed(gateway, path, document), whole)
    assert {result for _, result in resumes(gateway)} == {"resumed"}


async def test_replay_is_used_where_an_engine_has_no_more(mortals: Callable[..., Engine], make_gateway: Any) -> None:
    engines = [mortals("--itl-ms", "10", "--resume", "replay") for _ in range(2)]
    changes = [{"resume": ResumeLevel.REPLAY}] * 2
    gateway = await fleet(make_gateway, engines, *changes)
    path, document = REQUESTS["usage"]
    whole = await streamed(gateway, path, document)
    for engine in engines:
        await engine.fault("break", after_tokens=6)
    same(await streamed(gateway, path, document), whole)


async def test_refused_carry_falls_back_to_replay(mortals: Callable[..., Engine], make_gateway: Any) -> None:
    path, document = REQUESTS["usage"]
    engines = [mortals("--itl-ms", "10"), mortals("--itl-ms", "10", "--resume", "replay")]
    gateway = await fleet(make_gateway, engines)
    whole = await streamed(gateway, path, document)
    await engines[0].fault("break", after_tokens=6, times=9)
    for _ in range(2):
        same(await streamed(gateway, path, document), whole)


async def test_stream_of_an_engine_without_a_journal_ends_honestly(pair: list[Engine], make_gateway: Any) -> None:
    changes = [{"resume": ResumeLevel.NONE}] * 2
    gateway = await fleet(make_gateway, pair, *changes)
    for engine in pair:
        await engine.fault("break", after_tokens=4)
    path, document = REQUESTS["usage"]
    broken = await streamed(gateway, path, document)
    assert broken.events[-1]["error"]["code"] == "engine_lost"
    assert broken.done
    assert b"\nid: " not in broken.body
    await asyncio.gather(*(engine.fault("none") for engine in pair))


async def test_revisions_do_not_mix_in_one_stream(pair: list[Engine], make_gateway: Any) -> None:
    policy = Policy(resume=ResumePolicy(seeds=False, wait_s=0.5))
    gateway = await fleet(make_gateway, pair, {"revision": "one"}, {"revision": "two"}, policy=policy)
    for engine in pair:
        await engine.fault("break", after_tokens=4, times=20)
    path, document = REQUESTS["usage"]
    broken = await streamed(gateway, path, document)
    replicas = {attempt.replica for attempt in settled(gateway).recent.newest()[0].attempts}
    assert len(replicas) == 1
    assert broken.done
    await asyncio.gather(*(engine.fault("none") for engine in pair))


async def test_stopped_engine_is_noticed_and_its_answers_go_on(
    mortals: Callable[..., Engine], make_gateway: Any
) -> None:
    engines = [mortals(), mortals()]
    gateway = await fleet(make_gateway, engines)
    path, document = "/v1/chat/completions", {**CHAT, "max_tokens": 150}
    whole = await streamed(gateway, path, document)
    readers = [Reader(gateway) for _ in range(4)]
    for reader in readers:
        await reader.ask(path, document)
        await reader.events(5)
    engines[0].signal(signal.SIGSTOP)
    late = [asyncio.create_task(streamed(gateway, path, document)) for _ in range(2)]
    for reader in readers:
        same(await reader.rest(), whole)
    for task in late:
        same(await task, whole)
    assert resumes(gateway) == {("silent", "resumed"): 2}
    first = gateway.state.table.upstreams()[0]
    assert not first.ready
    engines[0].signal(signal.SIGCONT)
    await eventually(lambda: first.ready, "the engine is found again")


async def test_streams_and_new_requests_wait_until_an_engine_is_there_again(
    mortals: Callable[..., Engine], make_gateway: Any
) -> None:
    engine = mortals()
    policy = Policy(resume=ResumePolicy(seeds=False, comment_s=0.3))
    gateway = await fleet(make_gateway, [engine], policy=policy)
    path, document = REQUESTS["usage"]
    whole = await streamed(gateway, path, document)
    running = Reader(gateway)
    await running.ask(path, document)
    await running.events(8)
    engine.kill()
    waiting = asyncio.create_task(streamed(gateway, path, document))
    whole_answer = asyncio.create_task(posted(gateway, {**document, "stream": False, "stream_options": None}))
    await asyncio.sleep(1.0)
    await asyncio.to_thread(engine.start)
    for stream in (await running.rest(), await waiting):
        same(stream, whole)
        assert b": waiting\n\n" in stream.body
    response = await whole_answer
    assert (response.status, response.json()["usage"]["completion_tokens"]) == (200, 40)
    assert gateway.state.in_flight == 0


async def test_replacement_with_another_address_takes_streams_up_at_once(
    mortals: Callable[..., Engine], make_gateway: Any
) -> None:
    engine = mortals()
    gateway = await fleet(make_gateway, [engine])
    path, document = REQUESTS["usage"]
    whole = await streamed(gateway, path, document)
    running = Reader(gateway)
    await running.ask(path, document)
    await running.events(8)
    engine.kill()
    gateway.state.offer_table("f", table(version=2))
    another = await asyncio.to_thread(mortals)
    gateway.state.offer_table("f", table(another.endpoint("r9"), version=3))
    same(await running.rest(), whole)


async def test_streams_that_lose_a_replica_while_it_is_taken_out_are_counted_as_moved(
    mortals: Callable[..., Engine], pair: list[Engine], make_gateway: Any
) -> None:
    leaving = mortals()
    gateway = await fleet(make_gateway, [leaving])
    path, document = REQUESTS["usage"]
    whole = await streamed(gateway, path, document)
    running = Reader(gateway)
    await running.ask(path, document)
    await running.events(5)
    gateway.state.table.upstreams()[0].leaving = True  # told, and its answers had no time to move
    leaving.kill()
    gateway.state.offer_table("f", table(pair[1].endpoint("r1"), version=2))
    same(await running.rest(), whole)
    assert resumes(gateway) == {("moved", "resumed"): 1}


async def test_streams_of_a_replica_that_is_taken_out_move(pair: list[Engine], make_gateway: Any) -> None:
    gateway = await fleet(make_gateway, pair)
    path, document = "/v1/chat/completions", {**CHAT, "max_tokens": 100}
    whole = await streamed(gateway, path, document)
    readers = [Reader(gateway) for _ in range(4)]
    for reader in readers:
        await reader.ask(path, document)
        await reader.events(5)
    leaving = pair[0].endpoint("r0", ready=False, moving=True)
    gateway.state.offer_table("f", table(leaving, pair[1].endpoint("r1"), version=2))
    assert gateway.state.table.upstreams()[0].outstanding == 0
    for reader in readers:
        same(await reader.rest(), whole)
    assert resumes(gateway) == {("moved", "resumed"): 2}
    assert gateway.state.table.upstreams()[0].breaker.closed


async def test_stream_that_cannot_move_ends_where_it_runs(pair: list[Engine], make_gateway: Any) -> None:
    changes = [{"resume": ResumeLevel.NONE}] * 2
    gateway = await fleet(make_gateway, pair, *changes)
    path, document = REQUESTS["usage"]
    whole = await streamed(gateway, path, document)
    reader = Reader(gateway)
    await reader.ask(path, document)
    await reader.events(5)
    leaving = [engine.endpoint(f"r{i}", ready=False, moving=True) for i, engine in enumerate(pair)]
    gateway.state.offer_table("f", table(*leaving, version=2))
    same(await reader.rest(), whole)


async def test_wait_ends_at_its_limit(mortals: Callable[..., Engine], make_gateway: Any) -> None:
    engine = mortals()
    policy = Policy(resume=ResumePolicy(seeds=False, wait_s=1.5, comment_s=0.3))
    gateway = await fleet(make_gateway, [engine], policy=policy)
    path, document = REQUESTS["usage"]
    running = Reader(gateway)
    await running.ask(path, document)
    await running.events(8)
    engine.kill()
    new = asyncio.create_task(posted(gateway, {**document, "stream": False, "stream_options": None}))
    stream = await running.rest()
    assert stream.events[-1]["error"]["code"] == "engine_lost"
    assert (await new).status == 503
    assert resumes(gateway) == {("lost", "failed"): 1}
    assert gateway.state.in_flight == 0
    assert not [pool.parked for pool in gateway.state.table.pools() if pool.parked]


async def test_answer_that_is_no_stream_is_not_waited_for_until_its_client_gives_up(
    mortals: Callable[..., Engine], make_gateway: Any
) -> None:
    """Its client can be told nothing meanwhile, so it is told in time that it should come back."""
    engine = mortals()
    policy = Policy(resume=ResumePolicy(seeds=False, whole_wait_s=1.0))
    gateway = await fleet(make_gateway, [engine], policy=policy)
    document = {**CHAT, "max_tokens": 5, "stream": False}
    assert (await posted(gateway, document)).status == 200
    engine.kill()
    answer = await posted(gateway, document)
    assert (answer.status, answer.code) == (503, "model_not_ready")
    assert int(answer.headers["retry-after"]) >= 1
    events = timeline(settled(gateway).recent.newest()[0])["events"]
    (parked,) = [event for event in events if event["event"] == "park"]
    assert "No replica of 'tiny' responded" in parked["reason"]
    assert gateway.state.table.pools()[0].in_use == 0


async def test_deadline_holds_while_nobody_is_there(mortals: Callable[..., Engine], make_gateway: Any) -> None:
    engine = mortals()
    gateway = await fleet(make_gateway, [engine])
    await streamed(gateway, *REQUESTS["usage"])
    engine.kill()
    answer = await posted(gateway, {**CHAT, "stream": False}, "x-request-timeout: 1\r\n")
    assert (answer.status, answer.code) == (504, "deadline_passed")


async def test_client_that_leaves_while_it_waits_leaves_nothing(
    mortals: Callable[..., Engine], make_gateway: Any
) -> None:
    engine = mortals()
    gateway = await fleet(make_gateway, [engine])
    running = Reader(gateway)
    await running.ask(*REQUESTS["usage"])
    await running.events(8)
    engine.kill()
    pool = gateway.state.table.pool("tiny")
    assert pool is not None
    await eventually(lambda: pool.parked, "it waits")
    running.close()
    await eventually(lambda: not gateway.state.in_flight, "its account is closed")
    assert not pool.parked
    assert (pool.in_use, gateway.state.held_bytes) == (0, 0)


async def test_server_error_of_one_engine_is_not_the_answer(pair: list[Engine], make_gateway: Any) -> None:
    gateway = await fleet(make_gateway, pair)
    for engine in pair:
        await engine.fault("error")
    for document in ({**CHAT, "max_tokens": 5}, {**CHAT, "max_tokens": 5, "stream": False}):
        assert (await posted(gateway, document)).status == 200


async def test_whole_answer_that_broke_off_is_asked_for_again(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def breaks_off(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 40\r\n\r\n{half")
        await asyncio.sleep(0.1)
        raise ConnectionResetError

    gateway = await make_gateway(await make_upstream(breaks_off), await make_upstream())
    client = await connect(gateway)
    for _ in range(2):
        assert (await client.post({**CHAT, "stream": False})).body == b'{"answer": 4.2}'


async def test_poison_is_refused_after_two_deaths(mortals: Callable[..., Engine], make_gateway: Any) -> None:
    engines = [mortals("--itl-ms", "20", "--poison", "poison") for _ in range(3)]
    gateway = await fleet(make_gateway, engines)
    answer = await posted(gateway, POISONED)
    assert (answer.status, answer.code) == (422, "poison_request")
    again = await posted(gateway, POISONED)
    assert again.code == "poison_request"
    assert sum(engine.process is not None and engine.process.poll() is not None for engine in engines) == 2
    assert (await posted(gateway, {**CHAT, "max_tokens": 5, "stream": False})).status == 200


async def test_poison_is_found_on_connections_that_other_requests_used(
    mortals: Callable[..., Engine], make_gateway: Any
) -> None:
    engines = [mortals("--itl-ms", "20", "--ttft-ms", "100", "--poison", "poison") for _ in range(3)]
    gateway = await fleet(make_gateway, engines)
    await use_connections(gateway, engines)
    assert (await posted(gateway, POISONED)).code == "poison_request"


@pytest.mark.parametrize(("is_used", "late_s"), [(False, 0.8), (True, 0.0)])
async def test_request_is_not_blamed_for_engines_that_were_asked_to_end(
    mortals: Callable[..., Engine], make_gateway: Any, late_s: float, *, is_used: bool
) -> None:
    """late_s: how long after the end the heartbeats say so; is_used: the connections were used before"""
    engines = [mortals("--itl-ms", "20", "--ttft-ms", "100", "--poison", "poison") for _ in range(3)]
    ends_s: dict[int, float] = {}

    def told_by(engine: Engine) -> Beat:
        assert engine.process is not None
        ended, now_s = engine.process.poll() is not None, time.monotonic()
        ended = ended and now_s - ends_s.setdefault(engine.port, now_s) >= late_s
        return Beat(ranks=(RankBeat(node_rank=0, life=Life.ENDED if ended else Life.RUNS, on_request=ended),))

    sockets = [door_socket("127.0.0.1") for _ in engines]
    doors = [
        BeatDoor(socket, door_word(API_KEY), functools.partial(told_by, engine))
        for socket, engine in zip(sockets, engines, strict=True)
    ]
    changes = [{"beats": f"127.0.0.1:{socket.getsockname()[1]}"} for socket in sockets]
    for door in doors:
        await door.open()
    gateway = await fleet(make_gateway, engines, *changes)
    await eventually(lambda: all(door.num_clients for door in doors), "the gateway listens")
    if is_used:
        await use_connections(gateway, engines)
    answer = await posted(gateway, POISONED, "x-request-timeout: 9\r\n")
    assert answer.code != "poison_request"
    assert all(engine.process is not None and engine.process.poll() is not None for engine in engines)
    for door in doors:
        door.close()


async def use_connections(gateway: Gateway, engines: list[Engine]) -> None:
    """Leave the gateway with a kept connection to each engine."""
    harmless = {**CHAT, "max_tokens": 3, "stream": False}
    await asyncio.gather(*(posted(gateway, harmless) for _ in engines))
    assert all(upstream.connections._idle for upstream in gateway.state.table.upstreams())


async def test_answers_above_the_budget_queue_and_all_go_on(mortals: Callable[..., Engine], make_gateway: Any) -> None:
    engines = [mortals("--itl-ms", "20", "--ttft-ms", "100") for _ in range(2)]
    policy = Policy(resume=ResumePolicy(seeds=False, capacity_ratio=0.125))
    gateway = await fleet(make_gateway, engines, {"capacity": 8}, {"capacity": 8}, policy=policy)
    path, document = "/v1/chat/completions", {**CHAT, "max_tokens": 60}
    whole = await streamed(gateway, path, document)
    running = [asyncio.create_task(streamed(gateway, path, document)) for _ in range(12)]
    await asyncio.sleep(0.6)
    engines[0].kill()
    for task in running:
        same(await task, whole)
    assert resumes(gateway) == {("lost", "resumed"): 6}


async def test_usage_and_quota_are_counted_once(pair: list[Engine], make_gateway: Any) -> None:
    gateway = await fleet(make_gateway, pair)
    path, document = REQUESTS["greedy"]
    for engine in pair:
        await engine.fault("break", after_tokens=6)
    await streamed(gateway, path, document)
    record = settled(gateway).recent.newest()[0]
    assert (record.completion_tokens, record.outcome, record.retries) == (40, "ok", 2)
    series = settled(gateway).metrics.series("tiny", "anonymous")
    assert series.completion_tokens == 40
    assert (gateway.state.held_bytes, gateway.state.in_flight) == (0, 0)


async def posted(gateway: Gateway, document: Json, headers: str = "") -> Response:
    client = await RawClient.to(gateway)
    try:
        return await client.post({k: v for k, v in document.items() if v is not None}, headers=headers)
    finally:
        client.abort()


async def test_stream_whose_head_was_sent_early_is_resumed_as_any_other(
    mortals: Callable[..., Engine], make_gateway: Any
) -> None:
    """Its engine is silent for so long that it tells of its steps first, and its first event brings a token."""
    engine = mortals("--itl-ms", "20", "--ttft-ms", "1500")
    policy = Policy(resume=ResumePolicy(seeds=False, comment_s=0.3))
    gateway = await fleet(make_gateway, [engine], policy=policy)
    path, document = REQUESTS["completion"]
    whole = await streamed(gateway, path, document)
    engine.kill()
    reader = Reader(gateway)
    asking = asyncio.create_task(reader.ask(path, document))
    await asyncio.sleep(1.0)
    await asyncio.to_thread(engine.start)
    await asking
    await reader.events(8)
    engine.kill()
    await asyncio.to_thread(engine.start)
    same(await reader.rest(), whole)


async def test_engine_that_dies_behind_the_last_event_takes_nothing_away(make_upstream: Any, make_gateway: Any) -> None:
    async def dies(seen: Seen) -> None:
        head = STREAM_HEAD[:-2] + b"x-longboat-journal: 1\r\n\r\n"
        await seen.send(head + chunk(b": ids 0 7\nid: 1\n" + event("a")))
        await seen.send(chunk(b"data: [DONE]\n\n"))
        await asyncio.sleep(0.2)
        seen.writer.close()

    engine = await make_upstream(dies)
    gateway = await make_gateway(endpoints=[endpoint(engine, resume=ResumeLevel.CARRIED, revision="r")])
    client = await RawClient.to(gateway)
    answer = await client.post({"model": "tiny", "messages": [], "stream": True})
    assert answer.complete and answer.body.endswith(b"data: [DONE]\n\n") and b"error" not in answer.body
    assert settled(gateway).metrics.snapshot()["series"][0]["outcomes"] == {"ok": 1}


FAILED_RESPONSE = (
    b'event: response.failed\ndata: {"type":"response.failed","sequence_number":0,"response":{"id":"r",'
    b'"error":{"code":"server_error","message":"too long for the %b"}}}\n\n'
)
"""Some engines have no other code for what the client did wrong."""


@pytest.mark.parametrize(
    ("path", "report"),
    [
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"%b","message":"too long"}}\n\n'),
        ("/v1/chat/completions", b'data: {"error": {"message": "too long", "type": "%b", "code": 0}}\n\n'),
        ("/v1/responses", FAILED_RESPONSE),
    ],
)
async def test_a_report_that_the_request_is_at_fault_reaches_the_client(
    path: str, report: bytes, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    is_response = path == "/v1/responses"
    kinds = (
        [b"model's context length", b"x", b"x", b"available context size"]
        if is_response
        else [b"invalid_request_error", b"api_error", b"api_error", b"invalid_request_error"]
    )

    async def serve(seen: Seen) -> None:
        await seen.send(STREAM_HEAD[:-2] + b"x-longboat-journal: 1\r\n\r\n" + chunk(report % kinds.pop(0)) + chunk(b""))

    upstream = await make_upstream(serve)
    gateway = await make_gateway(policy=UNSEEDED)
    gateway.state.offer_table("f", table(endpoint(upstream, resume=ResumeLevel.CARRIED, revision="v")))
    client = await connect(gateway)
    for num_seen in (1, 4):  # another error is the engine's own: others are tried
        response = await client.post({**CHAT, "model": "tiny", "stream": True, "max_tokens": 5}, path)
        assert (response.status, len(upstream.seen)) == (200, num_seen)
        assert b"too long" in response.body
