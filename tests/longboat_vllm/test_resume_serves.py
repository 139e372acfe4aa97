"""Tests with two real vLLMs: streams of every kind, cut anywhere and continued on the other one, equal the uncut ones.

``LONGBOAT_TEST_CUTS`` sets how many cuts of each kind are tried (1). From 2 on, all kinds are replayed too, not some.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.answer_kinds import KINDS, client_view
from engines.carried_stream import Stream, carried_head, journalled
from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from fleet.paced_steps import paced_args
from longboat.core.states import ResumeLevel
from longboat.engines.resume_proof import prove
from longboat.gateway.http.message import ask
from waiting import wait_until

NUM_CUTS = int(os.environ.get("LONGBOAT_TEST_CUTS", "1"))
REPLAYED = tuple(KINDS)[:: 1 if NUM_CUTS > 1 else 8]
CASES = [*((kind, "carried") for kind in KINDS), *((kind, "replay") for kind in REPLAYED)]
KEY = "a-secret"
SEED = 77
HEADERS = {"authorization": f"Bearer {KEY}"}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]


@pytest.fixture(scope="module")
def engines(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the addresses of two replicas of the tiny model."""
    folder = tmp_path_factory.mktemp("replicas")
    plan = plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1)
    another = replace(plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1), replica="r1")
    with (
        vllm_node.running(plan, folder / "replica0.log") as first,
        vllm_node.running(another, folder / "replica1.log") as second,
    ):
        yield first, second


def whole(url: str, kind: str) -> Stream:
    path, body = KINDS[kind]
    stream = journalled(url, path, body, seed=SEED, key=KEY)
    assert stream.status == 200, stream.body
    return stream


def cut(ids: dict[int, list[int]], chance: random.Random) -> list[list[int]]:
    """Return what a gateway carries of each choice; a choice that has ended is carried without its last token."""
    return [ids[choice][: chance.randint(0, len(ids[choice]) - 1)] for choice in sorted(ids)]


@pytest.mark.parametrize(("kind", "mode"), CASES, ids=lambda word: str(word))
def test_answer_cut_anywhere_continues_identically_elsewhere(engines: tuple[str, str], kind: str, mode: str) -> None:
    path, body = KINDS[kind]
    expected, chance = whole(engines[0], kind), random.Random(f"{kind} {mode}")
    for _ in range(NUM_CUTS):
        prior = cut(expected.ids, chance)
        continued = journalled(engines[1], path, body, prior=prior, mode=mode, seed=SEED, key=KEY)
        assert continued.status == 200, continued.body
        assert continued.ids == expected.ids
        carried = {choice: len(ids) for choice, ids in enumerate(prior)} if mode == "carried" else None
        assert client_view(path, continued.events, carried) == client_view(path, expected.events, carried)


def test_unfaulted_answers_of_both_replicas_are_equal(engines: tuple[str, str]) -> None:
    for kind in (name for name in KINDS if name.endswith(("unseeded", "json", "two"))):
        first, second = whole(engines[0], kind), whole(engines[1], kind)
        assert (kind, second.ids) == (kind, first.ids)


def test_replica_proves_that_it_carries(engines: tuple[str, str]) -> None:
    proof = asyncio.run(prove(partial(ask, engines[0], api_key=KEY), "tiny", timeout_s=120.0))
    assert proof.level == ResumeLevel.CARRIED, proof


def test_client_cannot_carry_tokens_itself(engines: tuple[str, str]) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "vllm_xargs": {"longboat_prior": [1, 2]}}
    answer = httpx.post(f"{engines[0]}/v1/completions", json=body, headers=HEADERS, timeout=60)
    assert answer.status_code >= 400
    assert httpx.get(f"{engines[0]}/health", timeout=30).status_code == 200


def test_tokens_beyond_the_limit_are_refused_and_the_engine_lives(engines: tuple[str, str]) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2, "stream": True}
    stream = journalled(engines[0], "/v1/completions", body, prior=[[1, 2, 3]], key=KEY)
    assert stream.status >= 400
    assert whole(engines[0], "completions greedy").ids


def test_tokens_that_should_have_stopped_are_refused_and_nothing_is_left_running(engines: tuple[str, str]) -> None:
    path, body = KINDS["chat greedy"]
    ids = whole(engines[0], "chat greedy").ids[0]
    stream = journalled(engines[0], path, {**body, "stop": [" "]}, prior=[ids[:20]], key=KEY)
    assert stream.status >= 400 or "error" in stream.body.decode()
    assert steps_of(engines[0])["running"] == 0


def test_seeded_prompt_longer_than_a_step_is_answered_and_continued(engines: tuple[str, str]) -> None:
    prompt = " ".join(f"word {number}" for number in range(100))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 40, "ignore_eos": True, "stream": True, "temperature": 1.2}
    expected = journalled(engines[0], "/v1/completions", body, seed=SEED, key=KEY)
    continued = journalled(engines[1], "/v1/completions", body, prior=[expected.ids[0][:30]], seed=SEED, key=KEY)
    assert continued.ids == expected.ids


def steps_of(url: str) -> dict[str, int]:
    answer: dict[str, int] = httpx.get(f"{url}/longboat/v1/steps", headers=HEADERS, timeout=30).json()
    return answer


def test_steps_are_told(engines: tuple[str, str]) -> None:
    before = steps_of(engines[0])
    whole(engines[0], "completions greedy")
    after = steps_of(engines[0])
    assert after["steps"] > before["steps"]
    assert after["running"] == 0


def test_stream_that_its_gateway_leaves_is_no_longer_computed(engines: tuple[str, str]) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 480, "ignore_eos": True, "stream": True}
    headers = {**HEADERS, "x-longboat-journal": "1"}
    with httpx.stream("POST", f"{engines[0]}/v1/completions", json=body, headers=headers, timeout=60) as response:
        chunks = response.iter_bytes()
        assert next(chunks)
        assert steps_of(engines[0])["running"] == 1
    deadline_s = time.monotonic() + 60
    while steps_of(engines[0])["running"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


WHOLE_KINDS = [
    name
    for name in KINDS
    if name
    in ("chat greedy", "chat two", "chat json", "completions seeded", "completions stop", "chat penalties-seeded")
    or name.split()[0] in ("messages", "responses")
]


def asked_whole(url: str, path: str, body: dict[str, Any], prior: list[list[int]] | None = None) -> tuple[Any, int]:
    """Return the response to a non-streaming request, and how many tokens were sent before it."""
    asked = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    head = b"" if prior is None else carried_head("carried", prior)
    headers = {**HEADERS, "x-longboat-journal": "whole", "x-longboat-seed": str(SEED)}
    headers |= {"content-type": "application/json", **({"x-longboat-carry": str(len(head))} if head else {})}
    answer = httpx.post(url + path, content=head + json.dumps(asked).encode(), headers=headers, timeout=300)
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.json(), 0
    stream = Stream()
    for line in answer.text.split("\n"):
        stream.take(line)
    assert "event: 200\n" in answer.text
    return stream.events[-1], sum(map(len, stream.ids.values()))


def unnamed(value: Any) -> Any:
    """Drop what is new in each response."""
    if isinstance(value, dict):
        own = ("id", "call_id", "created", "created_at", "signature", "prompt_tokens_details", "input_tokens_details")
        return {key: unnamed(item) for key, item in value.items() if key not in own}
    if isinstance(value, list):
        return [unnamed(item) for item in value]
    return round(value, 2) if isinstance(value, float) else value


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_whole_answer_that_another_engine_began_is_the_same(engines: tuple[str, str], kind: str) -> None:
    path, body = KINDS[kind]
    expected, _ = asked_whole(engines[0], path, body)
    prior = cut(whole(engines[0], kind).ids, random.Random(kind))
    continued, _ = asked_whole(engines[1], path, body, prior)
    assert unnamed(continued) == unnamed(expected)
    assert list(continued) == list(expected)


def test_long_whole_answer_tells_its_tokens_and_is_itself(engines: tuple[str, str]) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 480, "ignore_eos": True, "n": 2, "temperature": 1}
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: asked_whole(engines[0], "/v1/completions", body), range(3)))
    assert len({json.dumps(unnamed(answer), sort_keys=True) for answer, _ in answers}) == 1
    assert max(told for _, told in answers) > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("part", ["server", "core"])
def test_vllm_that_ends_breaks_all_its_answers_off(
    vllm_node: VllmNode, tmp_path: Path, part: str, number: signal.Signals
) -> None:
    """vLLM itself would end them with the reason "abort", their usage and status 200, or say that its core died."""
    plan = replace(plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1), replica="r2", extra_args=paced_args())
    asked = {"model": "tiny", "prompt": "row 3 ", "max_tokens": 480, "ignore_eos": True, "temperature": 0}
    log = tmp_path / "replica2.log"

    def end() -> None:
        wait_until(lambda: httpx.get(f"{url}/longboat/v1/steps", headers=HEADERS).json()["running"] == 3, "all run")
        os.kill(parts_of(log)[part], number)

    with vllm_node.running(plan, log) as url, ThreadPoolExecutor() as pool:
        address = f"{url}/v1/completions"
        wholes = [
            pool.submit(httpx.post, address, json=asked, headers={**HEADERS, **more}, timeout=60.0)
            for more in ({}, {"x-longboat-journal": "whole"})
        ]
        got = streamed_until(end, address, {**asked, "stream": True})
        broken = [whole.exception() or whole.result().text for whole in wholes]
    assert all(isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError)) for error in broken), broken
    assert b"data: " in got
    assert b"[DONE]" not in got
    assert b"error" not in got


def parts_of(log: Path) -> dict[str, int]:
    """Return the pids of vLLM's server and of its core, with which it begins each line of its log."""
    pids = {name: int(pid) for name, pid in re.findall(r"\((APIServer|EngineCore) pid=(\d+)\)", log.read_text())}
    return {"server": pids["APIServer"], "core": pids["EngineCore"]}


def streamed_until(end: Callable[[], None], address: str, asked: dict[str, Any]) -> bytes:
    """End the engine when the stream has begun; return all that came."""
    got = b""
    headers = {**HEADERS, "x-longboat-journal": "1"}
    with (
        contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
        httpx.stream("POST", address, json=asked, headers=headers, timeout=60.0) as answer,
    ):
        for piece in answer.iter_bytes():
            if not got:
                end()
            got += piece
    return got
