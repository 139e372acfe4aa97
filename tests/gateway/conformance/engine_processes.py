"""Engines for the conformance suite, as processes: fake ones, and real vLLM on the CPU in the shapes that it needs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from gateway_lab import API_KEY

from engines.fake_process import PLAIN
from engines.vllm_node import VllmNode
from free_ports import free_port
from longboat.builtin.models import ensure
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.fake import FakeAdapter

READY_DEADLINE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class EngineProcess:
    """A serving engine. ``model``: the name that it serves."""

    model: str
    url: str


@contextmanager
def fake(model: str, folder: Path) -> Iterator[EngineProcess]:
    """A fake engine, started by the command line that its adapter writes."""
    with _serving(_plan(model, "fake:", ()), folder) as engine:
        yield engine


@contextmanager
def vllm(
    node: VllmNode, model: str, folder: Path, *extra_args: str, source: str = "builtin:tiny"
) -> Iterator[EngineProcess]:
    """A real vLLM with a built-in tiny model, started by the command line that its adapter writes."""
    plan = _plan(model, source, extra_args, str(ensure(source, node.folder)))
    with node.running(plan, folder / f"{model}.log") as url:
        yield EngineProcess(model=model, url=url)


def _plan(model: str, source: str, extra_args: Sequence[str], model_path: str = "") -> GangPlan:
    rank = RankPlan(node_rank=0, node_id="n0", address="127.0.0.1", interface="lo", ports={"api": free_port()})
    return GangPlan(
        fleet="test",
        model=model,
        source=source,
        model_path=model_path,
        replica="r0",
        generation=1,
        shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources()),
        ranks=(rank,),
        context_tokens=1024,
        extra_args=tuple(extra_args),
        api_key=API_KEY,
    )


@contextmanager
def _serving(plan: GangPlan, folder: Path) -> Iterator[EngineProcess]:
    command = FakeAdapter().command(plan, 0, None, "")
    env = {name: value for name, value in {**os.environ, **command.env}.items() if value is not None}
    log = folder / f"{plan.model}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command.argv, env=env, stdout=output, stderr=output, start_new_session=True)
    engine = EngineProcess(model=plan.model, url=f"http://127.0.0.1:{plan.head.ports['api']}")
    try:
        _wait_until_serving(engine, process, log)
        yield engine
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def _wait_until_serving(engine: EngineProcess, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while not _serves(engine.url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise AssertionError(f"{engine.model} does not serve\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


def _serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10, verify=PLAIN).status_code == 200
    except httpx.TransportError:
        return False
