"""The fixture ``sglang_node``: real SGLang engines, forked from one zygote, since SGLang takes long to import."""

from __future__ import annotations

import asyncio
import os
import sys
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
from longboat.engines.registry import adapter_for

__all__ = ("SGLANG_PYTHON", "SglangNode", "sglang_node")

SGLANG_PYTHON = os.environ.get("LONGBOAT_TEST_SGLANG_PYTHON", "")
IMPORT_DEADLINE_S = 240.0
START_DEADLINE_S = 60.0
READY_DEADLINE_S = 400.0
ADAPTER = adapter_for("sglang")


@dataclass
class SglangNode:
    """A node with an environment of SGLang, and its zygote."""

    folder: Path
    environment: EngineEnvironment
    overlay: str
    zygote: ZygoteClient

    @property
    def tiny(self) -> Path:
        """Return the built-in model's folder."""
        return ensure("builtin:tiny", self.folder)

    @contextmanager
    def running(self, plan: GangPlan, log: Path) -> Iterator[str]:
        """Serve a gang of one rank until the end of the block, and yield its address, for tests without a loop."""
        url = f"http://127.0.0.1:{plan.head.ports['api']}"
        with loop_in_thread() as loop:
            rank: RankProcess = asyncio.run_coroutine_threadsafe(self._start(plan, log), loop).result(START_DEADLINE_S)
            try:
                waiting = _token_or_end(plan, url, rank)
                if not asyncio.run_coroutine_threadsafe(waiting, loop).result(READY_DEADLINE_S):
                    pytest.fail(f"{plan.model} does not serve\n{log.read_text(errors='replace')[-3000:]}")
                yield url
            finally:
                loop.call_soon_threadsafe(rank.close)
                asyncio.run_coroutine_threadsafe(rank.wait(), loop).result(START_DEADLINE_S)

    async def _start(self, plan: GangPlan, log: Path) -> RankProcess:
        tags = {"LONGBOAT_GANG": f"{plan.model}/{plan.replica}", "LONGBOAT_GENERATION": str(plan.generation)}
        command = ADAPTER.command(plan, 0, self.environment, self.overlay)
        return await start_rank(command, env_tags=tags, log_path=log, zygote=self.zygote)


async def _token_or_end(plan: GangPlan, url: str, rank: RankProcess) -> bool:
    """Wait until the engine has made a token; False if it ended or took too long."""
    from longboat.cluster.gang.probe import wait_for_token

    serving = asyncio.ensure_future(wait_for_token(url, ADAPTER.probe(plan), plan.api_key))
    ending = asyncio.ensure_future(rank.wait())
    done, others = await asyncio.wait(
        (serving, ending), timeout=READY_DEADLINE_S - 10, return_when=asyncio.FIRST_COMPLETED
    )
    for other in others:
        other.cancel()
    if serving in done:
        await serving
    return serving in done


@pytest.fixture(scope="session")
def sglang_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangNode]:
    """Make one node for all tests of a run, at its first use."""
    folder = tmp_path_factory.mktemp("node")
    environment = environment_at("sglang", Path(SGLANG_PYTHON))
    overlay = str(build_overlay(folder, environment))
    preload_env = ADAPTER.preload_env(environment, offline=True)
    starting = ensure_zygote(environment, overlay, preload_env, folder, os.getpid(), wait_s=IMPORT_DEADLINE_S)
    zygote = asyncio.run(starting)
    assert zygote is not None, "the zygote takes too long to import SGLang"
    yield SglangNode(folder, environment, overlay, zygote)
    stop_all(folder)
