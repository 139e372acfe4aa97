"""Does it fit: worked examples against published figures, and what must hold for every plan."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catalog.shape_builders import kv_bytes_of, make_shape
from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.cache import Cache
from longboat.catalog.shape.model_shape import ModelShape, share_equal_layers
from longboat.planner.memory.budget import batched_tokens, reported_bytes
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.fit_changes import nearest_changes
from longboat.planner.memory.split_shape import Card, EngineKind, Load, Split, card_of, even_stages
from longboat.planner.memory.stage_weights import stage_weights

LIBRARY = built_in_library()
GIB = 1024**3


@cache
def shape(name: str, quantization: str = "") -> ModelShape:
    found = shape_of_entry(LIBRARY.models[name])
    return requantized(found, quantization) if quantization else found


def cards(*names: str) -> list[Card]:
    return [card_of(LIBRARY.accelerators.find(name)) for name in names]


def load(
    context: int = 4096, sequences: int = 1, *, ratio: float = 0.0, engine: EngineKind = "vllm", kv: int = 16
) -> Load:
    return Load(context_tokens=context, num_sequences=sequences, memory_ratio=ratio, engine=engine, kv_bits=kv)


def fit(model: ModelShape, on: Sequence[Card], asked: Load, *, tensor: int = 1, stages: tuple[int, ...] = ()) -> Fit:
    stages = stages or even_stages(len(model.layers), len(on) // tensor)
    return plan_fit(model, on, Split(tensor=tensor, stages=stages), asked)


def test_one_card_leaves_the_cache_that_vllm_logged() -> None:
    """Qwen3-8B, A100 40 GB, utilization 0.9: 15.27 GiB of weights, 18.69 GiB of cache (GPUStack's log of vLLM)."""
    (rank,) = fit(shape("Qwen3-8B"), cards("A100 SXM 40GB"), load(ratio=0.9)).ranks
    assert rank.weight_bytes / GIB == pytest.approx(15.27, abs=0.02)
    assert rank.room_bytes / GIB == pytest.approx(18.69, rel=0.05)


def test_even_pipeline_of_uneven_cards_uses_what_was_published() -> None:
    """Qwen3-32B-AWQ on A5000 and A4000, utilization 0.90, context 4,096: 14.4 of 24 GB and 15.2 of 16 GB in use."""
    found = fit(shape("Qwen3-32B", "awq"), cards("A5000", "A4000"), load(ratio=0.9))
    assert found.split.stages == (32, 32)
    assert found.ranks[0].used_bytes / 1e9 == pytest.approx(14.4, rel=0.05)
    assert found.ranks[1].used_bytes / 1e9 == pytest.approx(15.2, rel=0.05)
    assert found.weakest.card.name == "RTX A4000"


def test_uneven_pipeline_keeps_more_tokens() -> None:
    model, on = shape("Qwen3-32B", "awq"), cards("A5000", "A4000")
    even, uneven = (fit(model, on, load(ratio=0.9), stages=stages) for stages in ((32, 32), (40, 24)))
    assert uneven.num_kv_tokens > 1.8 * even.num_kv_tokens


def test_embedding_and_head_sit_at_the_ends() -> None:
    first, *_, last = stage_weights(shape("Llama-3.1-70B"), Split(tensor=2, stages=(20, 20, 20, 20)))
    assert first["embedding"] == last["head"] == 128_256 * 8192
    assert "head" not in first
    assert "embedding" not in last


def test_tied_embedding_is_held_twice_in_a_pipeline() -> None:
    model = shape("Qwen3-0.6B")
    first, last = stage_weights(model, Split(stages=(14, 14)))
    assert first["embedding"] == last["head"] == 151_936 * 1024 * 2
    (only,) = stage_weights(model, Split(stages=(28,)))
    assert "head" not in only


def test_latent_cache_is_not_divided_by_tensor_parallelism() -> None:
    model = shape("DeepSeek-R1")
    found = fit(model, cards(*["H200"] * 8), load(32_768, 8), tensor=8)
    assert found.ranks[0].sequence_bytes == kv_bytes_of(model, 32_768)


def test_more_ranks_than_key_heads_keep_copies() -> None:
    model = shape("Qwen3-235B-A22B")
    eight = fit(model, cards(*["H200"] * 8), load(), tensor=8).ranks[0]
    assert eight.sequence_bytes == kv_bytes_of(model, 4096) // 4


def test_windows_are_counted_once_they_are_full() -> None:
    found = fit(shape("Gemma-3-27B"), cards("H100"), load(131_072))
    assert found.ranks[0].sequence_bytes == kv_bytes_of(shape("Gemma-3-27B"), 131_072)
    assert found.ranks[0].sequence_bytes < 131_072 * 62 * 8192 / 4


@pytest.mark.parametrize(
    ("card", "version", "tokens"),
    [
        ("RTX 4090", (), 2048),
        ("A100 SXM 80GB", (), 2048),
        ("H100", (), 8192),
        ("DGX Spark", (), 8192),
        ("H200", (), 8192),
        ("B200", (), 16_384),
        ("MI300X", (), 16_384),
        ("B200", (0, 26), 8192),
    ],
)
def test_steps_are_as_large_as_vllm_makes_them_on_the_card(card: str, version: tuple[int, ...], tokens: int) -> None:
    assert batched_tokens(replace(load(), version=version), *cards(card)) == tokens


def test_vllm_does_not_start_without_room_for_the_steps_under_way() -> None:
    """Its check before the start: each of 52 layers holds a window of 1,024 tokens, and two steps of 8,192."""
    model, (card,) = shape("Gemma-3-27B"), cards("H100")
    asked = replace(load(131_072), batched_tokens=8192)
    found = fit(model, [card], asked)
    (rank,) = found.ranks
    assert rank.in_flight_bytes == 52 * 8192 * (2 * 8192 - 1)
    enough = rank.weight_bytes + rank.overhead_bytes + rank.sequence_bytes
    tight = fit(model, [card], replace(asked, memory_ratio=(enough + rank.in_flight_bytes // 2) / reported_bytes(card)))
    assert found.fits
    assert not tight.fits
    assert 0 < tight.max_context_tokens < 131_072
    assert fit(model, [card], replace(tight.load, batched_tokens=1024)).fits


def test_a_request_has_two_states_where_vllm_caches_prefixes() -> None:
    model, (card,) = shape("Qwen3-Next-80B-A3B"), cards("B300")
    state = sum(layer.cache.state_bytes for layer in model.layers if layer.cache.kind == "state")
    now, before = (fit(model, [card], replace(load(4096), version=version)).ranks[0] for version in ((), (0, 27)))
    assert now.sequence_bytes - before.sequence_bytes == state


def test_what_is_not_free_is_refused_by_vllm() -> None:
    (card,) = cards("RTX 4090")
    found = fit(shape("Qwen3-8B"), [replace(card, free_bytes=20 * GIB)], load())
    assert found.shortage is not None
    assert "20.0 GiB free" in found.shortage.what
    assert "lower the ratio to 0.83" in found.shortage.hint


def test_shortage_of_weights_names_the_numbers() -> None:
    found = fit(shape("Llama-3.1-70B"), cards("RTX 4090", "RTX 4090"), load(), tensor=2)
    assert found.shortage is not None
    assert "RTX 4090 of stage 0 must hold 67" in found.shortage.what
    assert "21.6 GiB (gpu-memory-utilization 0.92 of 23.5 GiB)" in found.shortage.what
    assert found.shortage.needed_bytes > found.shortage.available_bytes


def test_shortage_of_cache_names_the_context() -> None:
    found = fit(shape("Llama-3.1-70B", "awq"), cards("RTX 4090", "RTX 4090"), load(32_768), tensor=2)
    assert found.shortage is not None
    assert "32768 tokens" in found.shortage.what
    assert 4096 < found.max_context_tokens < 32_768


def test_context_beyond_the_model_is_refused() -> None:
    found = fit(shape("Qwen3-8B"), cards("H200"), load(100_000))
    assert found.shortage is not None
    assert "40960" in found.shortage.what


def test_cards_must_be_as_many_as_ranks() -> None:
    with pytest.raises(ValueError, match="2 ranks"):
        plan_fit(shape("Qwen3-8B"), cards("H100"), Split(tensor=2, stages=(36,)), load())


def test_llama_cpp_must_hold_all_sequences_at_once() -> None:
    model, on = shape("Llama-3.1-8B", "q4_k_m"), cards("RTX 3060")
    assert fit(model, on, load(8192, 2, engine="llama.cpp")).fits
    assert not fit(model, on, load(8192, 20, engine="llama.cpp")).fits
    assert fit(model, on, load(8192, 20), stages=(32,)).fits


def test_sglang_keeps_a_reserve() -> None:
    found = fit(shape("Qwen3-32B"), cards("H100", "H100"), load(8192, engine="sglang"), tensor=2)
    (first, _) = found.ranks
    reserve_mib = 512 + 1.5 * 8192 + 2 / 8 * 1024 + 2 * 256
    assert 0.95 < first.budget_bytes / (first.card.memory_bytes - reserve_mib * 1024**2) < 1
    assert first.overhead_bytes == 0


def test_changes_that_are_named_work() -> None:
    on = cards("RTX 4090", "RTX 4090")
    found = fit(shape("Llama-3.1-70B"), on, load(8192, 4), tensor=2)
    changes = {change.kind: change for change in nearest_changes(found, on)}
    assert changes["tensor"].what == "tensor 8 instead of 2: 8 cards like these"
    assert changes["pipeline"].what == "4 stages instead of 1: 8 cards like RTX 4090"
    assert all(change.fit.holds for change in changes.values())


def test_load_that_is_too_much_gets_smaller_ones() -> None:
    on = cards("RTX 4090", "RTX 4090")
    found = fit(shape("Llama-3.1-70B", "awq"), on, load(4096, 8), tensor=2)
    assert (found.fits, found.holds, found.max_sequences) == (True, False, 2)
    whats = {change.kind: change.what for change in nearest_changes(found, on)}
    assert whats["sequences"] == "2 requests at once instead of 8"
    assert whats["context"].startswith("context 1")


def test_layers_are_moved_where_that_suffices() -> None:
    on = cards("A5000", "A4000")
    found = fit(shape("Qwen3-32B", "awq"), on, load(32_768, ratio=0.9))
    assert not found.fits
    stages = next(change for change in nearest_changes(found, on) if change.kind == "stages")
    assert sum(stages.fit.split.stages) == 64
    assert stages.fit.split.stages[0] > 32


def test_what_fits_needs_no_change() -> None:
    on = cards("H200")
    assert nearest_changes(fit(shape("Qwen3-8B"), on, load()), on) == ()


def test_told_cache_makes_the_blocks_that_vllm_makes() -> None:
    """64 MiB for builtin:tiny (4 layers, 4 heads of 32 numbers, fp32) in blocks of 32 tokens: vLLM 0.32 makes 512."""
    small = make_shape(num_layers=4, hidden=128)
    cache = Cache(kind="full", num_kv_heads=4, key_dim=32, value_dim=32)
    small = replace(small, layers=share_equal_layers(replace(layer, cache=cache) for layer in small.layers))
    (card,) = cards("EPYC 9004")
    asked = Load(context_tokens=2048, kv_bits=32, cache_bytes=64 * 1024**2)
    found = plan_fit(small, [card], Split(stages=(4,)), asked)
    assert found.num_kv_blocks(32) == 512
    assert found.num_kv_tokens == found.num_kv_blocks(32) * 32
    two = plan_fit(small, [card] * 2, Split(stages=(3, 1)), asked)
    assert two.num_kv_blocks(32) == 64 * 1024**2 // (32 * 2 * 4 * 32 * 4) // 3


def test_told_cache_that_is_too_small_is_told() -> None:
    asked = replace(load(32_768), cache_bytes=1 << 30)
    found = fit(shape("Qwen3-8B"), cards("H100"), asked)
    assert found.shortage is not None
    assert "set to take 1.00 GiB" in found.shortage.what


def test_told_cache_beyond_the_card_is_refused() -> None:
    found = fit(shape("Qwen3-8B"), cards("RTX 4090"), replace(load(), cache_bytes=20 << 30))
    assert found.shortage is not None
    assert "20.0 GiB of cache" in found.shortage.what


MEASURED = Path(os.environ.get("LONGBOAT_TEST_DATA", ""), "measured_silicon.csv")
NAMED = {"meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B", "zhipuai/GLM-5": "zai-org/GLM-5"}


@pytest.mark.skipif(not MEASURED.is_file(), reason="LONGBOAT_TEST_DATA names no folder with measured_silicon.csv")
def test_what_was_measured_is_not_refused() -> None:
    with MEASURED.open() as file:
        rows = [row for row in csv.DictReader(file) if row["attention_dp_size"] in ("", "1")]
    plans = {tuple(row[name] for name in ("model_path", "precision", "system", "backend", "tp_size")) for row in rows}
    refused = [plan for plan in sorted(plans) if plan[4] not in ("16", "64") and not measured_fit(*plan).fits]
    assert len(plans) > 20
    assert refused == []


def measured_fit(path: str, precision: str, system: str, backend: str, tensor: str) -> Fit:
    file = MEASURED.parent / "model_configs" / f"{NAMED.get(path, path).replace('/', '--')}_config.json"
    model = shape_from_config(json.loads(file.read_text()))
    wanted = {"fp8": "fp8", "fp4": "nvfp4"}.get(precision, "")
    if wanted and model.quantization not in (wanted, "mxfp4"):
        model = requantized(model, wanted)
    engine: EngineKind = "vllm" if backend == "vllm" else "sglang"
    on = cards(system.removesuffix("_sxm")) * int(tensor)
    return fit(model, on, load(engine=engine, ratio=0.92), tensor=int(tensor))


# --- properties -------------------------------------------------------------------------------------------------

NAMES = (
    "Qwen3-8B",
    "Qwen3-30B-A3B",
    "DeepSeek-R1",
    "Gemma-3-27B",
    "Qwen3-Next-80B-A3B",
    "gpt-oss-120b",
    "Llama-3.2-1B",
)
PLANS = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(("", "awq", "fp8", "q4_k_m")),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((1, 2, 3)),
    st.sampled_from(("vllm", "sglang", "llama.cpp")),
    st.integers(1, 40_000),
    st.integers(1, 64),
)
MEMORY = st.integers(1, 200)


def planned(plan: tuple[str, str, int, int, EngineKind, int, int], memory_gib: int) -> Fit:
    name, quantization, tensor, pipeline, engine, context, sequences = plan
    model = shape(name, quantization)
    card = Card(name="card", memory_bytes=memory_gib * GIB, usable_bytes=memory_gib * GIB)
    split = Split(tensor=tensor, stages=even_stages(len(model.layers), pipeline))
    return plan_fit(model, [card] * split.num_ranks, split, load(context, sequences, engine=engine))


@settings(max_examples=150, deadline=None)
@given(PLANS, MEMORY)
def test_no_plan_exceeds_a_card(plan: tuple[str, str, int, int, EngineKind, int, int], memory_gib: int) -> None:
    found = planned(plan, memory_gib)
    if not found.fits:
        assert found.shortage is not None
        return
    for rank in found.ranks:
        assert rank.used_bytes <= rank.budget_bytes <= rank.card.memory_bytes
        assert rank.cache_bytes >= rank.sequence_bytes - 1
        assert found.num_kv_tokens <= rank.num_tokens


@settings(max_examples=150, deadline=None)
@given(PLANS, MEMORY, st.integers(0, 100))
def test_more_memory_never_makes_it_worse(
    plan: tuple[str, str, int, int, EngineKind, int, int], memory_gib: int, more_gib: int
) -> None:
    less, more = planned(plan, memory_gib), planned(plan, memory_gib + more_gib)
    assert more.fits >= less.fits
    assert more.holds >= less.holds


@settings(max_examples=100, deadline=None)
@given(PLANS, st.integers(1, 58), st.integers(0, 10))
def test_more_memory_never_keeps_fewer_tokens(
    plan: tuple[str, str, int, int, EngineKind, int, int], memory_gib: int, more_gib: int
) -> None:
    """Within one class of cards: on larger ones engines take larger steps, and keep less for caches."""
    if any(memory_gib < edge <= memory_gib + more_gib for edge in (20, 35, 60)):
        return
    less, more = planned(plan, memory_gib), planned(plan, memory_gib + more_gib)
    if less.load == more.load:
        assert more.num_kv_tokens >= less.num_kv_tokens
        assert more.max_context_tokens >= less.max_context_tokens


def test_defaults_of_large_cards_give_way_where_they_do_not_fit() -> None:
    """vLLM's steps of 8,192 tokens and 1,024 requests leave an H100 too little for the longest context."""
    found = fit(shape("Qwen3-32B"), cards("H100"), load(38_000))
    assert found.holds
    assert (found.load.batched_tokens, found.load.engine_sequences) == (2048, 256)
    short = fit(shape("Qwen3-32B"), cards("H100"), load(4096))
    assert short.load.batched_tokens == 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 6))
def test_stages_add_up_to_the_model(name: str, pipeline: int) -> None:
    model = shape(name)
    stages = stage_weights(model, Split(stages=even_stages(len(model.layers), pipeline)))
    twice = model.embedding.num_bytes if model.tied and pipeline > 1 and model.embedding else 0
    assert sum(sum(parts.values()) for parts in stages) == model.weight_bytes + twice


def settings_used(found: Fit) -> Load:
    """What the engine is told beside lengths and requests."""
    return replace(found.load, context_tokens=1, num_sequences=1)


@example(("DeepSeek-R1", "fp8", 2, 3, "vllm", 11_906, 26), 131)  # one request of 64,018 tokens has smaller steps
@settings(max_examples=60, deadline=None)
@given(PLANS, MEMORY)
def test_largest_context_is_the_largest(plan: tuple[str, str, int, int, EngineKind, int, int], memory_gib: int) -> None:
    """With the settings that were planned: smaller ones, for longer requests, are another plan."""
    found = planned(plan, memory_gib)
    longest = found.max_context_tokens
    if not found.ranks or not longest or plan[4] == "llama.cpp":  # its buffers grow with the context
        return
    assert planned((*plan[:5], longest, 1), memory_gib).fits
    longer = planned((*plan[:5], longest + 1, 1), memory_gib)
    assert not longer.fits or settings_used(longer) != settings_used(found)


def test_what_does_not_fit_is_told_with_the_settings_that_allow_most() -> None:
    """SGLang's own reserve on this card leaves less than a smaller one, which does not do either."""
    plan: tuple[str, str, int, int, EngineKind, int, int] = ("Gemma-3-27B", "awq", 1, 1, "sglang", 20_968, 1)
    found = planned(plan, 21)
    assert not found.fits
    assert found.load.memory_ratio > 0
    (change,) = [change for change in nearest_changes(found, [found.ranks[0].card]) if change.kind == "context"]
    assert change.fit.load.context_tokens == found.max_context_tokens
    assert not planned((*plan[:5], found.max_context_tokens + 1, 1), 21).fits
