"""Tests of the planner's bytes of a model, against a real vLLM on the CPU."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from engines.vllm_node import ENGINE_PYTHON, VllmNode
from free_ports import free_port
from longboat.builtin.models import ensure
from longboat.catalog.library import built_in_library
from longboat.catalog.read_model import read_model
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.metrics import read_samples
from longboat.planner.memory.fit import plan_fit
from longboat.planner.memory.split_shape import Load, Split, card_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]
CONTEXT_TOKENS, CACHE_BYTES, BLOCK_TOKENS = 512, 50_000_000, 32
TOLD = re.compile(r"weights: (\d+) bytes")


@pytest.mark.parametrize("source", ["builtin:tiny", "builtin:random-10m"])
def test_weights_and_cache_blocks_are_those_that_were_planned(vllm_node: VllmNode, tmp_path: Path, source: str) -> None:
    folder = ensure(source, tmp_path)
    shape, library = read_model(str(folder), built_in_library()), built_in_library()
    load = Load(context_tokens=CONTEXT_TOKENS, cache_bytes=CACHE_BYTES)
    fit = plan_fit(shape, [card_of(library.accelerators.find("EPYC 7003"))], Split(stages=(len(shape.layers),)), load)
    plan = GangPlan(
        fleet="test",
        model="m",
        source=source,
        model_path=str(folder),
        replica="r0",
        generation=1,
        shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources()),
        ranks=(RankPlan(node_rank=0, node_id="n0", address="127.0.0.1", interface="lo", ports={"api": free_port()}),),
        context_tokens=CONTEXT_TOKENS,
        extra_args=("--kv-cache-memory-bytes", str(CACHE_BYTES)),
    )
    log = tmp_path / "rank.log"
    with (
        vllm_node.running(plan, log) as url,
        urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer,
    ):
        samples = read_samples(answer.read().decode())
    (blocks,) = {int(s.labels["num_gpu_blocks"]) for s in samples if s.name == "vllm:cache_config_info"}
    (weight_bytes,) = map(int, TOLD.findall(log.read_text()))
    assert weight_bytes == fit.ranks[0].weight_bytes
    assert blocks == fit.num_kv_blocks(BLOCK_TOKENS)
