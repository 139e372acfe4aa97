"""Tests that the fake engine reports its tokens, takes a seed, and continues another engine's stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engines.carried_stream import KEY, carried_head, journalled
from engines.fake_process import FakeProcess, fake_engine

_CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "who rows the boat?"}], "stream": True}
_TEXT: dict[str, Any] = {"model": "m", "prompt": "who rows", "stream": True, "max_tokens": 24}
_TOOLS = [{"type": "function", "function": {"name": "row", "parameters": {"properties": {"far": {"type": "string"}}}}}]
_LIST = {"type": "array", "items": {"type": "integer"}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": _LIST}}
_MESSAGE: dict[str, Any] = {**_CHAT, "max_tokens": 64}
_RESPONSE: dict[str, Any] = {"model": "m", "input": "who rows the boat?", "stream": True}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("/v1/chat/completions", _CHAT),
    "limited": ("/v1/chat/completions", {**_CHAT, "max_tokens": 21, "stream_options": {"include_usage": True}}),
    "seeded": ("/v1/chat/completions", {**_CHAT, "temperature": 1, "seed": 5}),
    "several": ("/v1/chat/completions", {**_CHAT, "temperature": 1, "seed": 5, "n": 3}),
    "logprobs": ("/v1/chat/completions", {**_CHAT, "logprobs": True, "top_logprobs": 2}),
    "reasoning": ("/v1/chat/completions", {**_CHAT, "reasoning_effort": "high"}),
    "tool": ("/v1/chat/completions", {**_CHAT, "tools": _TOOLS, "tool_choice": "required"}),
    "schema": (
        "/v1/chat/completions",
        {**_CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}},
    ),
    "stop": ("/v1/chat/completions", {**_CHAT, "stop": ["e"], "max_tokens": 40}),
    "message": ("/v1/messages", _MESSAGE),
    "message-thinking": (
        "/v1/messages",
        {**_MESSAGE, "temperature": 1, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    "message-tool": (
        "/v1/messages",
        {**_MESSAGE, "tools": [{"name": "row", "input_schema": _SCHEMA}], "tool_choice": {"type": "any"}},
    ),
    "message-stop": ("/v1/messages", {**_MESSAGE, "stop_sequences": ["e"]}),
    "response": ("/v1/responses", _RESPONSE),
    "response-reasoning": ("/v1/responses", {**_RESPONSE, "temperature": 1, "reasoning": {"effort": "low"}}),
    "response-tool": ("/v1/responses", {**_RESPONSE, "tools": _TOOLS, "tool_choice": "required"}),
    "completion": ("/v1/completions", _TEXT),
    "completion-seeded": ("/v1/completions", {**_TEXT, "temperature": 1, "seed": 5, "n": 2}),
    "completion-logprobs": ("/v1/completions", {**_TEXT, "logprobs": 1}),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeProcess]:
    with fake_engine(key=KEY) as started:
        yield started


@pytest.fixture(scope="module")
def other() -> Iterator[FakeProcess]:
    with fake_engine(key=KEY) as started:
        yield started


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("mode", ["carried", "replay"])
def test_carried_answer_is_the_whole_unfaulted_one(
    engine: FakeProcess, other: FakeProcess, name: str, mode: str
) -> None:
    path, document = REQUESTS[name]
    whole = journalled(engine.url, path, document, seed=11)
    assert whole.status == 200 and whole.ids
    longest = max(map(len, whole.ids.values()))
    for cut in {0, 1, longest // 2, longest - 1}:
        prior = [whole.ids[index][: min(cut, len(whole.ids[index]) - 1)] for index in sorted(whole.ids)]
        resumed = journalled(other.url, path, document, prior=prior, mode=mode, seed=11)
        assert resumed.status == 200
        assert (resumed.ids, resumed.texts()) == (whole.ids, whole.texts())
        assert _last_facts(resumed.events) == _last_facts(whole.events)


def _last_facts(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return finish reasons and usage."""
    ends = [c for event in events for c in event.get("choices", ()) if c.get("finish_reason")]
    facts = [(c["index"], c["finish_reason"], c["stop_reason"]) for c in ends]
    usages = [event.get("response", event).get("usage") for event in events]
    return [*sorted(facts), tuple(usage for usage in usages if usage), events[-1].get("type")]


def test_carried_tokens_come_at_once_and_replayed_ones_step_by_step(engine: FakeProcess) -> None:
    whole = journalled(engine.url, "/v1/completions", _TEXT)
    carried = journalled(engine.url, "/v1/completions", _TEXT, prior=[whole.ids[0][:20]])
    replayed = journalled(engine.url, "/v1/completions", _TEXT, prior=[whole.ids[0][:20]], mode="replay")
    assert len(carried.events) == 4
    assert len(replayed.events) == 24


def test_every_event_carries_the_number_of_tokens_of_each_choice(engine: FakeProcess) -> None:
    stream = journalled(engine.url, "/v1/chat/completions", {**_CHAT, "n": 2, "max_tokens": 5})
    assert stream.headers["x-longboat-journal"] == "1"
    assert len(stream.event_ids) == len(stream.events)
    assert stream.event_ids[-1] == "5.5"
    single = journalled(engine.url, "/v1/chat/completions", {**_CHAT, "max_tokens": 3})
    assert single.event_ids == ["0", "1", "2", "3"]
    assert single.body.endswith(b"\n\ndata: [DONE]\n\n")


def test_stream_without_the_header_has_no_journal(engine: FakeProcess) -> None:
    answer = httpx.post(f"{engine.url}/v1/completions", json=_TEXT, headers={"authorization": f"Bearer {KEY}"})
    assert "x-longboat-journal" not in answer.headers
    assert all(line.startswith("data: ") for line in answer.text.split("\n") if line)


def test_silent_stream_tells_the_engines_steps() -> None:
    with fake_engine("--ttft-ms", "2500", key=KEY) as slow:
        steps = journalled(slow.url, "/v1/completions", _TEXT).steps
    assert len(steps) >= 2
    assert 0 < steps[0] < steps[1]


def test_gateways_seed_counts_where_the_request_names_none(engine: FakeProcess) -> None:
    sampled = {**_TEXT, "temperature": 1}
    texts = [
        journalled(engine.url, "/v1/completions", document, seed=seed).texts()
        for document, seed in ((sampled, 7), ({**sampled, "seed": 7}, 8), (sampled, 8))
    ]
    assert texts[0] == texts[1] != texts[2]
    free = [journalled(engine.url, "/v1/completions", sampled).texts() for _ in range(2)]
    assert free[0] != free[1]


def test_choice_of_a_seeded_request_is_a_single_one_of_the_next_seed(engine: FakeProcess) -> None:
    both = journalled(engine.url, "/v1/completions", {**_TEXT, "n": 2, "seed": 3}).texts()
    alone = journalled(engine.url, "/v1/completions", {**_TEXT, "seed": 4}).texts()
    assert both[1] == alone[0]


def test_strangers_may_not_use_the_gateways_headers(engine: FakeProcess) -> None:
    for name, value in (("journal", "1"), ("seed", "1"), ("carry", "0")):
        for key in ("none", "wrong"):
            headers = {f"x-longboat-{name}": value, "authorization": f"Bearer {key}"}
            assert httpx.post(f"{engine.url}/v1/completions", json=_TEXT, headers=headers).status_code == 403
    with fake_engine() as open_to_all:
        assert journalled(open_to_all.url, "/v1/completions", _TEXT).status == 403
        for name in ("prefixes", "resume", "steps"):  # a gateway that reads prefixes sends headers that are refused
            with httpx.stream("GET", f"{open_to_all.url}/longboat/v1/{name}", timeout=20) as answer:
                assert answer.status_code == 403


@pytest.mark.parametrize("field", ["use_beam_search", "prompt_logprobs"])
def test_what_cannot_be_carried_is_named(engine: FakeProcess, field: str) -> None:
    refused = journalled(engine.url, "/v1/completions", {**_TEXT, field: 1}, prior=[[1]])
    assert refused.status == 409
    assert field in json.loads(refused.body)["error"]["message"]


def test_level_decides_what_is_taken_and_the_door_tells_it() -> None:
    for level, statuses in (("none", (409, 409)), ("replay", (409, 200)), ("carried", (200, 200))):
        with fake_engine("--resume", level, key=KEY) as engine:
            answers = [
                journalled(engine.url, "/v1/completions", _TEXT, prior=[[1]], mode=mode).status
                for mode in ("carried", "replay")
            ]
            told = httpx.get(f"{engine.url}/longboat/v1/resume", headers={"authorization": f"Bearer {KEY}"}).json()
            assert httpx.get(f"{engine.url}/longboat/v1/resume").status_code == 401
            journal = journalled(engine.url, "/v1/completions", _TEXT).ids
        assert tuple(answers) == statuses
        assert (told["carried"], told["replay"]) == (statuses[0] == 200, statuses[1] == 200)
        assert bool(journal) == (level != "none")


@pytest.mark.parametrize(
    "head", [b"{", b'{"mode":"carried"}', b'{"mode":"other","prior":[[]]}', b'{"mode":"carried","prior":[["x"]]}']
)
def test_unreadable_carry_is_refused(engine: FakeProcess, head: bytes) -> None:
    headers = {"x-longboat-carry": str(len(head)), "authorization": f"Bearer {KEY}"}
    body = head + json.dumps(_TEXT).encode()
    assert httpx.post(f"{engine.url}/v1/completions", content=body, headers=headers).status_code == 400


def test_carry_longer_than_the_body_is_refused(engine: FakeProcess) -> None:
    headers = {"x-longboat-carry": "9999", "authorization": f"Bearer {KEY}"}
    body = carried_head("carried", [[]])
    assert httpx.post(f"{engine.url}/v1/completions", content=body, headers=headers).status_code == 400


def test_more_tokens_than_the_answer_has_are_refused(engine: FakeProcess) -> None:
    assert journalled(engine.url, "/v1/completions", _TEXT, prior=[[1] * 24]).status == 400


def test_steps_are_told_at_their_door(engine: FakeProcess) -> None:
    door, headers = f"{engine.url}/longboat/v1/steps", {"authorization": f"Bearer {KEY}"}
    before = httpx.get(door, headers=headers).json()
    journalled(engine.url, "/v1/completions", _TEXT)
    after = httpx.get(door, headers=headers).json()
    assert after["steps"] >= before["steps"] + 24
    assert (after["running"], after["waiting"]) == (0, 0)
