"""Tests with real vLLM: a mixture of experts split by tensor and by data answers, and resumes, like one rank."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from engines.answer_kinds import KINDS, client_view
from engines.carried_stream import Stream, journalled
from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.builtin import ensure
from longboat.core.plan import GangPlan, GangShape, RankResources
from longboat.core.states import ResumeLevel
from longboat.engines.resume_proof import prove
from longboat.gateway.http.message import ask

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]

KEY = "a-secret"
SPLITS = {"one": (1, 1), "tensor": (2, 1), "data": (1, 2)}
ASKED = ("completions greedy", "chat seeded", "chat two")


def split_plan(folder: Path, name: str) -> GangPlan:
    tensor, data = SPLITS[name]
    model = ensure("builtin:tiny-moe", folder)
    shape = GangShape(tensor=tensor, pipeline=1, num_nodes=1, resources=RankResources(), data=data)
    plan = plan_on_loopback(model, pipeline=1, num_nodes=1)
    return replace(plan, source="builtin:tiny-moe", replica=name, shape=shape)


@pytest.fixture(scope="module")
def engines(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the addresses of three engines of the same model, by their split."""
    folder = tmp_path_factory.mktemp("experts")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(vllm_node.running(split_plan(folder, name), folder / f"{name}.log"))
            for name in SPLITS
        }


def asked(url: str, kind: str, *, prior: list[list[int]] | None = None, mode: str = "carried") -> Stream:
    path, body = KINDS[kind]
    stream = journalled(url, path, body, prior=prior, mode=mode, seed=5, key=KEY)
    assert stream.status == 200, stream.body
    return stream


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("split", ["tensor", "data"])
def test_split_model_answers_like_one_rank(engines: dict[str, str], split: str, kind: str) -> None:
    expected = asked(engines["one"], kind)
    assert any(len(set(ids)) > 5 for ids in expected.ids.values()), "such a response shows nothing"
    for _ in range(2):  # by data, each of the two ranks
        assert asked(engines[split], kind).ids == expected.ids


@pytest.mark.parametrize(("kind", "mode"), [*((kind, "carried") for kind in ASKED), ("chat seeded", "replay")])
def test_cut_answer_continues_on_an_engine_of_another_split(engines: dict[str, str], kind: str, mode: str) -> None:
    expected = asked(engines["data"], kind)
    prior = [ids[: len(ids) // 2] for _, ids in sorted(expected.ids.items())]
    told = {choice: len(ids) for choice, ids in enumerate(prior)} if mode == "carried" else None
    for split in ("data", "one"):
        continued = asked(engines[split], kind, prior=prior, mode=mode)
        assert continued.ids == expected.ids
        path = KINDS[kind][0]
        assert client_view(path, continued.events, told) == client_view(path, expected.events, told)


def test_engine_with_two_data_ranks_proves_that_it_carries(engines: dict[str, str]) -> None:
    proof = asyncio.run(prove(partial(ask, engines["data"], api_key=KEY), "tiny", timeout_s=120.0))
    assert proof.level == ResumeLevel.CARRIED, proof
