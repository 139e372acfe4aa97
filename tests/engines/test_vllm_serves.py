"""Tests of the vLLM adapter's command lines with a real vLLM on the CPU: alone, and as a pipeline of two nodes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from free_ports import free_port
from longboat.builtin.models import ensure
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import Phase
from longboat.engines.contract import RankCommand
from longboat.engines.environments.environment import environment_at
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.vllm.adapter import VllmAdapter

ENGINE_PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
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


@contextmanager
def running(command: RankCommand, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one rank as its own process group, killed as a whole at the end."""
    env = {**os.environ, **{name: value for name, value in command.env.items() if value is not None}}
    for name in (name for name, value in command.env.items() if value is None):
        env.pop(name, None)
    with log.open("wb") as output:
        process = subprocess.Popen(command.argv, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def answers(plan: GangPlan) -> bool:
    probe = ADAPTER.probe(plan)
    url = f"http://127.0.0.1:{plan.head.ports['api']}{probe.path}"
    request = urllib.request.Request(url, data=probe.body, headers=dict(probe.headers))
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_ready(plan: GangPlan, processes: list[subprocess.Popen[bytes]], logs: list[Path]) -> None:
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while not answers(plan):
        ended = [process.args for process in processes if process.poll() is not None]
        if ended or time.monotonic() > deadline_s:
            tails = "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
            pytest.fail(f"not ready; ended: {ended}\n{tails}")
        time.sleep(0.5)


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


def test_the_log_tells_when_torch_compiles_and_the_code_is_kept(tmp_path: Path) -> None:
    environment = environment_at("vllm", Path(ENGINE_PYTHON))
    plan = plan_on_loopback(ensure("builtin:tiny", tmp_path), pipeline=1, num_nodes=1)
    plan = dataclasses.replace(plan, extra_args=("--no-enforce-eager",))
    log, compiled = tmp_path / "rank0.log", tmp_path / "compiled"
    command = ADAPTER.command(plan, 0, environment, str(build_overlay(tmp_path, environment)))
    places = ADAPTER.compiled_env(plan, environment.platform, str(compiled))
    with running(dataclasses.replace(command, env={**command.env, **places}), log) as process:
        wait_until_ready(plan, [process], [log])
    assert list((compiled / "vllm").rglob("inductor_cache"))
    assert first_phases(log) == [Phase.LOADING, Phase.WARMING, Phase.COMPILING]


@pytest.mark.parametrize(("pipeline", "num_nodes"), [(1, 1), (2, 2)], ids=["alone", "two-nodes"])
def test_gang_answers_and_its_log_and_metrics_are_read(tmp_path: Path, pipeline: int, num_nodes: int) -> None:
    environment = environment_at("vllm", Path(ENGINE_PYTHON))
    overlay = str(build_overlay(tmp_path, environment))
    plan = plan_on_loopback(ensure("builtin:tiny", tmp_path), pipeline=pipeline, num_nodes=num_nodes)
    logs = [tmp_path / f"rank{rank.node_rank}.log" for rank in plan.ranks]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running(ADAPTER.command(plan, rank, environment, overlay), log))
            for rank, log in enumerate(logs)
        ]
        wait_until_ready(plan, processes, logs)
        with urllib.request.urlopen(f"http://127.0.0.1:{plan.head.ports['api']}/metrics", timeout=30) as response:
            load = ADAPTER.load(response.read().decode())
        mapped = [line for process in processes for line in shared_memory_of(process.pid)]
    assert bool(mapped) is (num_nodes > 1)
    assert all(line.endswith("(deleted)") for line in mapped), "a killed gang leaves memory behind"
    assert load.num_running == 0
    assert load.num_waiting == 0
    assert load.kv_cache_used_ratio is not None
    assert (load.generation_tokens_total or 0) >= 1
    assert first_phases(logs[0]) == [Phase.LOADING, Phase.WARMING]
    assert "a-secret" not in "".join(log.read_text() for log in logs)
