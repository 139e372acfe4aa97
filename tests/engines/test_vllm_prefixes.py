"""Named prefixes with a real vLLM: what its feed claims against what requests find cached, in a small KV cache."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gateway"))

from gateway_lab import eventually
from prefix_lab import PrefixLab, chat

from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.core.plan import GangPlan

KEY = "a-secret"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]


def small_plan(node: VllmNode) -> GangPlan:
    """Plan a replica with room for a few conversations."""
    plan = plan_on_loopback(node.tiny, pipeline=1, num_nodes=1)
    return replace(plan, context_tokens=2048, extra_args=("--block-size", "32", "--num-gpu-blocks-override", "165"))


@pytest.fixture(scope="module")
def engine(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with vllm_node.running(small_plan(vllm_node), tmp_path_factory.mktemp("prefixes") / "engine.log") as url:
        yield url


def lab_of(url: str) -> PrefixLab:
    return PrefixLab(url, key=KEY, model="tiny")


def idle(lab: PrefixLab) -> bool:
    (report,) = lab.reports.values()
    return (report.running, report.waiting, report.queued_tokens) == (0, 0, 0)


def words(seed: int, num: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(num))


SYSTEMS = [words(1000 + n, 60) for n in range(3)]


async def test_conversations_find_cached_what_the_feed_claims_while_others_are_evicted(engine: str) -> None:
    async with lab_of(engine) as lab:
        await lab.live()
        assert lab.state.block_tokens > 0
        assert lab.state.capacity_tokens == 165 * lab.state.block_tokens
        talks = {n: [SYSTEMS[n % 3]] for n in range(6)}
        for turn in range(40):
            n = random.Random(turn).randrange(6)
            talk = talks[n]
            if sum(map(len, talk)) > 2500:
                talk = talks[n] = [SYSTEMS[n % 3]]
            talk.append(words(turn, 30))
            talk.append((await lab.send(chat(*talk, model="tiny")))[2])
        figures = lab.state.accuracy.snapshot()
        print(figures)
        assert figures.cached_tokens > 0.3 * figures.prompt_tokens
        assert figures.right_tokens >= 0.95 * figures.expected_tokens
        assert figures.right_tokens >= 0.8 * figures.cached_tokens


async def test_a_gateway_that_starts_later_knows_the_same_and_eviction_reaches_both(engine: str) -> None:
    async with lab_of(engine) as lab, lab_of(engine) as other:
        await lab.live()
        body = chat(SYSTEMS[0], words(1, 60), model="tiny")
        await lab.send(body)
        await eventually(lambda: lab.depth(body)[0] == lab.depth(body)[1], "it is held")
        await eventually(lambda: other.depth(body)[0] == other.depth(body)[1], "the other one knows it too")
        async with lab_of(engine) as late:
            await eventually(lambda: late.states and late.depth(body)[0] == late.depth(body)[1], "the snapshot comes")
        for turn in range(24):
            await lab.send(chat(words(turn + 50, 150), model="tiny"))
        await eventually(lambda: lab.depth(body)[0] == 0 == other.depth(body)[0], "it was evicted")
        await eventually(lambda: idle(lab), "the engine tells that it is idle")


async def test_an_engine_that_starts_again_is_known_again(vllm_node: VllmNode, tmp_path: Path) -> None:
    plan, body = small_plan(vllm_node), chat(SYSTEMS[2], words(3, 60), model="tiny")
    url = f"http://127.0.0.1:{plan.head.ports['api']}"
    async with lab_of(url) as lab:
        for start in range(2):
            with ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, vllm_node.running(plan, tmp_path / f"{start}.log"))
                await lab.live()
                await eventually(lambda: lab.depth(body)[0] == 0, "a new engine holds nothing")
                await lab.send(body)
                await eventually(lambda: lab.depth(body)[0] == lab.depth(body)[1], "it is held")
            await eventually(lambda: not lab.state.is_live, "the feed broke off")


async def test_salts_keep_apart_and_streams_are_told_too(engine: str) -> None:
    async with lab_of(engine) as lab:
        await lab.live()
        for salt in ("one", "two"):
            body = chat(SYSTEMS[1], words(7, 60), model="tiny", cache_salt=salt)
            assert (await lab.send(body))[1] == 0
            assert (await lab.send(body))[1] > 0
        streamed = chat(SYSTEMS[1], words(7, 60), model="tiny", cache_salt="two", stream=True)
        assert (await lab.send(streamed))[1] > 0
