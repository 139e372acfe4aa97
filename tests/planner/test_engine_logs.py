"""Memory beside public logs of engines: the room for keys and values that vLLM printed, and whether it started."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.quantized_names import named_model
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.split_shape import Load, Split, card_of

LIBRARY = built_in_library()
GIB = 1024**3
WITHIN = 0.1


@dataclass(frozen=True, kw_only=True)
class Log:
    """One start of vLLM as its log tells it.

    room_gib: "Available KV cache memory"; 0 or less where nothing is left for it
    starts: the engine started; it does not where the room is less than one request of the longest context
    graphs: this version counts CUDA graphs before it gives memory to the cache (from 0.22 on)
    """

    source: str
    model: str
    card: str
    room_gib: float
    starts: bool = True
    tensor: int = 1
    ratio: float = 0.9
    context: int = 4096
    sequences: int = 0
    batched: int = 0
    kv_bits: int = 16
    graphs: bool = False


VLLM = "github.com/vllm-project/vllm/"
LOGS = (
    Log(source=VLLM + "issues/21348", model="Qwen3-235B-A22B-FP8", card="H100", tensor=4, room_gib=8.11),
    Log(source=VLLM + "issues/27508", model="gpt-oss-120b", card="H100", ratio=0.95, batched=1024, room_gib=1.71),
    Log(source=VLLM + "issues/23278", model="gpt-oss-120b", card="H100", room_gib=-2.14, starts=False),
    # 1,381 blocks of 16 tokens.
    Log(source=VLLM + "pull/12569", model="Llama-3.1-70B-W8A8", card="H100", ratio=0.98, context=2048, room_gib=6.74),
    Log(source=VLLM + "pull/10511", model="Llama-3-8B", card="A100", context=8192, batched=8192, room_gib=53.29),
    Log(source=VLLM + "pull/10511", model="Llama-3-8B", card="A100", tensor=2, batched=8192, room_gib=58.97),
    Log(source=VLLM + "issues/13882", model="Qwen2.5-7B-AWQ", card="RTX 4060 Ti 8GiB", ratio=0.7, room_gib=-1.05,
        starts=False),
    Log(
        source=VLLM + "issues/50722", model="Qwen3.5-35B-A3B", card="A100", tensor=4, ratio=0.85, batched=8192,
        sequences=1024, room_gib=43.4, graphs=True,
    ),
    Log(
        source="github.com/noonghunna/club-3090/issues/1087", model="Qwen3.5-27B-FP8", card="RTX 5090", tensor=2,
        ratio=0.92, room_gib=12.25, graphs=True,
    ),
    Log(
        source="github.com/noonghunna/club-3090/issues/612", model="Qwen3.5-35B-A3B-NVFP4", card="RTX 5090",
        ratio=0.92, context=131_072, sequences=1, batched=8192, kv_bits=8, room_gib=5.98, graphs=True,
    ),
    # Version 0 takes a whole prompt in one step: the longest is the step.
    Log(source=VLLM + "issues/10517 20k", model="Llama-3.1-8B", card="RTX 3090", context=20_000, batched=20_000,
        room_gib=3.81),
    Log(source=VLLM + "issues/10517 29k", model="Llama-3.1-8B", card="RTX 3090", context=29_000, batched=29_000,
        room_gib=2.89, starts=False),
    Log(
        source=VLLM + "issues/15815", model="Qwen2.5-32B", card="L40S", tensor=2, context=10_000, batched=10_000,
        room_gib=7.71,
    ),
    # Chunks of 2,048 tokens, as the default length of 131,072 tokens is above 32,768.
    Log(
        source=VLLM + "issues/13061", model="DeepSeek-R1-Distill-Qwen-14B", card="RTX 4090", tensor=2, ratio=0.98,
        context=131_072, batched=2048, room_gib=8.69, starts=False,
    ),
    # 7,351 blocks of 16 tokens.
    Log(source=VLLM + "pull/2031", model="Llama-2-7B", card="A100 80GB", batched=4096, room_gib=57.43),
    Log(source="GPUStack's performance lab", model="Qwen3-8B", card="A100 40GB", context=8192, room_gib=18.69),
)  # fmt: skip


# Published configs of models that the catalog does not have.
CONFIGS = {
    "DeepSeek-R1-Distill-Qwen-14B": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
        "hidden_size": 5120, "intermediate_size": 13_824, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "vocab_size": 152_064, "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    },
    "Llama-2-7B": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
        "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32_000, "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    },
}  # fmt: skip


def fit_of(log: Log) -> Fit:
    config = CONFIGS.get(log.model)
    shape = shape_from_config(config, name=log.model) if config else named_model(log.model, LIBRARY)
    name, _, size = log.card.rpartition(" ")
    sized = size.endswith("GiB")
    card = card_of(
        LIBRARY.accelerators.find(name if sized else log.card),
        memory_bytes=int(size.removesuffix("GiB")) * GIB if sized else 0,
    )
    load = Load(
        context_tokens=log.context,
        memory_ratio=log.ratio,
        engine_sequences=log.sequences,
        batched_tokens=log.batched,
        kv_bits=log.kv_bits,
        graphs=log.graphs,
    )
    return plan_fit(shape, [card] * log.tensor, Split(tensor=log.tensor, stages=(len(shape.layers),)), load)


@pytest.mark.parametrize("log", LOGS, ids=[f"{log.source.rpartition('/')[2]} {log.model}" for log in LOGS])
def test_room_for_the_cache_is_what_the_engine_logged(log: Log) -> None:
    found = fit_of(log)
    assert found.fits == log.starts
    if log.room_gib > 0:
        assert found.ranks[0].room_bytes / GIB == pytest.approx(log.room_gib, rel=WITHIN)


def test_metas_405b_in_fp8_keeps_attention_in_16_bits() -> None:
    """github.com/vllm-project/vllm/issues/6746: "Loading model weights took 57.7520 GB" on each of eight H100."""
    found = fit_of(Log(source="", model="Llama-3.1-405B-FP8", card="H100", tensor=8, room_gib=0.0))
    assert found.ranks[0].weight_bytes / GIB == pytest.approx(57.752, rel=0.02)
