"""Tests with real vLLM that proposes tokens by n-grams: its responses, and how they resume on another such engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from engines.answer_kinds import KINDS, client_view
from engines.carried_stream import Stream, journalled
from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.core.states import ResumeLevel
from longboat.engines.resume_proof import prove
from longboat.engines.vllm.adapter import VllmAdapter
from longboat.gateway.http.message import ask

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]

KEY = "a-secret"
GREEDY = ("chat greedy", "chat penalties", "chat regex", "messages greedy")
SAMPLED = ("chat seeded", "completions seeded-top", "chat penalties-seeded", "chat json-seeded", "chat two-seeded")


@pytest.fixture(scope="module")
def engines(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield two engines that speculate, and one that does not."""
    folder = tmp_path_factory.mktemp("speculation")
    args = VllmAdapter().speculative_arguments("ngram", 3, None, None)
    plain = plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1)
    one = replace(plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1), replica="r1", extra_args=args)
    two = replace(plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1), replica="r2", extra_args=args)
    with (
        vllm_node.running(plain, folder / "plain.log") as first,
        vllm_node.running(one, folder / "one.log") as second,
        vllm_node.running(two, folder / "two.log") as third,
    ):
        yield {"plain": first, "one": second, "two": third}


def asked(url: str, kind: str, *, prior: list[list[int]] | None = None, mode: str = "replay") -> Stream:
    path, body = KINDS[kind]
    return journalled(url, path, body, prior=prior, mode=mode, seed=77, key=KEY)


@pytest.mark.parametrize("kind", GREEDY)
def test_greedy_answers_are_those_without_speculation(engines: dict[str, str], kind: str) -> None:
    assert asked(engines["one"], kind).ids == asked(engines["plain"], kind).ids


@pytest.mark.parametrize("kind", [*GREEDY[:2], *SAMPLED])
def test_cut_answer_is_repeated_and_goes_on(engines: dict[str, str], kind: str) -> None:
    expected = asked(engines["one"], kind)
    prior = [ids[: len(ids) // 2] for _, ids in sorted(expected.ids.items())]
    continued = asked(engines["two"], kind, prior=prior)
    assert continued.status == 200, continued.body
    assert continued.ids == expected.ids
    path = KINDS[kind][0]
    assert client_view(path, continued.events, None) == client_view(path, expected.events, None)


def test_engine_proves_that_it_repeats_and_says_why_not_more(engines: dict[str, str]) -> None:
    proof = asyncio.run(prove(partial(ask, engines["one"], api_key=KEY), "tiny", timeout_s=120.0))
    assert proof.level == ResumeLevel.REPLAY, proof
    assert "speculative decoding" in proof.detail


def test_tokens_are_not_taken_over(engines: dict[str, str]) -> None:
    refused = asked(engines["one"], "chat greedy", prior=[[1, 2]], mode="carried")
    assert refused.status == 409
    assert b"speculative decoding" in refused.body


def test_response_that_repeats_otherwise_ends_in_an_error(engines: dict[str, str]) -> None:
    expected = asked(engines["plain"], "chat seeded")
    other = asked(engines["one"], "chat seeded", prior=[expected.ids[0][:30]])
    assert expected.ids[0][:30] != asked(engines["one"], "chat seeded").ids[0][:30]
    assert b"repeated tokens differ" in other.body or other.status >= 400
    assert asked(engines["one"], "chat greedy").ids
