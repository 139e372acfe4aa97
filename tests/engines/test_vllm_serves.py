"""Tests of the vLLM adapter's command lines with a real vLLM on the CPU: alone, and as a pipeline of two nodes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engines.vllm_node import ENGINE_PYTHON, VllmNode
from free_ports import free_port
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import Phase
from longboat.engines.contract import EngineLoad, RankCommand
from longboat.engines.vllm.adapter import VllmAdapter

ADAPTER = VllmAdapter()
READY_DEADLINE_S = 400.0

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]


def plan_on_loopback(model_path: Path, *, pipeline: int, num_nodes: int) -> GangPlan:
    ports = {"api": free_port(), "master": free_port()}
    ranks = tuple(
        RankPlan(
            node_rank=rank,
            node_id=f"n{rank}",
            address="127.0.0.1",
            interface="lo",
            ports=ports if rank == 0 else {},
        )
        for rank in range(num_nodes)
    )
    shape = GangShape(tensor=1, pipeline=pipeline, num_nodes=num_nodes, resources=RankResources())
    return GangPlan(
        fleet="test",
        model="tiny",
        source="builtin:tiny",
        model_path=str(model_path),
        replica="r0",
        generation=1,
        shape=shape,
        ranks=ranks,
        context_tokens=512,
        api_key="a-secret",
    )


def answers(plan: GangPlan) -> bool:
    probe = ADAPTER.probe(plan)
    url = f"http://127.0.0.1:{plan.head.ports['api']}{probe.path}"
    request = urllib.request.Request(url, data=probe.body, headers=dict(probe.headers))
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_ready(plan: GangPlan, has_ended: Callable[[], bool], logs: list[Path]) -> None:
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while not answers(plan):
        if has_ended() or time.monotonic() > deadline_s:
            tails = "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
            pytest.fail(f"not ready; ended: {has_ended()}\n{tails}")
        time.sleep(0.2)


def status_without_key(plan: GangPlan, path: str) -> int:
    body = json.dumps({"model": plan.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
    url, headers = f"http://127.0.0.1:{plan.head.ports['api']}{path}", {"content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers), timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def load_of(plan: GangPlan) -> EngineLoad:
    with urllib.request.urlopen(f"http://127.0.0.1:{plan.head.ports['api']}/metrics", timeout=30) as response:
        return ADAPTER.load(response.read().decode())


def shared_memory_of(pid: int) -> list[str]:
    """Return the queues in shared memory that a process and its children map, as the kernel names them."""
    found = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/psm_" in line]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [line for child in task.read_text().split() for line in shared_memory_of(int(child))]
    return found


def first_phases(log: Path) -> list[Phase]:
    """Return the phases that a log tells of, in the order in which each is first seen."""
    phases = [ADAPTER.phase_of(line) for line in log.read_text(errors="replace").splitlines()]
    return list(dict.fromkeys(phase for phase in phases if phase))


@dataclass
class CompilesInto(VllmAdapter):
    """vLLM that keeps compiled code in a folder, as on a device."""

    folder: str

    def command(self, plan: GangPlan, *args: Any) -> RankCommand:
        made = super().command(plan, *args)
        return dataclasses.replace(made, env={**made.env, **self.compiled_env(plan, "cpu", self.folder)})


async def test_the_log_tells_when_torch_compiles_and_the_code_is_kept(vllm_node: VllmNode, tmp_path: Path) -> None:
    plan = plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1)
    plan = dataclasses.replace(plan, extra_args=("--no-enforce-eager",))
    log, compiled = tmp_path / "rank0.log", tmp_path / "compiled"
    node = dataclasses.replace(vllm_node, adapter=CompilesInto(str(compiled)))
    async with await node.start(plan, 0, log) as rank:
        await asyncio.to_thread(wait_until_ready, plan, lambda: rank.ended, [log])
    assert list((compiled / "vllm").rglob("inductor_cache"))
    assert first_phases(log) == [Phase.LOADING, Phase.WARMING, Phase.COMPILING]


@pytest.mark.parametrize(("pipeline", "num_nodes"), [(1, 1), (2, 2)], ids=["alone", "two-nodes"])
async def test_gang_answers_and_its_log_and_metrics_are_read(
    vllm_node: VllmNode, tmp_path: Path, pipeline: int, num_nodes: int
) -> None:
    plan = plan_on_loopback(vllm_node.tiny, pipeline=pipeline, num_nodes=num_nodes)
    logs = [tmp_path / f"rank{rank.node_rank}.log" for rank in plan.ranks]
    async with AsyncExitStack() as stack:
        ranks = [
            await stack.enter_async_context(await vllm_node.start(plan, rank, log)) for rank, log in enumerate(logs)
        ]
        await asyncio.to_thread(wait_until_ready, plan, lambda: any(rank.ended for rank in ranks), logs)
        load = await asyncio.to_thread(load_of, plan)
        refused = await asyncio.to_thread(status_without_key, plan, "/invocations")
        mapped = [line for rank in ranks for line in shared_memory_of(rank.pid)]
    assert bool(mapped) is (num_nodes > 1)
    assert all(line.endswith("(deleted)") for line in mapped), "a killed gang leaves memory behind"
    assert refused == 401, "vLLM generates on this path, and does not ask for its key there"
    assert load.num_running == 0
    assert load.num_waiting == 0
    assert load.kv_cache_used_ratio is not None
    assert (load.generation_tokens_total or 0) >= 1
    assert first_phases(logs[0]) == [Phase.LOADING, Phase.WARMING]
    assert "a-secret" not in "".join(log.read_text() for log in logs)
