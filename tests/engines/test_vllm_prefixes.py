"""Named prefixes with a real vLLM: what its feed claims against what requests find cached, in a small KV cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines import prefix_scenes
from engines.prefix_scenes import converse, lab_of
from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.core.plan import AdapterRoom, GangPlan
from longboat.engines.contract import RankCommand
from longboat.engines.vllm.adapter import VllmAdapter

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


async def test_conversations_find_cached_what_the_feed_claims_while_others_are_evicted(engine: str) -> None:
    await prefix_scenes.find_what_is_claimed(engine, 165 * 32)


class LossyVllm(VllmAdapter):
    """vLLM whose API server loses every 20th batch of KV events."""

    def command(self, *args: Any, **kwargs: Any) -> RankCommand:
        made = super().command(*args, **kwargs)
        return replace(made, env={**made.env, "LONGBOAT_VLLM_PREFIXES": "drop=20"})


async def test_lost_events_are_noticed_and_what_is_used_becomes_known_again(
    vllm_node: VllmNode, tmp_path: Path
) -> None:
    lossy = replace(vllm_node, adapter=LossyVllm())
    with ExitStack() as stack:
        running = lossy.running(small_plan(lossy), tmp_path / "engine.log")
        url = await asyncio.to_thread(stack.enter_context, running)
        async with lab_of(url) as lab:
            await lab.live()
            for talker in range(5):
                await converse(lab, talker, 12)
            figures = lab.state.accuracy.snapshot()
            assert lab.state.num_resets > 2
            assert figures.right_tokens >= 0.95 * figures.expected_tokens
            assert figures.right_tokens >= 0.4 * figures.cached_tokens


async def test_a_gateway_that_starts_later_knows_the_same_and_eviction_reaches_both(engine: str) -> None:
    await prefix_scenes.know_later_and_see_evictions(engine)


async def test_an_engine_that_starts_again_is_known_again(vllm_node: VllmNode, tmp_path: Path) -> None:
    await prefix_scenes.start_again(vllm_node.running, small_plan(vllm_node), tmp_path)


async def test_salts_keep_apart_and_streams_are_told_too(engine: str) -> None:
    await prefix_scenes.keep_salts_apart(engine)


async def test_adapters_have_prefixes_of_their_own(vllm_node: VllmNode, tmp_path: Path) -> None:
    plan = replace(small_plan(vllm_node), adapters=AdapterRoom(slots=2, held=2, rank=8))
    await prefix_scenes.keep_adapters_apart(vllm_node.running, plan, tmp_path)
