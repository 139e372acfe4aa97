"""Memory of llama.cpp on accelerators: within 1 % of what it says itself (docs/benchmarks/memory-peers-gguf.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.quantized_names import named_model
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.split_shape import Load, Split, card_of

LIBRARY = built_in_library()
MIB, GIB = 1024**2, 1024**3
LARGE_BYTES = 1024 * GIB


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of llama.cpp 2026.10: MiB on each device of weights, caches and buffers."""

    model: str
    context: int
    stages: tuple[int, ...]
    mib: tuple[int, ...]


ANSWERS = (
    Said("Llama-3.1-8B-Q4_K_M", 4096, (32,), (5035,)),
    Said("Llama-3.1-8B-Q4_K_M", 131_072, (32,), (21031,)),
    Said("Llama-3.3-70B-Q4_K_M", 8192, (41, 39), (21806, 21564)),
    Said("Qwen3-32B-Q4_K_M", 32_768, (33, 31), (13837, 13616)),
    Said("Qwen3-30B-A3B-Q4_K_M", 32_768, (48,), (20712,)),
    Said("Mistral-7B-Q4_K_M", 32_768, (32,), (8341,)),
)


def planned(said: Said, *, kind: str = "", slots: int = 1) -> Fit:
    card = replace(card_of(LIBRARY.accelerators.find("B300 SXM")), memory_bytes=LARGE_BYTES, usable_bytes=LARGE_BYTES)
    if kind == "cpu":
        card = replace(card, kind="cpu")
    load = Load(context_tokens=said.context, num_sequences=slots, engine="llama.cpp", fixed=True)
    return plan_fit(named_model(said.model, LIBRARY), [card] * len(said.stages), Split(stages=said.stages), load)


@pytest.mark.parametrize("said", ANSWERS)
def test_memory_is_what_llama_cpp_says(said: Said) -> None:
    """What the accelerator's runtime takes is not among what it says."""
    planned_mib = [(rank.used_bytes - rank.overhead["runtime"]) / MIB for rank in planned(said).ranks]
    assert planned_mib == pytest.approx(said.mib, rel=0.01)


def test_room_for_a_batch_is_kept_in_caches_with_a_window() -> None:
    """gpt-oss-20b at 131,072 tokens: 3,090 MiB of caches, 18 of them for windows of 128 tokens in 12 layers."""
    (rank,) = planned(Said("gpt-oss-20b", 131_072, (24,), (0,))).ranks
    assert rank.cache_bytes / MIB == pytest.approx(3090, rel=0.001)


@pytest.mark.parametrize(("context", "slots", "more_mib"), [(8192, 4, 3792), (8192, 8, 8848), (1024, 8, 3472)])
def test_each_slot_has_room_for_a_batch_in_its_windows(context: int, slots: int, more_mib: int) -> None:
    """Gemma-3-27B has 52 layers with a window of 1,024 tokens. llama.cpp says how much more it takes than for one."""
    said = Said("Gemma3-27B-Q4_K_M", context, (62,), ())
    one, all_slots = (planned(said, slots=count).ranks[0].used_bytes for count in (1, slots))
    assert (all_slots - one) / MIB == pytest.approx(more_mib, rel=0.012)


def test_slots_that_do_not_fit_beside_their_windows_are_left_out() -> None:
    """The room for a batch counts in each slot: fewer slots need less of it."""
    card = card_of(LIBRARY.accelerators.find("RTX 3090"))
    shape = named_model("Gemma3-27B-Q4_K_M", LIBRARY)
    load = Load(context_tokens=2048, num_sequences=64, engine="llama.cpp", fixed=True)
    most = plan_fit(shape, [card], Split(stages=(62,)), load).max_sequences
    assert 1 <= most < 64
    assert plan_fit(shape, [card], Split(stages=(62,)), replace(load, num_sequences=most)).fits


def test_a_processor_holds_the_embedding() -> None:
    on_card, on_processor = (planned(ANSWERS[0], kind=kind).ranks[0].weights for kind in ("", "cpu"))
    assert "embedding" not in on_card
    assert on_processor["embedding"] > 200 * MIB


def test_no_more_is_used_than_cuda_reports() -> None:
    """An RTX 3090 has 24 GiB in ``nvidia-smi`` and 23.56 in CUDA."""
    said = Said("Qwen3-32B-Q4_K_M", 8192, (64,), (0,))
    card = card_of(LIBRARY.accelerators.find("RTX 3090"))
    load = Load(context_tokens=said.context, engine="llama.cpp", fixed=True)
    (rank,) = plan_fit(named_model(said.model, LIBRARY), [card], Split(stages=said.stages), load).ranks
    assert rank.budget_bytes == pytest.approx(23.56 * GIB, rel=0.002)


@pytest.mark.parametrize("slots", [1, 4])
def test_slots_hold_as_many_requests_as_they_are_and_none_longer_than_one_of_them(slots: int) -> None:
    fit = planned(Said("Qwen3-32B-Q4_K_M", 4096, (64,), (0,)), slots=slots)
    assert fit.fits
    assert (fit.max_sequences, fit.request_tokens, fit.num_kv_tokens) == (slots, 4096, slots * 4096)


def test_what_has_room_for_fewer_slots_than_are_asked_for_says_for_how_many() -> None:
    card = card_of(LIBRARY.accelerators.find("RTX 3090"))
    load = Load(context_tokens=8192, num_sequences=64, engine="llama.cpp")
    fit = plan_fit(named_model("Qwen3-8B-Q4_K_M", LIBRARY), [card], Split(stages=(36,)), load)
    assert not fit.fits
    assert 1 < fit.max_sequences < 64
