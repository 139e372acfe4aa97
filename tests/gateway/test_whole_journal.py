"""Long answers that are no streams: the engine that takes one over goes on where the first one ended."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from engine_lab import CHAT, REQUESTS, TEXT, TOOLS, Engine, Json
from fake_upstream import STREAM_HEAD, Seen, chunk
from gateway_lab import RawClient, Response, endpoint, settled, table

from longboat.core.policy import Policy, ResumePolicy
from longboat.core.states import ResumeLevel
from longboat.gateway.process.server import Gateway
from longboat.gateway.resume.continuation.parts import ContinuationError
from longboat.gateway.resume.unstreamed_journal import WholeJournal

LONG: Json = {"stream": False, "max_tokens": 256, "temperature": 0}
WHOLE: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {**CHAT, **LONG}),
    "unlimited": ("/v1/chat/completions", {"model": "tiny", "messages": CHAT["messages"]}),
    "several": ("/v1/chat/completions", {**CHAT, **LONG, "n": 3, "seed": 5}),
    "logprobs": ("/v1/chat/completions", {**CHAT, **LONG, "logprobs": True, "top_logprobs": 2}),
    "tool": ("/v1/chat/completions", {**CHAT, **LONG, "tools": TOOLS, "tool_choice": "required"}),
    "completion": ("/v1/completions", {**TEXT, **LONG}),
    "message": ("/v1/messages", {**CHAT, **LONG, "system": "Speak."}),
    "response": ("/v1/responses", {**REQUESTS["response"][1], "stream": False}),
}
POLICY = Policy(resume=ResumePolicy(seeds=False, wait_s=30))
HEAD = STREAM_HEAD[:-2] + b"x-longboat-journal: 1\r\n\r\n"


async def asked(gateway: Gateway, path: str, document: Json) -> Response:
    return await (await RawClient.to(gateway)).post(document, path)


def bare(value: Any) -> Any:
    """An answer without the names and times that are new in each."""
    if isinstance(value, dict):
        own = ("id", "created", "created_at", "completed_at", "call_id")
        return {key: bare(item) for key, item in value.items() if key not in own}
    return [bare(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", WHOLE)
async def test_answer_that_two_engines_made_is_the_answer_of_one(
    name: str, pair: list[Engine], make_gateway: Any
) -> None:
    path, document = WHOLE[name]
    gateway = await make_gateway(policy=POLICY)
    gateway.state.offer_table("f", table(*(engine.endpoint(f"r{i}") for i, engine in enumerate(pair))))
    whole = await asked(gateway, path, document)
    assert whole.status == 200
    await pair[0].fault("break", after_tokens=5)
    await pair[1].fault("break", after_tokens=9)
    broken = await asked(gateway, path, document)
    await pair[0].fault("none")
    await pair[1].fault("none")
    assert bare(broken.json()) == bare(whole.json())
    assert list(broken.json()) == list(whole.json())
    assert broken.headers["content-type"] == whole.headers["content-type"] == "application/json"
    records = settled(gateway).recent.newest()
    assert records[0].completion_tokens == records[1].completion_tokens
    assert len(records[0].attempts) > 1


async def told(seen: Seen, *lines: bytes) -> None:
    await seen.send(HEAD)
    for line in lines:
        await seen.send(chunk(line + b"\n\n"))


class Engines:
    """The first breaks off after three tokens; what later ones do is the test's."""

    def __init__(self, *later: bytes) -> None:
        self.later = list(later)
        self.carried: list[Json | None] = []

    async def __call__(self, seen: Seen) -> None:
        length = int(seen.header("x-longboat-carry") or 0)
        self.carried.append(json.loads(seen.body[:length]) if length else None)
        assert json.loads(seen.body[length:])["model"] == "tiny"
        if len(self.carried) == 1:
            await told(seen, b": ids 0 7,8", b": steps 4", b": ids 0 9")
            seen.writer.transport.abort()
        else:
            await seen.send(self.later.pop(0))


def answer(text: str, status: int = 200) -> bytes:
    body = f'{{"said":"{text}"}}'.encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def gateway_before(make_gateway: Any, make_upstream: Any, engines: Engines, *revisions: str) -> Gateway:
    made = [
        endpoint(await make_upstream(engines), f"r{i}", resume=ResumeLevel.CARRIED, revision=revision)
        for i, revision in enumerate(revisions)
    ]
    gateway: Gateway = await make_gateway(policy=POLICY, endpoints=made)
    return gateway


async def test_next_engine_gets_all_tokens_but_the_last(make_gateway: Any, make_upstream: Any) -> None:
    engines = Engines(answer("all"))
    gateway = await gateway_before(make_gateway, make_upstream, engines, "one", "one")
    response = await asked(gateway, *WHOLE["chat"])
    assert (response.status, response.json()) == (200, {"said": "all"})
    assert engines.carried == [None, {"mode": "carried", "prior": [[7, 8]]}]


async def test_engine_of_another_revision_begins_anew(make_gateway: Any, make_upstream: Any) -> None:
    engines = Engines(answer("all"))
    gateway = await gateway_before(make_gateway, make_upstream, engines, "one", "two")
    assert (await asked(gateway, *WHOLE["chat"])).status == 200
    assert engines.carried == [None, None]


async def test_engine_that_refuses_is_asked_in_slower_ways_and_then_for_all(
    make_gateway: Any, make_upstream: Any
) -> None:
    engines = Engines(answer("no", 409), answer("no", 400), answer("all"))
    gateway = await gateway_before(make_gateway, make_upstream, engines, "one", "one")
    assert (await asked(gateway, *WHOLE["chat"])).json() == {"said": "all"}
    assert [carried and carried["mode"] for carried in engines.carried] == [None, "carried", "replay", None]


@pytest.mark.parametrize("broken", [b": ids 5 1", b": ids 0 x", b"event: what\ndata: {}"])
async def test_nonsense_between_the_tokens_is_a_fault_of_the_engine(
    broken: bytes, make_gateway: Any, make_upstream: Any
) -> None:
    engines = Engines(HEAD + chunk(broken + b"\n\n"), answer("all"))
    gateway = await gateway_before(make_gateway, make_upstream, engines, "one", "one", "one")
    assert (await asked(gateway, *WHOLE["chat"])).json() == {"said": "all"}


async def test_short_answers_are_asked_for_without_their_tokens(make_gateway: Any, make_upstream: Any) -> None:
    seen: list[str | None] = []

    async def script(one: Seen) -> None:
        seen.append(one.header("x-longboat-journal"))
        await one.send(answer("all"))

    up = endpoint(await make_upstream(script), resume=ResumeLevel.CARRIED, revision="one")
    gateway = await make_gateway(policy=POLICY, endpoints=[up])
    path, document = WHOLE["chat"]
    for limit in (63, 64):
        assert (await asked(gateway, path, {**document, "max_tokens": limit})).status == 200
    assert seen == [None, "whole"]


async def test_engine_that_falls_silent_behind_tokens_is_left(make_gateway: Any, make_upstream: Any) -> None:
    carried: list[str | None] = []

    async def falls_silent(seen: Seen) -> None:
        carried.append(seen.header("x-longboat-carry"))
        if len(carried) == 1:
            await told(seen, b": ids 0 7,8", b": steps 4", b": ids 0 9")
            await seen.reader.read()
        else:
            await seen.send(answer("all"))

    made = [endpoint(await make_upstream(falls_silent), f"r{i}", resume=ResumeLevel.CARRIED) for i in range(2)]
    gateway = await make_gateway(policy=POLICY, endpoints=made)
    async with asyncio.timeout(30):  # far less than any answer may take
        assert (await asked(gateway, *WHOLE["chat"])).json() == {"said": "all"}
    assert carried[0] is None and carried[1] is not None


def test_steps_that_an_engine_tells_are_no_tokens() -> None:
    journal = WholeJournal(2)
    journal.begins()
    journal.feed(b": ids 0 7,8\n: ids 1 4\n\n: steps 12\n\n: ste")
    assert (journal.num_tokens, journal.engine_steps) == (3, 12)
    journal.feed(b"ps 15\n\n")
    assert (journal.num_tokens, journal.engine_steps, journal.answer) == (3, 15, None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_events_in_pieces_of_any_size_are_read_like_whole_ones(size: int) -> None:
    journal = WholeJournal(2)
    journal.begins()
    told = b": ids 0 1,2\n\n: steps 4\n\n: ids 1 3\n: ids 0 4\n\nevent: 200\ndata: %b\n\n" % (b'{"a": "\\n\\n"}' * 50)
    for at in range(0, len(told), size):
        journal.feed(told[at : at + size])
        journal.feed(b"")
    assert (journal.num_tokens, journal.engine_steps, journal.status) == (4, 4, 200)
    assert journal.answer == b'{"a": "\\n\\n"}' * 50


def test_answer_that_does_not_end_is_nonsense() -> None:
    journal = WholeJournal(1)
    journal.begins()
    with pytest.raises(ContinuationError, match="does not end"):
        for _ in range(65):
            journal.feed(b"x" * (1 << 20))


async def test_error_behind_tokens_reaches_the_client_as_an_error(make_gateway: Any, make_upstream: Any) -> None:
    end = HEAD + chunk(b': ids 0 7\n\nevent: 422\ndata: {"error":{"message":"no"}}\n\n') + b"0\r\n\r\n"
    engines = Engines(end)
    gateway = await gateway_before(make_gateway, make_upstream, engines, "one", "one")
    response = await asked(gateway, *WHOLE["chat"])
    assert (response.status, response.json()["error"]["message"]) == (422, "no")
