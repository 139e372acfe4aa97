"""A client whose gateway died gets the rest of its stream from another."""

from __future__ import annotations

import asyncio
import json
import re
import time
from itertools import product
from typing import Any

import pytest
from engine_lab import CHAT, REQUESTS, Engine, Json, Reader, Stream, streamed
from fake_upstream import STREAM_HEAD, Seen, chunk, event
from gateway_lab import endpoint, eventually, post_bytes, settled, table

from longboat.core.policy import Policy, ResumePolicy
from longboat.core.states import ResumeLevel
from longboat.gateway.process.server import Gateway

POLICY = Policy(resume=ResumePolicy(seeds=False), salt="pepper")
TWO: tuple[str, Json] = ("/v1/chat/completions", {**CHAT, "seed": 5, "n": 2, "max_tokens": 40, "logprobs": True})
STEPS = ((1, 1, 1, 1), (2, 3, 4, 5), (5, 30, 1, 9), (17, 17, 17, 17), (40, 1, 39, 2))
KINDS = ["usage", "several", "logprobs", "completion", "completions", "message", "response"]


async def gateway_before(make_gateway: Any, engines: list[Engine], policy: Policy = POLICY, **changes: Any) -> Gateway:
    gateway: Gateway = await make_gateway(policy=policy)
    gateway.state.offer_table("f", table(*(e.endpoint(f"r{i}", **changes) for i, e in enumerate(engines))))
    return gateway


async def waiting_gateway(make_gateway: Any) -> Gateway:
    """Its model had a replica not long ago, and has none now; it says soon that it waits."""
    resume = ResumePolicy(seeds=False, wait_s=60, comment_s=0.2)
    gateway: Gateway = await make_gateway(policy=Policy(resume=resume, salt="pepper"))
    return gateway


async def beginning(gateway: Gateway, path: str, document: Json, num_events: int, headers: str = "") -> Stream:
    """What a client has of a stream that it lost: whole events."""
    reader = Reader(gateway)
    stream = await reader.ask(path, document, headers)
    await reader.events(num_events)
    reader.close()
    stream.body = stream.body[: stream.body.rindex(b"\n\n") + 2]
    return stream


def comes_back(stream: Stream) -> str:
    return f"last-event-id: {stream.event_ids[-1]}\r\nx-longboat-resume: {stream.headers['x-longboat-resume']}\r\n"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("num_events", [1, 5, 23])
async def test_another_gateway_gives_exactly_the_rest(
    name: str, num_events: int, pair: list[Engine], make_gateway: Any
) -> None:
    path, document = REQUESTS[name]
    one, other = [await gateway_before(make_gateway, pair) for _ in range(2)]
    whole = await streamed(one, path, document)
    had = await beginning(one, path, document, num_events)
    rest = await streamed(other, path, document, comes_back(had))
    assert (rest.status, rest.done) == (200, True)
    both = Stream(200, {}, had.body + rest.body, True)
    if name != "several":
        assert len(both.events) == len(whole.events)
        assert both.event_ids == whole.event_ids or "." in whole.event_ids[-1]
    assert len(both.ids) == len(whole.ids)
    assert both.meaning() == whole.meaning()


@pytest.mark.parametrize(
    ("name", "steps"), [*product(("two", "several", "completions"), STEPS), *product(("response",), STEPS[:-1])]
)
async def test_client_may_come_back_again_and_again(
    name: str, steps: tuple[int, ...], pair: list[Engine], make_gateway: Any
) -> None:
    gateways = [await gateway_before(make_gateway, pair) for _ in range(2)]
    path, document = TWO if name == "two" else REQUESTS[name]
    whole = await streamed(gateways[0], path, document)
    has, headers = Stream(), ""
    for number, step in enumerate(steps):
        part = await beginning(gateways[number % 2], path, document, step, headers)
        has.body += part.body
        headers = comes_back(Stream(200, part.headers, has.body))
    rest = await streamed(gateways[0], path, document, headers)
    assert (rest.status, rest.done) == (200, True)
    assert Stream(200, {}, has.body + rest.body, True).meaning() == whole.meaning()


@pytest.mark.parametrize("name", ["usage", "several", "message", "response"])
async def test_head_before_any_engine_answered_is_followed_by_the_token(
    name: str, pair: list[Engine], make_gateway: Any
) -> None:
    path, document = REQUESTS[name]
    one, other = await waiting_gateway(make_gateway), await gateway_before(make_gateway, pair)
    whole = await streamed(other, path, document)
    reader = Reader(one)
    had = await reader.ask(path, document)
    assert (had.status, "x-longboat-resume" in had.headers) == (200, False)
    one.state.offer_table("f", table(*(engine.endpoint(f"r{i}") for i, engine in enumerate(pair)), version=2))
    await reader.events(9)
    reader.close()
    had.body = had.body[: had.body.rindex(b"\n\n") + 2]
    comments = re.findall(rb"^: x-longboat-resume: (.*)\n\n", had.body, re.MULTILINE)
    assert len(comments) == 1
    had.headers["x-longboat-resume"] = comments[0].decode()
    rest = await streamed(other, path, document, comes_back(had))
    assert (rest.status, rest.done) == (200, True)
    assert Stream(200, {}, had.body + rest.body, True).meaning() == whole.meaning()


async def test_client_that_only_waited_has_nothing_to_come_back_for(
    pair: list[Engine], make_gateway: Any, connect: Any
) -> None:
    path, document = REQUESTS["usage"]
    one, other = await waiting_gateway(make_gateway), await gateway_before(make_gateway, pair)
    whole = await streamed(other, path, document)
    client = await connect(one)
    client.send(post_bytes(document, path))
    status, headers = await client.head()
    assert (status, "x-longboat-resume" in headers) == (200, False)
    assert re.fullmatch(rb"([0-9a-f]+\r\n: waiting\n\n\r\n)+", await client.read_some())
    client.abort()
    assert (await streamed(other, path, document)).meaning() == whole.meaning()


async def test_token_without_a_point_gives_all_under_the_same_identity(pair: list[Engine], make_gateway: Any) -> None:
    """The client has the head of its answer, and no event of it."""
    policy = Policy(salt="pepper")
    one, other = [await gateway_before(make_gateway, pair, policy) for _ in range(2)]
    path, document = "/v1/chat/completions", {**CHAT, "max_tokens": 20, "temperature": 1, "n": 2}
    reader = Reader(one)
    token = (await reader.ask(path, document)).headers["x-longboat-resume"]
    whole = await reader.rest()
    again = await streamed(other, path, document, f"x-longboat-resume: {token}\r\n")
    assert (again.meaning(), again.ids) == (whole.meaning(), whole.ids)


async def test_seed_of_the_first_gateway_is_used_again(pair: list[Engine], make_gateway: Any) -> None:
    policy = Policy(salt="pepper")
    one, other = [await gateway_before(make_gateway, pair, policy) for _ in range(2)]
    path, document = "/v1/chat/completions", {**CHAT, "max_tokens": 40, "temperature": 1}
    had = await beginning(one, path, document, 12)
    seed = re.search(rb'"fake-seed-([0-9]+)"', had.body)
    rest = await streamed(other, path, document, comes_back(had))
    assert seed is not None
    whole = await streamed(one, path, {**document, "seed": int(seed[1])})
    assert Stream(200, {}, had.body + rest.body, True).meaning() == whole.meaning()


async def test_what_the_client_has_is_not_paid_again(pair: list[Engine], make_gateway: Any) -> None:
    one, other = [await gateway_before(make_gateway, pair) for _ in range(2)]
    path, document = REQUESTS["usage"]
    had = await beginning(one, path, document, 12)
    tokens = int(had.event_ids[-1])
    await streamed(other, path, document, comes_back(had))
    record = settled(other).recent.newest()[0]
    assert (record.prompt_tokens, record.completion_tokens) == (0, 40 - tokens)


async def test_rest_survives_the_death_of_its_engine_too(pair: list[Engine], make_gateway: Any) -> None:
    one, other = [await gateway_before(make_gateway, pair) for _ in range(2)]
    path, document = REQUESTS["usage"]
    whole = await streamed(one, path, document)
    had = await beginning(one, path, document, 8)
    await pair[0].fault("break", after_tokens=3)
    await pair[1].fault("break", after_tokens=20)
    rest = await streamed(other, path, document, comes_back(had))
    assert Stream(200, {}, had.body + rest.body, True).meaning() == whole.meaning()
    for engine in pair:
        await engine.fault("none")


async def test_engine_that_refuses_the_tokens_for_a_client_that_came_back_is_asked_otherwise(
    pair: list[Engine], make_gateway: Any, make_upstream: Any
) -> None:
    """Its first answer has an event across the client's point, so it is asked again with the tokens before it."""
    path, document = REQUESTS["usage"]
    had = await beginning(await gateway_before(make_gateway, pair), path, document, 3)
    assert had.event_ids[-1] == "2"
    ways = []

    async def script(seen: Seen) -> None:
        length = int(seen.header("x-longboat-carry") or 0)
        ways.append(json.loads(seen.body[:length])["mode"] if length else "")
        if ways[-1] == "carried":
            await seen.send(b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n{}")
            return
        told = [b": ids 0 1,2,3\nid: 3\n"] if not ways[-1] else [b": ids 0 1,2\nid: 2\n", b": ids 0 3\nid: 3\n"]
        await seen.send(STREAM_HEAD[:-2] + b"x-longboat-journal: 1\r\n\r\n")
        for line in told:
            await seen.send(chunk(line + event(line[-2:-1].decode())))
        await seen.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    up = endpoint(await make_upstream(script), resume=ResumeLevel.CARRIED, revision="one")
    other = await make_gateway(policy=POLICY, endpoints=[up])
    rest = await streamed(other, path, document, comes_back(had))
    assert (rest.status, rest.event_ids, rest.done) == (200, ["3"], True)
    assert ways == ["", "carried", "replay"]


async def test_token_opens_no_other_request(pair: list[Engine], make_gateway: Any) -> None:
    gateway = await gateway_before(make_gateway, pair)
    path, document = REQUESTS["usage"]
    had = await beginning(gateway, path, document, 8)
    for changed, headers in (
        ({**document, "max_tokens": 41}, comes_back(had)),
        (document, "last-event-id: 3\r\nx-longboat-resume: no.token\r\n"),
        (document, comes_back(had).replace("last-event-id: ", "last-event-id: x")),
    ):
        answer = await streamed(gateway, path, changed, headers)
        assert (answer.status, b"bad_resume" in answer.body) == (400, True)


async def test_rest_of_a_revision_that_is_gone_is_refused(pair: list[Engine], make_gateway: Any) -> None:
    one = await gateway_before(make_gateway, pair)
    other = await gateway_before(make_gateway, pair, revision="two")
    path, document = REQUESTS["usage"]
    had = await beginning(one, path, document, 8)
    answer = await streamed(other, path, document, comes_back(had))
    assert (answer.status, b"resume_gone" in answer.body) == (409, True)
    assert b"is of another revision now" in answer.body


@pytest.mark.parametrize("changes", [{"resume": ResumeLevel.NONE}, {"resume": ResumeLevel.NONE, "revision": ""}])
async def test_rest_waits_for_a_replica_whose_proof_is_late(
    changes: dict[str, Any], pair: list[Engine], make_gateway: Any
) -> None:
    """A replica that came a moment ago serves before it has proved that it resumes: the model did not change."""
    policy = Policy(resume=ResumePolicy(seeds=False, wait_s=60), salt="pepper")
    one = await gateway_before(make_gateway, pair)
    other = await gateway_before(make_gateway, pair, policy, **changes)
    path, document = REQUESTS["usage"]
    whole = await streamed(one, path, document)
    had = await beginning(one, path, document, 8)
    coming_back = asyncio.create_task(streamed(other, path, document, comes_back(had)))
    pool = other.state.table.pool("tiny")
    assert pool is not None
    await eventually(lambda: coming_back.done() or pool.parked, "it waits")
    other.state.offer_table("f", table(*(engine.endpoint(f"r{i}") for i, engine in enumerate(pair)), version=2))
    rest = await coming_back
    assert rest.status == 200
    assert Stream(200, {}, had.body + rest.body, True).meaning() == whole.meaning()


async def test_last_event_id_alone_changes_nothing(pair: list[Engine], make_gateway: Any) -> None:
    gateway = await gateway_before(make_gateway, pair)
    path, document = REQUESTS["usage"]
    whole = await streamed(gateway, path, document)
    assert (await streamed(gateway, path, document, "last-event-id: 5\r\n")).meaning() == whole.meaning()


async def test_client_that_was_given_a_head_before_the_answer_can_come_back_too(make_gateway: Any) -> None:
    engine = Engine()
    engine.start()
    policy = Policy(resume=ResumePolicy(comment_s=0.3), salt="pepper")
    try:
        one, other = [await gateway_before(make_gateway, [engine], policy) for _ in range(2)]
        path, document = REQUESTS["seeded"]
        whole = await streamed(other, path, document)
        engine.kill()
        reading = asyncio.create_task(beginning(one, path, document, 9))
        await asyncio.sleep(1.0)
        await asyncio.to_thread(engine.start)
        had = await reading
        assert had.body.startswith(b": waiting\n\n")
        assert "x-longboat-resume" not in had.headers
        token = had.body.partition(b"\n: x-longboat-resume: ")[2].partition(b"\n")[0].decode()
        lines = f"last-event-id: {had.event_ids[-1]}\r\nx-longboat-resume: {token}\r\n"
        rest = await streamed(other, path, document, lines)
        both = Stream(200, {}, had.body + rest.body, True)
        assert (both.meaning(), len(both.ids)) == (whole.meaning(), len(whole.ids))
    finally:
        engine.kill()


def counted_tokens(gateway: Gateway) -> int:
    gateway.state.accounting.flush()
    return sum(row.completion_tokens for row in gateway.state.usage.report(1, time.time()))


async def test_client_that_says_it_has_more_than_there_is_pays_for_what_it_gets(
    pair: list[Engine], make_gateway: Any
) -> None:
    path, document = TWO
    gateway = await gateway_before(make_gateway, pair)
    had = await beginning(gateway, path, document, 2)
    await eventually(lambda: not settled(gateway).in_flight, "the first answer is over")
    token = f"x-longboat-resume: {had.headers['x-longboat-resume']}\r\n"
    for forged in ("999999999", "1.2.3"):  # other numbers of choices
        answer = await streamed(gateway, path, document, f"last-event-id: {forged}\r\n{token}")
        assert (answer.status, b"bad_resume" in answer.body) == (400, True)
    before = counted_tokens(gateway)
    await streamed(gateway, path, document, f"last-event-id: 0.999999999\r\n{token}")
    await eventually(lambda: not settled(gateway).in_flight, "the rest is over")
    assert counted_tokens(gateway) - before == 40
