"""Named prefixes with a real SGLang: what its feed claims against what requests find cached, in a small KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines import prefix_scenes
from engines.sglang_node import SGLANG_PYTHON, SglangNode
from engines.test_vllm_serves import plan_on_loopback
from longboat.core.plan import AdapterRoom, GangPlan

TOKENS = 5280

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang"),
]


def small_plan(node: SglangNode) -> GangPlan:
    """Plan a replica with room for a few conversations."""
    plan = plan_on_loopback(node.tiny, pipeline=1, num_nodes=1)
    return replace(plan, context_tokens=2048, extra_args=("--max-total-tokens", str(TOKENS)))


@pytest.fixture(scope="module")
def engine(sglang_node: SglangNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sglang_node.running(small_plan(sglang_node), tmp_path_factory.mktemp("prefixes") / "engine.log") as url:
        yield url


async def test_conversations_find_cached_what_the_feed_claims_while_others_are_evicted(engine: str) -> None:
    await prefix_scenes.find_what_is_claimed(engine, TOKENS)


async def test_a_gateway_that_starts_later_knows_the_same_and_eviction_reaches_both(engine: str) -> None:
    await prefix_scenes.know_later_and_see_evictions(engine)


async def test_an_engine_that_starts_again_is_known_again(sglang_node: SglangNode, tmp_path: Path) -> None:
    await prefix_scenes.start_again(sglang_node.running, small_plan(sglang_node), tmp_path)


async def test_salts_keep_apart_and_streams_are_told_too(engine: str) -> None:
    await prefix_scenes.keep_salts_apart(engine)


async def test_adapters_have_prefixes_of_their_own(sglang_node: SglangNode, tmp_path: Path) -> None:
    plan = replace(small_plan(sglang_node), adapters=AdapterRoom(slots=2, held=2, rank=8))
    await prefix_scenes.keep_adapters_apart(sglang_node.running, plan, tmp_path)
