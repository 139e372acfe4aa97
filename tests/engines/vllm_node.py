"""The fixture ``vllm_node``: real vLLM engines, forked from one zygote, since vLLM takes long to import.

All processes of a run of tests share the zygote.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from loop_thread import loop_in_thread

from longboat.builtin.models import ensure
from longboat.core.plan import GangPlan
from longboat.engines.contract import EngineEnvironment
from longboat.engines.environments.environment import environment_at
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.launch.process import RankProcess, start_rank
from longboat.engines.launch.zygote_client import ZygoteClient, ensure_zygote, stop_all
from longboat.engines.vllm.adapter import VllmAdapter

__all__ = ("ENGINE_PYTHON", "VllmNode", "vllm_node")

ENGINE_PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
IMPORT_DEADLINE_S = 240.0
START_DEADLINE_S = 60.0
READY_DEADLINE_S = 400.0


@dataclass
class VllmNode:
    """A node with an engine environment, and its zygote."""

    folder: Path
    environment: EngineEnvironment
    overlay: str
    zygote: ZygoteClient
    adapter: VllmAdapter

    @property
    def tiny(self) -> Path:
        """Return the built-in model's folder."""
        return ensure("builtin:tiny", self.folder)

    async def start(self, plan: GangPlan, rank: int, log: Path, *, plain: bool = False) -> RankProcess:
        """Start one rank of the gang; it ends when it is closed, and its temporary files go with it."""
        run = self.folder / "run"
        run.mkdir(mode=0o700, exist_ok=True)
        tags = {"LONGBOAT_GANG": f"{plan.model}/{plan.replica}", "LONGBOAT_GENERATION": str(plan.generation)}
        return await start_rank(
            self.adapter.command(plan, rank, self.environment, self.overlay),
            env_tags={**tags, "LONGBOAT_RUN": str(run)},
            log_path=log,
            zygote=None if plain else self.zygote,
        )

    @contextmanager
    def running(self, plan: GangPlan, log: Path) -> Iterator[str]:
        """Serve a gang of one rank until the end of the block, and yield its address, for tests without a loop."""
        with loop_in_thread() as loop:
            starting = asyncio.run_coroutine_threadsafe(self.start(plan, 0, log), loop)
            rank = starting.result(START_DEADLINE_S)
            try:
                yield _serving(plan, rank, log)
            finally:
                loop.call_soon_threadsafe(rank.close)
                asyncio.run_coroutine_threadsafe(rank.wait(), loop).result(START_DEADLINE_S)


def _serving(plan: GangPlan, rank: RankProcess, log: Path) -> str:
    """Wait until the engine is ready."""
    url = f"http://127.0.0.1:{plan.head.ports['api']}"
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while not _is_well(url):
        if rank.ended or time.monotonic() > deadline_s:
            pytest.fail(f"{plan.model} does not serve\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)
    return url


def _is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def vllm_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmNode]:
    """Make one node for all tests of a process, at its first use."""
    environment, adapter = environment_at("vllm", Path(ENGINE_PYTHON)), VllmAdapter()
    shared, owner = _shared_with_other_processes(tmp_path_factory)
    overlay = str(build_overlay(shared, environment))
    preload_env = adapter.preload_env(environment, offline=True)
    starting = ensure_zygote(environment, overlay, preload_env, shared, owner, wait_s=IMPORT_DEADLINE_S)
    zygote = asyncio.run(starting)
    assert zygote is not None, "the zygote takes too long to import vLLM"
    yield VllmNode(tmp_path_factory.mktemp("node"), environment, overlay, zygote, adapter)
    if owner == os.getpid():
        stop_all(shared)


def _shared_with_other_processes(folders: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a folder for all processes of this run of tests, and the process that lives the longest."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return folders.getbasetemp().parent, os.getppid()
    return folders.mktemp("shared"), os.getpid()
