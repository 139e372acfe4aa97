"""vLLM on processors: 32 bits, and what a replica takes there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from longboat.builtin.models import ensure
from longboat.catalog.library import built_in_library
from longboat.catalog.quantization.requantize import requantized, widened
from longboat.catalog.read_model import read_model
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.processor import LIBRARIES
from longboat.planner.memory.split_shape import Load, Split, card_of, even_stages

LIBRARY = built_in_library()
CARD = card_of(LIBRARY.accelerators.find("EPYC 7003"))
ASKED = Load(context_tokens=2048, cache_bytes=64 * 2**20)
EMBEDDING_BYTES = 4096 * 128 * 4


@pytest.fixture(scope="module")
def tiny() -> ModelShape:
    return read_model(str(ensure("builtin:tiny", Path("unused"))), LIBRARY)


def fit(shape: ModelShape, load: Load = ASKED, *, tensor: int = 1, pipeline: int = 1) -> Fit:
    split = Split(tensor=tensor, stages=even_stages(len(shape.layers), pipeline))
    return plan_fit(shape, [CARD] * split.num_ranks, split, load)


def test_vllm_holds_weights_of_16_bits_in_32(tiny: ModelShape) -> None:
    assert fit(tiny).ranks[0].weight_bytes == 2 * tiny.weight_bytes
    assert fit(tiny).ranks[0].weight_bytes == 6_034_944  # what vLLM 0.32 counted


def test_vllm_that_is_told_a_type_keeps_weights_as_they_are(tiny: ModelShape) -> None:
    assert fit(tiny, replace(ASKED, weight_bits=16)).ranks[0].weight_bytes == tiny.weight_bytes
    assert fit(tiny, replace(ASKED, weight_bits=32)).ranks[0].weight_bytes == 6_034_944


def test_vllm_caches_in_32_bits_unless_it_is_told_otherwise(tiny: ModelShape) -> None:
    assert fit(tiny).num_kv_blocks(32) == 512  # what vLLM 0.32 made
    assert fit(tiny, replace(ASKED, kv_bits=8)).num_kv_blocks(32) == 4 * 512


def test_other_engines_and_cards_compute_as_before(tiny: ModelShape) -> None:
    llama = fit(tiny, Load(context_tokens=2048, engine="llama.cpp"))
    assert sum(rank.weight_bytes for rank in llama.ranks) == tiny.weight_bytes
    card = card_of(LIBRARY.accelerators.find("H100"))
    on_gpu = plan_fit(tiny, [card], Split(stages=(4,)), ASKED)
    assert on_gpu.ranks[0].weight_bytes == tiny.weight_bytes
    assert LIBRARIES not in on_gpu.ranks[0].overhead


def test_quantized_weights_are_not_widened(tiny: ModelShape) -> None:
    narrow = requantized(tiny, "awq")
    wide = widened(narrow)
    assert wide.weight_bytes < widened(tiny).weight_bytes
    pairs = list(zip(narrow.weights(), wide.weights(), strict=True))
    assert all(after.bits == (32 if before.bits == 16 else before.bits) for before, after in pairs)
    assert widened(wide) is wide


def test_embedding_is_packed_once_more_where_it_sits(tiny: ModelShape) -> None:
    assert fit(tiny).ranks[0].overhead["packed copies"] == EMBEDDING_BYTES
    first, middle, last = fit(tiny, pipeline=3).ranks
    assert first.overhead["packed copies"] == last.overhead["packed copies"] == EMBEDDING_BYTES
    assert "packed copies" not in middle.overhead
    assert fit(tiny, tensor=2).ranks[0].overhead["packed copies"] == EMBEDDING_BYTES // 2


def test_largest_step_is_bounded_by_the_requests(tiny: ModelShape) -> None:
    short, long = (fit(tiny, replace(ASKED, context_tokens=tokens)) for tokens in (256, 2048))
    assert 8 * short.ranks[0].overhead["activations"] == long.ranks[0].overhead["activations"]
    many = fit(tiny, replace(ASKED, num_sequences=8))
    assert many.ranks[0].overhead["activations"] == long.ranks[0].overhead["activations"]


def test_told_cache_that_does_not_hold_the_context_does_not_fit(tiny: ModelShape) -> None:
    found = fit(tiny, replace(ASKED, cache_bytes=2**20))
    assert not found.fits
    assert found.shortage is not None
    assert "set to take" in found.shortage.what
