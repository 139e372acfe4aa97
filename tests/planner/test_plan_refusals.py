"""Twenty requests that cannot be met: each refusal names the constraint, its numbers, and the nearest change."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.planner.memory.fit import plan_fit
from longboat.planner.memory.fit_changes import nearest_changes
from longboat.planner.memory.split_shape import EngineKind, Load, Split, card_of, even_stages

LIBRARY = built_in_library()
GIB = 1024**3


@dataclass(frozen=True)
class Request:
    """A model on cards; ``says`` must be in the refusal, ``change`` in its hint or in one of the changes."""

    model: str
    cards: str
    says: str
    change: str
    quantization: str = ""
    tensor: int = 1
    stages: tuple[int, ...] = ()
    context: int = 4096
    sequences: int = 1
    ratio: float = 0.0
    engine: EngineKind = "vllm"
    free_gib: int = 0
    cache_gib: int = 0
    expert_parallel: bool = False


REQUESTS = (
    Request("Llama-3.1-70B", "2x RTX 4090", "must hold 67.2 GiB", "8 cards like these", tensor=2),
    Request("Llama-3.1-8B", "1x RTX 3060", "must hold 1", "weights in fp8"),
    Request("Llama-3.1-405B", "8x H100", "must hold 9", "weights in fp8", tensor=8),
    Request("DeepSeek-R1", "8x H100", "must hold 8", "16 cards", tensor=8),
    Request("Qwen3-8B", "1x RTX 4090", "of cache for 40960 tokens", "context 3", context=40_960),
    Request("Llama-3.1-70B", "2x RTX 4090", "cache for 32768", "context 10925", "awq", tensor=2, context=32_768),
    Request("Qwen3-14B", "3x RTX 4090", "40 attention heads are not divisible by tensor 3", "tensor 2 or 4", tensor=3),
    Request("Phi-4", "4x RTX 4090", "10 key-value heads and tensor 4", "tensor 2 works", tensor=4),
    Request("GLM-4.5-Air", "8x RTX 4090", "1408 inputs / 8 ranks = 176", "tensor 1 works", "awq", tensor=8),
    Request("Qwen3-235B-A22B", "8x H100", "1536 inputs / 8 ranks = 192", "tensor 4", "fp8", tensor=8),
    Request("Qwen3-32B", "16x RTX A4000", "25600 inputs / 16 ranks = 1600", "tensor 8", "awq", tensor=16),
    Request("Qwen3-8B", "1x H100", "100000 tokens is longer than the model's 40960", "40960 tokens", context=100_000),
    Request("Qwen3-8B", "1x RTX 4090", "has 20.0 GiB free", "lower the ratio to 0.83", free_gib=20),
    Request("Qwen3-8B", "1x H100", "set to take 1.00 GiB", "context", context=32_768, cache_gib=1),
    Request("Qwen3-32B", "2x RTX 4090", "2 stages of 40, 20 layers do not make 64", "64 stages", stages=(40, 20)),
    Request("Llama-3.1-8B", "2x RTX 4090", "divides layers only", "2 stages", "q4_k_m", tensor=2, engine="llama.cpp"),
    Request(
        "Llama-3.1-8B", "1x RTX 3060", "40 x 8192 tokens", "requests at once", "q4_k_m", 1, (), 8192, 40, 0, "llama.cpp"
    ),
    Request("Qwen3-32B", "2x RTX A4000", "RTX A4000 of stage", "weights in", tensor=1, ratio=0.9),
    Request("gpt-oss-120b", "1x RTX 5090", "must hold 6", "cards like these"),
    Request("Kimi-K2.5", "8x H100", "must hold", "cards", tensor=8, expert_parallel=True),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: f"{request.model} on {request.cards}")
def test_refusal_names_constraint_numbers_and_nearest_change(request_: Request) -> None:
    shape = shape_of_entry(LIBRARY.models[request_.model])
    if request_.quantization:
        shape = requantized(shape, request_.quantization)
    count, name = request_.cards.split("x ", 1)
    card = card_of(LIBRARY.accelerators.find(name))
    card = replace(card, free_bytes=request_.free_gib * GIB) if request_.free_gib else card
    cards = [card] * int(count)
    stages = request_.stages or even_stages(len(shape.layers), int(count) // request_.tensor)
    split = Split(tensor=request_.tensor, stages=stages, expert_parallel=request_.expert_parallel)
    asked = Load(
        context_tokens=request_.context,
        num_sequences=request_.sequences,
        memory_ratio=request_.ratio,
        engine=request_.engine,
        cache_bytes=request_.cache_gib * GIB,
    )
    fit = plan_fit(shape, cards, split, asked)
    assert not fit.fits
    assert fit.shortage is not None
    assert request_.says in fit.shortage.what
    assert re.search(r"\d", fit.shortage.what)
    told = [fit.shortage.hint, *(change.what for change in nearest_changes(fit, cards))]
    assert any(request_.change in what for what in told), told
