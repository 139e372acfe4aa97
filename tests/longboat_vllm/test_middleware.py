"""Tests of what the engine's middleware honours, refuses and reports."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engines.asgi_app import Call, Recorder, installed, middleware_of, post
from longboat_vllm.resume.carry import CURRENT
from longboat_vllm.resume.install import ResumeState
from longboat_vllm.steps import Steps

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"A"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def carrying(prior: object, mode: str = "carried") -> tuple[dict[str, str], bytes]:
    head = json.dumps({"mode": mode, "prior": prior}).encode()
    return {"x-longboat-carry": str(len(head))}, head


async def test_request_without_the_gateways_headers_passes_untouched() -> None:
    app = Recorder([({0: [5]}, EVENT)])
    call = await post(app, CHAT)
    assert call.body == EVENT
    assert app.request is None
    assert app.body == CHAT


async def test_input_tokens_are_left_to_a_server_that_cannot_render() -> None:
    app = Recorder([({}, EVENT)])
    call = await post(app, b'{"input":"x"}', path="/v1/responses/input_tokens")
    assert (app.calls, call.body) == (1, EVENT)


async def test_journal_tells_ids_and_position_with_each_event_in_one_chunk() -> None:
    call = await post(Recorder([({0: [5, 6]}, EVENT), ({}, DONE)]), CHAT, headers={"x-longboat-journal": "1"})
    assert call.headers[b"x-longboat-journal"] == b"1"
    assert call.chunks == [b": ids 0 5,6\nid: 2\n" + EVENT, DONE]


@pytest.mark.parametrize("header", ["x-longboat-journal", "x-longboat-seed", "x-longboat-carry", "x-longboat-adapter"])
async def test_headers_of_one_who_does_not_know_the_key_are_refused(header: str) -> None:
    app = Recorder()
    call = await post(app, CHAT, headers={header: "1"}, key="a client's")
    assert call.status == 401
    assert app.calls == 0


@pytest.mark.parametrize(
    "path", ["/invocations", "/tokenize", "/v1/models", "/health/../invocations", "/metricsx", "/"]
)
@pytest.mark.parametrize("key", ["", "a client's"])
async def test_every_path_needs_the_key(path: str, key: str) -> None:
    app = Recorder()
    assert ((await post(app, CHAT, path=path, key=key)).status, app.calls) == (401, 0)
    assert ((await post(app, CHAT, path=path)).status, app.calls) == (200, 1)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/metrics/"])
async def test_health_and_metrics_need_no_key(path: str) -> None:
    assert (await post(Recorder(), path=path, key="")).status == 200


async def test_engine_without_a_key_is_open_to_everybody() -> None:
    assert (await post(Recorder(), CHAT, path="/invocations", key="", engine_key="")).status == 200


async def test_engine_without_a_key_honours_nobody() -> None:
    call = await post(Recorder(), CHAT, headers={"x-longboat-journal": "1"}, key="", engine_key="")
    assert call.status == 403


async def test_carried_tokens_come_off_the_body_and_the_rest_is_as_it_was() -> None:
    app = Recorder()
    headers, head = carrying([[1, 2], []])
    body = head + CHAT
    await post(app, body[:7], body[7:], headers={**headers, "x-longboat-seed": "9"})
    assert app.body == CHAT
    assert app.headers[b"content-length"] == str(len(CHAT)).encode()
    assert app.request is not None
    assert (app.request.mode, app.request.prior, app.request.seed) == ("carried", [[1, 2], []], 9)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("use_beam_search", True, "beam search"),
        ("prompt_logprobs", 1, "prompt_logprobs"),
        ("best_of", 3, "best_of"),
        ("previous_response_id", "resp_1", "kept by another engine"),
        ("tools", [{"type": "mcp"}], "tools that the engine itself calls"),
    ],
)
async def test_what_cannot_be_carried_is_refused_by_name(field: str, value: object, named: str) -> None:
    headers, head = carrying([[1]])
    call = await post(Recorder(), head + json.dumps({"stream": True, field: value}).encode(), headers=headers)
    assert call.status == 409
    assert named in json.loads(call.body)["error"]["message"]


@pytest.mark.parametrize(("field", "part"), [("messages", {"type": "image_url"}), ("input", {"type": "input_image"})])
async def test_images_are_carried_only_where_that_is_exact(
    field: str, part: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers, head = carrying([[1]])
    body = head + json.dumps({"stream": True, field: [{"role": "user", "content": [part]}]}).encode()
    app = Recorder()
    await post(app, body, headers=headers)
    assert app.request is not None
    assert app.request.prior == [[1]]
    monkeypatch.setattr("longboat_vllm.middleware.ResumeMiddleware.takes_media", False)
    call = await post(Recorder(), body, headers=headers)
    assert call.status == 409
    assert "not text" in json.loads(call.body)["error"]["message"]


async def test_body_that_is_no_json_cannot_be_carried() -> None:
    headers, head = carrying([[1]])
    assert (await post(Recorder(), head + b"--boundary", headers=headers)).status == 409


@pytest.mark.parametrize("mode", ["carried", "replay"])
async def test_way_that_is_off_is_refused_with_its_reason(mode: str) -> None:
    state = ResumeState(journal_problem="", carried_problem="other shape", replay_problem="other shape")
    headers, head = carrying([[1]], mode)
    call = await post(Recorder(), head + CHAT, headers=headers, state=state)
    assert call.status == 409
    assert "other shape" in json.loads(call.body)["error"]["message"]


@pytest.mark.parametrize(
    "head", [b"{}", b"[]", b'{"mode":"carried","prior":[["a"]]}', b'{"mode":"other","prior":[[1]]}', b"nonsense"]
)
async def test_carry_that_cannot_be_read_is_refused(head: bytes) -> None:
    call = await post(Recorder(), head + CHAT, headers={"x-longboat-carry": str(len(head))})
    assert call.status == 400


@pytest.mark.parametrize("value", ["-1", "x", str(2**31)])
async def test_seed_that_cannot_be_is_refused(value: str) -> None:
    assert (await post(Recorder(), CHAT, headers={"x-longboat-seed": value})).status == 400


async def test_answer_that_repeats_all_logprobs_is_replayed() -> None:
    app = Recorder()
    headers, head = carrying([[1]])
    await post(app, head + b'{"include":["message.output_text.logprobs"]}', headers=headers)
    assert app.request is not None
    assert app.request.mode == "replay"


@pytest.mark.parametrize(
    "body", [{"logprobs": 1}, {"tools": [{}]}, {"stream_options": {"continuous_usage_stats": True}}]
)
async def test_tokens_whose_pieces_show_are_told_one_by_one(body: dict[str, object]) -> None:
    app = Recorder()
    headers, head = carrying([[1]])
    await post(app, head + json.dumps(body).encode(), headers=headers)
    assert app.request is not None
    assert app.request.told_at_once == 1
    await post(app, head + CHAT, headers=headers)
    assert app.request.told_at_once > 1


async def test_silent_stream_is_told_the_engines_steps() -> None:
    app = Recorder([({0: [5]}, EVENT)], pause=lambda: asyncio.sleep(0.2))
    call = await post(app, CHAT, headers={"x-longboat-journal": "1"}, steps_period_s=0.02)
    assert call.chunks[0].startswith(b": steps ")
    assert call.chunks[-1] == b": ids 0 5\nid: 1\n" + EVENT


async def test_client_that_does_not_read_holds_up_no_others_lines() -> None:
    ends, stuck, other = asyncio.Event(), Call(reads=asyncio.Event()), Call()
    app = Recorder([({0: [5]}, EVENT)], pause=ends.wait)
    middleware, headers = middleware_of(app, steps_period_s=0.02), {"x-longboat-journal": "1"}
    posts = [asyncio.create_task(post(app, CHAT, headers=headers, middleware=middleware, call=stuck))]
    await asyncio.sleep(0.2)  # by then, the first response has a line that its client does not read
    posts.append(asyncio.create_task(post(app, CHAT, headers=headers, middleware=middleware, call=other)))
    try:
        async with asyncio.timeout(20):
            while len(other.chunks) < 3:  # noqa: ASYNC110 the response grows in another task
                await asyncio.sleep(0.01)
    finally:
        ends.set()
        assert stuck.reads is not None
        stuck.reads.set()
        await asyncio.gather(*posts)
    assert all(chunk.startswith(b": steps ") for chunk in other.chunks[:3])


async def test_abilities_and_steps_are_told_to_whoever_has_the_key() -> None:
    abilities = await post(Recorder(), path="/longboat/v1/resume")
    assert json.loads(abilities.body) == {
        "carried": True,
        "replay": True,
        "detail": "",
        "engine": "vllm 0.32.0",
        "runner": "v1",
    }
    assert set(json.loads((await post(Recorder(), path="/longboat/v1/steps")).body)) == {"steps", "running", "waiting"}
    assert (await post(Recorder(), path="/longboat/v1/steps", key="a client's")).status == 401


def test_request_that_was_aborted_is_not_counted_although_no_step_tells_of_it() -> None:
    steps = Steps(num_steps=7, num_waiting=2, unfinished=lambda: 3)
    assert steps.told() == {"steps": 7, "running": 1, "waiting": 2}
    steps.unfinished = lambda: 1
    assert steps.told() == {"steps": 7, "running": 0, "waiting": 1}


async def test_switched_off_journal_tells_no_ids() -> None:
    state = installed()
    state.journal_problem = "off"
    call = await post(Recorder([({0: [5]}, EVENT)]), CHAT, headers={"x-longboat-journal": "1"}, state=state)
    assert call.body == EVENT
    assert b"x-longboat-journal" not in call.headers


class WholeAnswer(Recorder):
    """An application that answers with JSON, after its tokens grew step by step as long as ``pause`` says."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.body = (await receive())["body"]
        self.request = CURRENT.get()
        grown: list[int] = []
        if self.request is not None:
            self.request.grown[0] = lambda: grown
        for ids, _ in self.pieces:
            grown.extend(ids[0])
            if self.pause is not None:
                await self.pause()
        kind = [(b"content-type", b"application/json"), (b"content-length", b"13")]
        await send({"type": "http.response.start", "status": 202, "headers": kind})
        await send({"type": "http.response.body", "body": b'{"a":\n', "more_body": True})
        await send({"type": "http.response.body", "body": b'"said"}', "more_body": False})


async def test_long_whole_answer_comes_behind_its_tokens() -> None:
    app = WholeAnswer([({0: [5, 6]}, b""), ({0: [7]}, b"")], pause=lambda: asyncio.sleep(0.2))
    call = await post(app, CHAT, headers={"x-longboat-journal": "whole"}, steps_period_s=0.02)
    assert (call.status, call.headers[b"x-longboat-journal"]) == (200, b"1")
    assert call.headers[b"content-type"].startswith(b"text/event-stream")
    assert [chunk for chunk in call.chunks if chunk.startswith(b": ids")] == [b": ids 0 5,6\n\n", b": ids 0 7\n\n"]
    assert any(chunk.startswith(b": steps ") for chunk in call.chunks)
    assert call.chunks[-1] == b'event: 202\ndata: {"a": "said"}\n\n'


async def test_whole_answer_that_is_soon_there_passes_as_it_is() -> None:
    call = await post(WholeAnswer([({0: [5]}, b"")]), CHAT, headers={"x-longboat-journal": "whole"})
    assert (call.status, call.body) == (202, b'{"a":\n"said"}')
    assert b"x-longboat-journal" not in call.headers


async def test_whole_answer_with_logprobs_is_replayed() -> None:
    app = WholeAnswer()
    headers, head = carrying([[1, 2]])
    body = json.dumps({"model": "m", "messages": [], "logprobs": True}).encode()
    await post(app, head + body, headers={**headers, "x-longboat-journal": "whole"})
    assert app.request is not None
    assert (app.request.mode, app.request.whole) == ("replay", True)


async def test_adapter_that_the_engine_does_not_have_is_for_another_engine() -> None:
    app = Recorder([({}, DONE)])
    call = await post(app, CHAT, headers={"x-longboat-adapter": "red@0123456789abcdef"})
    assert (call.status, app.calls) == (503, 0)
    assert b"red@0123456789abcdef" in call.body


async def test_the_list_of_adapters_requires_the_key_and_a_server_that_keeps_adapters() -> None:
    app = Recorder()
    refused = await post(app, b'{"adapters":[]}', path="/longboat/v1/adapters", key="a client's")
    unable = await post(app, b'{"adapters":[]}', path="/longboat/v1/adapters")
    assert (refused.status, unable.status, app.calls) == (401, 501, 0)
