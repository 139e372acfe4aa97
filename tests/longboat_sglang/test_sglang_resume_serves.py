"""Tests with two real SGLangs: streams of many kinds, cut anywhere and replayed on the other one, equal the uncut ones.

``LONGBOAT_TEST_CUTS`` sets how many cuts of each kind are tried (1). From 2 on, all kinds are tried, not some.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.answer_kinds import KINDS as VLLM_KINDS
from engines.answer_kinds import client_view
from engines.carried_stream import Stream, journalled
from engines.sglang_node import SGLANG_PYTHON, SglangNode
from engines.test_vllm_serves import plan_on_loopback
from longboat.core.states import ResumeLevel
from longboat.engines.metrics import read_samples, total_of
from longboat.engines.registry import adapter_for
from longboat.engines.resume_proof import prove
from longboat.gateway.http.message import ask

NUM_CUTS = int(os.environ.get("LONGBOAT_TEST_CUTS", "1"))
KEY, SEED = "a-secret", 77
HEADERS = {"authorization": f"Bearer {KEY}"}
KINDS = {
    name: (path, body | ({"top_k": -1} if body.get("top_k") == 0 else {})) for name, (path, body) in VLLM_KINDS.items()
}
"""SGLang's word for no limit is -1, and 0 is an error there."""
# SGLang has other words for some of vLLM's fields, and answers some kinds in other ways.
ELSEWHERE = ("responses", "two-prompts", "regex", "bad-words", "token-prompt", "same-prompt", "stop-included", "echo")
OWN = tuple(name for name in KINDS if not any(word in name for word in ELSEWHERE))
TRIED = OWN if NUM_CUTS > 1 else OWN[::3]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang"),
]


@pytest.fixture(scope="module")
def engines(sglang_node: SglangNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the addresses of two replicas of the tiny model."""
    folder = tmp_path_factory.mktemp("replicas")
    plan = plan_on_loopback(sglang_node.tiny, pipeline=1, num_nodes=1)
    another = replace(plan_on_loopback(sglang_node.tiny, pipeline=1, num_nodes=1), replica="r1")
    with (
        sglang_node.running(plan, folder / "replica0.log") as first,
        sglang_node.running(another, folder / "replica1.log") as second,
    ):
        yield first, second


MOST_ROUNDS = 6
"""Rounds of requests at once: on a busy machine, one may end before the next begins, so that the cache is not full."""


def cut(ids: dict[int, list[int]], chance: random.Random) -> list[list[int]]:
    """Return what a gateway carries of each choice; a choice that has ended is carried without its last token."""
    return [ids[choice][: chance.randint(0, len(ids[choice]) - 1)] for choice in sorted(ids)]


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = httpx.post(url + path, json=body, headers=HEADERS, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def whole(url: str, kind: str) -> Stream:
    path, body = KINDS[kind]
    stream = journalled(url, path, body, seed=SEED, key=KEY)
    assert stream.status == 200, stream.body
    return stream


@pytest.mark.parametrize("kind", TRIED)
def test_answer_cut_anywhere_is_replayed_identically_elsewhere(engines: tuple[str, str], kind: str) -> None:
    path, body = KINDS[kind]
    expected, chance = whole(engines[0], kind), random.Random(kind)
    assert expected.ids, expected.body
    seen = _without_logprobs if "logprobs" in kind else _without_blank_blocks
    for _ in range(NUM_CUTS):
        prior = cut(expected.ids, chance)
        continued = journalled(engines[1], path, body, prior=prior, mode="replay", seed=SEED, key=KEY)
        assert continued.status == 200, continued.body
        assert continued.ids == expected.ids
        assert seen(path, continued.events) == seen(path, expected.events)


def _without_blank_blocks(path: str, events: list[dict[str, Any]]) -> Any:
    """Return what the client sees but blank text after a message's tool call.

    SGLang makes a text block of it, or none, by which tokens its parser gets together.
    """
    if not path.endswith("/messages"):
        return client_view(path, events)
    blocks, *rest = client_view(path, events)
    kept = [block for block in blocks.values() if block["type"] != "text" or (block["text"] + block["deltas"]).strip()]
    return kept, *rest


def _without_logprobs(path: str, events: list[dict[str, Any]]) -> Any:
    """Return what the client sees but log-probabilities: a prompt that is cached rounds in another way."""
    kept = [{**choice, "logprobs": None} for event in events for choice in event.get("choices", ())]
    return client_view(path, [{"choices": [choice]} for choice in kept])


def test_replica_proves_that_it_replays(engines: tuple[str, str]) -> None:
    proof = asyncio.run(prove(partial(ask, engines[0], api_key=KEY), "tiny", timeout_s=120.0))
    assert proof.level == ResumeLevel.REPLAY, proof


_CREW = {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 2}
_BOAT = {"name": {"type": "string", "maxLength": 9}, "knots": {"type": "integer", "maximum": 999}, "crew": _CREW}
_ROW = {"type": "object", "properties": _BOAT, "required": ["knots", "crew"], "additionalProperties": False}
_MESSAGE = {"model": "tiny", "messages": [{"role": "user", "content": "What is the weather?"}], "max_tokens": 160}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "row"}], ids=["any", "tool"])
@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_demanded_tool_call_keeps_to_its_schema(
    engines: tuple[str, str], choice: dict[str, str], temperature: float
) -> None:
    tools = [{"name": "row", "input_schema": _ROW}]
    body = {**_MESSAGE, "temperature": temperature, "tools": tools, "tool_choice": choice}
    answer = httpx.post(f"{engines[0]}/v1/messages", json=body, headers=HEADERS, timeout=60)
    assert answer.status_code == 200, answer.text
    blocks = [block for block in answer.json()["content"] if block["type"] == "tool_use"]
    if answer.json()["stop_reason"] == "tool_use":
        assert all(isinstance(block["input"]["knots"], int) and block["input"]["crew"] for block in blocks)
    else:  # the tokens ended within the call
        assert answer.json()["stop_reason"] == "max_tokens"


def test_a_demanded_tool_call_may_have_no_parameters(engines: tuple[str, str]) -> None:
    for schema in ({"type": "object"}, {"type": "object", "properties": {}}):
        tools = [{"name": "row", "input_schema": schema}]
        body = {**_MESSAGE, "tools": tools, "tool_choice": {"type": "any"}}
        answer = httpx.post(f"{engines[0]}/v1/messages", json=body, headers=HEADERS, timeout=60)
        assert answer.status_code == 200, answer.text


def test_several_prompts_are_not_continued(engines: tuple[str, str]) -> None:
    path, body = KINDS["completions two-prompts"]
    stream = journalled(engines[0], path, body, prior=[[32], [32]], mode="replay", key=KEY)
    assert stream.status >= 400 or "error" in stream.body.decode()


def test_seed_draws_the_same_beside_other_requests(engines: tuple[str, str]) -> None:
    path, body = KINDS["completions seeded"]
    alone = whole(engines[0], "completions seeded")
    others = ["completions greedy", "completions seeded-top", "completions min-p", "completions json-seeded"]
    masked = {**_MESSAGE, "min_p": 0.02, "top_k": 40, "return_sampling_mask": True, "return_meta_info": True}
    with ThreadPoolExecutor(len(others) + 1) as threads:
        beside = [threads.submit(whole, engines[0], kind) for kind in others]
        drawn_from = threads.submit(post, engines[0], "/v1/chat/completions", masked)
        assert journalled(engines[0], path, body, seed=SEED, key=KEY).ids == alone.ids
    assert all(stream.result().ids for stream in beside)
    assert "output_token_sampling_mask" in drawn_from.result().text


def test_choices_and_unseeded_requests_differ(engines: tuple[str, str]) -> None:
    ids = whole(engines[0], "completions two").ids
    assert ids[0] != ids[1]
    body = {"model": "tiny", "prompt": "The sea", "max_tokens": 30, "ignore_eos": True, "temperature": 1.5}
    answers = [post(engines[0], "/v1/completions", body).json() for _ in range(2)]
    assert answers[0]["choices"][0]["text"] != answers[1]["choices"][0]["text"]


def test_equal_prompts_and_choices_without_a_limit_differ(engines: tuple[str, str]) -> None:
    body = {"model": "tiny", "prompt": ["The sea", "The sea"], "max_tokens": 30, "ignore_eos": True, "temperature": 1.5}
    first, second = post(engines[0], "/v1/completions", body).json()["choices"]
    assert first["text"] != second["text"]
    words = " ".join(f"word {number}" for number in range(100))  # the model has room for few further tokens
    chat = {"model": "tiny", "messages": [{"role": "user", "content": words}], "n": 2, "temperature": 1.5}
    first, second = post(engines[0], "/v1/chat/completions", {**chat, "seed": 2**63 - 1}).json()["choices"]
    assert first["message"]["content"] != second["message"]["content"]


def test_engine_asks_for_its_key(engines: tuple[str, str]) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4}
    for path in ("/v1/completions", "/generate", "/health", "/flush_cache", "/longboat/v1/resume"):
        assert httpx.post(f"{engines[0]}{path}", json=body, timeout=60).status_code in (401, 403), path
    assert httpx.get(f"{engines[0]}/ready", timeout=60).status_code == 200
    assert httpx.post(f"{engines[0]}/v1/completions", json=body, headers=HEADERS, timeout=60).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"custom_logit_processor": '{"callable": "80"}'},
        {"custom_params": {"longboat_forced": [1, 2]}},
        {"custom_params": {"x": 1}},
    ],
)
def test_client_cannot_bring_code_or_tokens(engines: tuple[str, str], more: dict[str, object]) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, **more}
    assert httpx.post(f"{engines[0]}/v1/completions", json=body, headers=HEADERS, timeout=60).status_code == 400


def test_tokens_beyond_the_limit_are_refused_and_the_engine_lives(engines: tuple[str, str]) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2, "stream": True}
    stream = journalled(engines[0], "/v1/completions", body, prior=[[1, 2, 3]], mode="replay", key=KEY)
    assert stream.status >= 400 or "error" in stream.body.decode()
    assert whole(engines[0], "completions greedy").ids


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_prefix_caches_of_tenants_are_apart(engines: tuple[str, str], path: str) -> None:
    words = f"{path} " + " ".join(f"word {number}" for number in range(40))
    messages = [{"role": "user", "content": words}]

    def num_cached(salt: str) -> float:
        before = cached_tokens(engines[0])
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "cache_salt": salt}
        httpx.post(f"{engines[0]}{path}", json=body, headers=HEADERS, timeout=60).raise_for_status()
        return cached_tokens(engines[0]) - before

    assert num_cached("one") < 10
    assert num_cached("two") < 10
    assert num_cached("two") > 50


def cached_tokens(url: str) -> float:
    text = httpx.get(f"{url}/metrics/", timeout=60).text
    return total_of(read_samples(text), "sglang:cached_tokens_total") or 0.0


def test_load_and_steps_are_told(engines: tuple[str, str]) -> None:
    def steps() -> dict[str, int]:
        return dict(httpx.get(f"{engines[0]}/longboat/v1/steps", headers=HEADERS, timeout=30).json())

    before = steps()
    whole(engines[0], "completions greedy")
    after = steps()
    assert after["steps"] > before["steps"]
    assert after["running"] == 0
    metrics = httpx.get(f"{engines[0]}/metrics/", timeout=60).text
    load, counters = adapter_for("sglang").load(metrics), adapter_for("sglang").counters(metrics)
    assert load.num_running is not None
    assert counters.generation_tokens > 0
    assert counters.kv_blocks == 8192


def test_key_is_in_no_log(engines: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    logs = list(tmp_path_factory.getbasetemp().glob("replicas*/*.log"))
    assert logs
    assert not any(KEY in log.read_text(errors="replace") for log in logs)


def test_penalties_outlive_a_cache_that_is_full(sglang_node: SglangNode, tmp_path: Path) -> None:
    """SGLang takes running requests back then, and computes them again with the tokens that they have."""
    small = ("--max-total-tokens", "512", "--schedule-conservativeness", "0.1")
    plan = replace(plan_on_loopback(sglang_node.tiny, pipeline=1, num_nodes=1), extra_args=small)
    path, body = KINDS["chat penalties"]
    bodies = [
        body | {"messages": [{"role": "user", "content": f"Tell me of {number} ships."}], "max_tokens": 150}
        for number in range(4)
    ]
    log = tmp_path / "replica.log"
    with sglang_node.running(plan, log) as url, ThreadPoolExecutor(len(bodies)) as threads:
        ask = partial(journalled, url, path, seed=SEED, key=KEY)
        alone = [ask(body | {"min_tokens": 140}).ids for body in bodies]
        assert all(alone)
        for _ in range(MOST_ROUNDS):
            assert list(threads.map(lambda body: ask(body | {"min_tokens": 140}).ids, bodies)) == alone
            if "Retract requests" in log.read_text():
                break
    assert "Retract requests" in log.read_text()
