"""A real vLLM, its agent's door and the gang's pulse: a long prefill is no hang, and a stopped engine is found."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from longboat.builtin.models import ensure
from longboat.cluster.beat_door import BeatDoor, door_socket
from longboat.cluster.gang_pulse import DOOR, GangPulse
from longboat.cluster.probe import wait_for_token
from longboat.cluster.rank_life import RankLife
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import ResumeLevel
from longboat.engines.environment import environment_at
from longboat.engines.overlay import build_overlay
from longboat.engines.process import RankProcess, start_rank
from longboat.engines.resume_proof import prove
from longboat.engines.vllm import VllmAdapter
from longboat.gateway.beat_reader import listen
from longboat.gateway.beat_wire import door_word
from longboat.routing.liveness import Beat, Health, Liveness, LivenessLimits, RankBeat

ENGINE_PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
KEY = "a-secret"
NUM_TOKENS = 12_000
START_S = 600.0
ANSWER_S = 600.0

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]


@dataclass
class Watched:
    """An engine as a gateway hears of it."""

    plan: GangPlan
    rank: RankProcess
    pulse: GangPulse
    liveness: Liveness

    def on_beat(self, beat: Beat) -> None:
        self.liveness.hear(beat, time.monotonic())

    def on_reached(self) -> None:
        self.liveness.reach(time.monotonic())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.plan.head.ports['api']}"


def plan_of(model_path: Path, door: int) -> GangPlan:
    with contextlib.closing(door_socket("127.0.0.1")) as free:
        api: int = free.getsockname()[1]
    rank = RankPlan(
        node_rank=0, node_id="n", address="127.0.0.1", interface="lo", ports={"api": api, "master": api, DOOR: door}
    )
    return GangPlan(
        fleet="f",
        model="m",
        source="builtin:random-50m",
        model_path=str(model_path),
        replica="r",
        generation=1,
        shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources()),
        ranks=(rank,),
        context_tokens=NUM_TOKENS + 288,
        extra_args=("--kv-cache-memory-bytes", "800000000"),
        api_key=KEY,
    )


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[Watched]:
    environment = environment_at("vllm", Path(ENGINE_PYTHON))
    overlay = str(build_overlay(folder, environment))
    listening = door_socket("127.0.0.1")
    plan = plan_of(ensure("builtin:random-50m", folder), listening.getsockname()[1])
    command = VllmAdapter().command(plan, 0, environment, overlay)
    async with await start_rank(command, marks={}, log_path=folder / "rank0.log", zygote=None) as rank:
        life = RankLife(rank.pid)
        door = BeatDoor(listening, door_word(KEY), lambda: one_rank(life))
        await door.open()
        pulse = GangPulse.of(plan)
        assert pulse is not None
        made = Watched(plan, rank, pulse, Liveness(LivenessLimits(), time.monotonic()))
        host, _, port = pulse.address.rpartition(":")
        ear = asyncio.create_task(listen(host, int(port), door_word(KEY), made))
        probe = VllmAdapter().probe(plan)
        await asyncio.wait_for(wait_for_token(made.url, probe, KEY), START_S)
        yield made
        ear.cancel()
        pulse.close()
        door.close()


def one_rank(life: RankLife) -> Beat:
    state, cpu_s = life.read()
    return Beat(ranks=(RankBeat(node_rank=0, life=state, cpu_s=cpu_s),))


async def test_a_real_engine_is_judged_by_what_it_does(tmp_path: Path) -> None:
    async with watched(tmp_path) as engine:
        await it_proves_how_it_resumes(engine)
        await a_long_prefill_is_no_hang(engine)
        await a_stopped_engine_is_lost(engine)


async def it_proves_how_it_resumes(engine: Watched) -> None:
    began_s = time.monotonic()
    proof = await prove(engine.url, KEY, "m", timeout_s=120)
    print(f"proved {proof.level.value} in {time.monotonic() - began_s:.2f} s")
    assert proof.level is ResumeLevel.CARRIED, proof


async def a_long_prefill_is_no_hang(engine: Watched) -> None:
    body = {"model": "m", "prompt": [5 + i % 3000 for i in range(NUM_TOKENS)], "max_tokens": 2}
    began_s = time.monotonic()
    async with httpx.AsyncClient(timeout=ANSWER_S, headers={"Authorization": f"Bearer {KEY}"}) as client:
        asking = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=body))
        while not asking.done():
            judgement = engine.liveness.judge(time.monotonic())
            assert judgement.health is not Health.LOST, judgement
            await asyncio.sleep(0.1)
    print(f"a prefill of {time.monotonic() - began_s:.1f} s")
    assert asking.result().status_code == 200, asking.result().text
    beat = engine.liveness.beat
    assert beat is not None
    assert beat.steps


async def a_stopped_engine_is_lost(engine: Watched) -> None:
    (child, *_) = [pid for pid in children(engine.rank.pid) if is_engine(pid)]
    os.kill(child, signal.SIGSTOP)
    began_s = time.monotonic()
    async with asyncio.timeout(60):
        while engine.liveness.judge(time.monotonic()).health is not Health.LOST:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print(f"a stopped engine process was found in {time.monotonic() - began_s:.2f} s")
        assert "stopped" in (await engine.pulse.loss()).reason


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def is_engine(pid: int) -> bool:
    return "EngineCore" in Path(f"/proc/{pid}/comm").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
