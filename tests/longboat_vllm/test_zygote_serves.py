"""Tests of a real vLLM out of a zygote: it answers the same in each split, and all of it ends with its owner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engines.vllm_node import ENGINE_PYTHON, VllmNode
from free_ports import free_port
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.launch.process import RankProcess

READY_DEADLINE_S = 240.0
NUM_TOKENS = 24

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]


def gang(vllm_node: VllmNode, *, tensor: int = 1, pipeline: int = 1, num_nodes: int = 1) -> GangPlan:
    ports = {"api": free_port(), "master": free_port()}
    return GangPlan(
        fleet="test",
        model="tiny",
        source="builtin:tiny",
        model_path=str(vllm_node.tiny),
        replica=uuid.uuid4().hex,
        generation=1,
        shape=GangShape(tensor=tensor, pipeline=pipeline, num_nodes=num_nodes, resources=RankResources()),
        ranks=tuple(
            RankPlan(node_rank=rank, node_id=f"n{rank}", address="127.0.0.1", interface="lo", ports=ports)
            for rank in range(num_nodes)
        ),
        context_tokens=512,
        api_key="a-secret",
    )


@contextlib.asynccontextmanager
async def running(vllm_node: VllmNode, plan: GangPlan, *, plain: bool = False) -> AsyncIterator[list[RankProcess]]:
    """Run every rank of the gang until the end of the block."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                await vllm_node.start(plan, rank, log_of(vllm_node, plan, rank), plain=plain)
            )
            for rank in range(plan.shape.num_nodes)
        ]


def log_of(vllm_node: VllmNode, plan: GangPlan, rank: int) -> Path:
    return vllm_node.folder / f"{plan.replica}-{rank}.log"


def post(plan: GangPlan, body: dict[str, Any]) -> dict[str, Any] | None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{plan.head.ports['api']}/v1/completions",
        data=json.dumps({"model": plan.model, "temperature": 0, **body}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {plan.api_key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except OSError:
        return None


async def generate(vllm_node: VllmNode, plan: GangPlan, ranks: list[RankProcess]) -> list[int]:
    """Return the token ids of a greedy response, once the gang is ready."""
    body = {"prompt": "What is a gang?", "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while (answer := await asyncio.to_thread(post, plan, body)) is None:
        if any(rank.ended for rank in ranks) or time.monotonic() > deadline_s:
            pytest.fail("\n".join(log_of(vllm_node, plan, rank).read_text()[-3000:] for rank in range(len(ranks))))
        await asyncio.sleep(0.05)
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def marked(plan: GangPlan) -> set[int]:
    mark = f"LONGBOAT_GANG={plan.model}/{plan.replica}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found


async def test_zygote_has_imported_all_and_runs_one_thread(vllm_node: VllmNode) -> None:
    state = await vllm_node.zygote.ping()
    assert state.threads == 1
    assert state.missing == {}
    assert state.vllm_version.startswith(vllm_node.environment.version)


async def test_every_split_answers_as_one_rank_does(vllm_node: VllmNode) -> None:
    alone = gang(vllm_node)
    async with running(vllm_node, alone) as ranks:
        expected = await generate(vllm_node, alone, ranks)
        assert [rank.started_by for rank in ranks] == ["zygote"]
    assert len(expected) == NUM_TOKENS
    for split in ({"tensor": 2}, {"pipeline": 2}):
        plan = gang(vllm_node, **split)
        async with running(vllm_node, plan) as ranks:
            assert await generate(vllm_node, plan, ranks) == expected
        log = log_of(vllm_node, plan, 0).read_text()
        assert ("pipeline fixed" in log) == ("pipeline" in split)
        assert "is off: this vLLM's code differs" not in log


async def test_all_processes_carry_their_marks_and_end_with_their_owner(vllm_node: VllmNode) -> None:
    plan = gang(vllm_node, pipeline=2)
    async with running(vllm_node, plan) as (rank,):
        await generate(vllm_node, plan, [rank])
        children = {pid for pid in marked(plan) if b"VLLM::" in Path(f"/proc/{pid}/cmdline").read_bytes()}
        assert len(children) == 3  # the engine core and two workers, although they changed their titles
        assert {rank.pid, rank.keeper_pid} < marked(plan)
        rank.close()
        await asyncio.wait_for(rank.wait(), 60)
        assert marked(plan) <= {rank.keeper_pid}


async def test_gentle_end_lets_vllm_shut_down(vllm_node: VllmNode) -> None:
    plan = gang(vllm_node)
    async with running(vllm_node, plan) as (rank,):
        await generate(vllm_node, plan, [rank])
        rank.terminate(60.0)
        # At its end, vLLM 0.32 looks up the owner of its port, and exits with 1 if that is the core that just ended.
        assert (await asyncio.wait_for(rank.wait(), 90)).signal is None
    assert "engine client stopped" in log_of(vllm_node, plan, 0).read_text()


async def test_secrets_are_in_no_environment_or_command_line_of_a_fork(vllm_node: VllmNode) -> None:
    plan = gang(vllm_node)
    async with running(vllm_node, plan) as (rank,):
        await generate(vllm_node, plan, [rank])
        for pid in marked(plan):
            for name in ("environ", "cmdline"):
                assert b"a-secret" not in Path(f"/proc/{pid}/{name}").read_bytes()


@pytest.mark.slow
async def test_two_ranks_on_each_of_two_nodes_answer_as_one_rank_does(vllm_node: VllmNode) -> None:
    alone = gang(vllm_node)
    async with running(vllm_node, alone) as ranks:
        expected = await generate(vllm_node, alone, ranks)
    plan = gang(vllm_node, tensor=2, pipeline=2, num_nodes=2)
    async with running(vllm_node, plan) as ranks:
        assert await generate(vllm_node, plan, ranks) == expected


@pytest.mark.slow
async def test_plain_start_answers_as_a_fork_does(vllm_node: VllmNode) -> None:
    alone, plain = gang(vllm_node), gang(vllm_node, pipeline=2)
    async with running(vllm_node, alone) as ranks:
        expected = await generate(vllm_node, alone, ranks)
    async with running(vllm_node, plain, plain=True) as ranks:
        assert await generate(vllm_node, plain, ranks) == expected
        assert [rank.started_by for rank in ranks] == ["plain"]
        assert len({pid for pid in marked(plain) if b"VLLM::" in Path(f"/proc/{pid}/cmdline").read_bytes()}) == 3
