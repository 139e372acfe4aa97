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
    version: of vLLM: what its sampler takes, and whether CUDA graphs count, depend on it
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
    version: tuple[int, ...] = (0, 10)
    graphs: bool = True
    expert_parallel: bool = False


VLLM = "github.com/vllm-project/vllm/"
OLD = "github.com/llm-d/llm-d-benchmark/config_explorer/empirical-vllm-memory-results.md"
SWEEP = "github.com/llm-d-incubation/llm-d-planner/accuracy/accuracy_report.md"
LOGS = (
    Log(source=VLLM + "issues/21348", model="Qwen3-235B-A22B-FP8", card="H100", tensor=4, room_gib=8.11),
    Log(source=VLLM + "issues/27508", model="gpt-oss-120b", card="H100", ratio=0.95, batched=1024, room_gib=1.71),
    # The defaults of that version: the planner would take fewer sequences, with which it starts.
    Log(source=VLLM + "issues/23278", model="gpt-oss-120b", card="H100", batched=8192, sequences=1024, room_gib=-2.14,
        starts=False),
    # 1,381 blocks of 16 tokens. It does not say its version.
    Log(source=VLLM + "pull/12569", model="Llama-3.1-70B-W8A8", card="H100", ratio=0.98, context=2048, room_gib=6.74,
        version=()),
    Log(source=VLLM + "pull/10511", model="Llama-3-8B", card="A100", context=8192, batched=8192, room_gib=53.29),
    Log(source=VLLM + "pull/10511", model="Llama-3-8B", card="A100", tensor=2, batched=8192, room_gib=58.97),
    Log(source=VLLM + "issues/13882", model="Qwen2.5-7B-AWQ", card="RTX 4060 Ti 8GiB", ratio=0.7, room_gib=-1.05,
        starts=False),
    Log(
        source=VLLM + "issues/50722", model="Qwen3.5-35B-A3B", card="A100", tensor=4, ratio=0.85, batched=8192,
        sequences=1024, room_gib=43.4, version=(0, 26),
    ),
    Log(
        source="github.com/noonghunna/club-3090/issues/1087", model="Qwen3.5-27B-FP8", card="RTX 5090", tensor=2,
        ratio=0.92, room_gib=12.25, version=(0, 24),
    ),
    Log(
        source="github.com/noonghunna/club-3090/issues/612", model="Qwen3.5-35B-A3B-NVFP4", card="RTX 5090",
        ratio=0.92, context=131_072, sequences=1, batched=8192, kv_bits=8, room_gib=5.98, version=(0, 24),
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
    # Chunks of 2,048 tokens, as the default length of 131,072 tokens is above 32,768. Room for 81,536 tokens; the
    # rank without the sampler logged 8.69 GiB.
    Log(
        source=VLLM + "issues/13061", model="DeepSeek-R1-Distill-Qwen-14B", card="RTX 4090", tensor=2, ratio=0.98,
        context=131_072, batched=2048, room_gib=7.46, starts=False,
    ),
    # 7,351 blocks of 16 tokens.
    Log(source=VLLM + "pull/2031", model="Llama-2-7B", card="A100 80GB", batched=4096, room_gib=57.43),
    Log(source="GPUStack's performance lab", model="Qwen3-8B", card="A100 40GB", context=8192, room_gib=18.69),
    # Below this line: logs that were found after the formulas' form was chosen from those above.
    Log(source=VLLM + "issues/24881", model="Qwen3-Next-80B-A3B", card="H100", tensor=4, context=32_768,
        room_gib=26.74),
    Log(
        source="a log of Qwen3-Next-80B-A3B-Instruct, vLLM 0.10.2, 2025-10-23", model="Qwen3-Next-80B-A3B",
        card="H200", tensor=2, context=262_144, room_gib=44.59,
    ),
    Log(
        source="a log of Qwen3-235B-A22B-Instruct-2507-FP8 on 8xL40S, vLLM 0.10.2, 2025-09-24",
        model="Qwen3-235B-A22B-FP8", card="L40S", tensor=8, expert_parallel=True, context=32_768, room_gib=10.65,
    ),
    Log(
        source="a log of Qwen3-235B-A22B-Instruct-2507-FP8 on 4x RTX PRO 6000, 2026-08-21", model="Qwen3-235B-A22B-FP8",
        card="RTX PRO 6000", tensor=4, context=32_768, sequences=32, room_gib=27.85, version=(0, 27),
    ),
    Log(
        source="a log of gemma-4-31B-it on B300, vLLM 0.26.0, 2026-08-06", model="Gemma-4-31B", card="B300",
        ratio=0.92, context=16_384, batched=8192, room_gib=182.37, version=(0, 26),
    ),
    Log(
        source="a log of Llama-3.1-8B-Instruct on A100 80GB, vLLM 0.31.0, 2026-10-06", model="Llama-3.1-8B",
        card="A100", ratio=0.92, context=131_072, room_gib=56.21, version=(0, 31),
    ),
    Log(
        source="myoceane.fr/index.php/ai-vllm-a100-gemma-4", model="gpt-oss-20b", card="A100", ratio=0.65,
        context=131_072, room_gib=36.56, version=(0, 19),
    ),
    Log(
        source="myoceane.fr/index.php/ai-vllm-a100-gemma-4", model="Gemma-4-26B-A4B", card="A100", context=131_072,
        room_gib=21.5, version=(0, 19), graphs=False,
    ),
    Log(
        source=VLLM + "issues/49079", model="Qwen3.5-35B-A3B-NVFP4", card="DGX Spark", ratio=0.8, context=131_072,
        batched=65_536, sequences=512, kv_bits=8, room_gib=58.38, version=(0, 25),
    ),
    *(
        Log(source=OLD, model=model, card="H100", tensor=tensor, ratio=ratio, context=16_000, room_gib=room,
            version=(0, 11))
        for model, tensor, ratio, room in (
            ("gpt-oss-20b", 1, 0.9, 50.28),
            ("Llama-3.3-70B-FP8", 2, 0.9, 32.0),
            ("Llama-3.1-8B", 1, 0.9, 51.38),
            ("Qwen3-0.6B", 1, 0.9, 64.45),
            ("Qwen3-32B", 1, 0.9, 4.45),
            ("Qwen3-32B", 2, 0.9, 34.49),
            ("Mistral-Small-3.2-24B", 1, 0.95, 28.2),
        )
    ),
    Log(source=OLD, model="Llama-3.3-70B-FP8", card="H100", context=16_000, batched=8192, sequences=1024,
        room_gib=-1.44, starts=False, version=(0, 11)),
    *(
        Log(source=SWEEP, model=model, card="H100", tensor=tensor, ratio=0.95, context=8192, room_gib=room,
            version=version)
        for model, tensor, room, version in (
            ("Qwen3-14B", 1, 41.94, (0, 15)),
            ("Qwen3-14B", 1, 45.34, (0, 17)),
            ("Llama-3.1-8B", 1, 58.11, (0, 19)),
            ("Llama-3.1-8B", 2, 63.76, (0, 19)),
            ("Llama-3.1-8B", 4, 67.44, (0, 19)),
            ("Qwen2.5-7B", 1, 58.53, (0, 19)),
        )
    ),
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
        version=log.version,
        graphs=log.graphs,
    )
    split = Split(tensor=log.tensor, stages=(len(shape.layers),), expert_parallel=log.expert_parallel)
    return plan_fit(shape, [card] * log.tensor, split, load)


@pytest.mark.parametrize("log", LOGS, ids=[f"{log.model} on {log.tensor} {log.card}" for log in LOGS])
def test_room_for_the_cache_is_what_the_engine_logged(log: Log) -> None:
    found = fit_of(log)
    assert found.fits == log.starts
    if log.room_gib > 0:
        assert found.ranks[0].room_bytes / GIB == pytest.approx(log.room_gib, rel=WITHIN)


def test_steps_under_way_take_room_in_layers_with_a_window() -> None:
    """The log of Gemma-4-31B: "Maximum concurrency for 16,384 tokens per request: 13.25x"."""
    (log,) = (log for log in LOGS if log.model == "Gemma-4-31B")
    (rank,) = fit_of(log).ranks
    assert rank.room_bytes / rank.cache_need(1) == pytest.approx(13.25, rel=0.02)


def test_an_uneven_stage_has_the_room_that_the_engine_logged() -> None:
    """github.com/vllm-project/vllm/issues/34076: 3.18 GiB for 16 of 48 layers on an RTX 5070 Ti."""
    cards = [card_of(LIBRARY.accelerators.find(name)) for name in ("RTX 5070 Ti", "RTX 5090")]
    load = Load(context_tokens=30_000, memory_ratio=0.9, version=(0, 15))
    found = plan_fit(named_model("Qwen3-Coder-30B-A3B-FP8", LIBRARY), cards, Split(stages=(16, 32)), load)
    assert found.ranks[0].room_bytes / GIB == pytest.approx(3.18, rel=WITHIN)


def test_metas_405b_in_fp8_keeps_attention_in_16_bits() -> None:
    """github.com/vllm-project/vllm/issues/6746: "Loading model weights took 57.7520 GB" on each of eight H100."""
    found = fit_of(Log(source="", model="Llama-3.1-405B-FP8", card="H100", tensor=8, room_gib=0.0))
    assert found.ranks[0].weight_bytes / GIB == pytest.approx(57.752, rel=0.02)


def test_sglang_takes_its_fraction_of_what_is_free_before_weights() -> None:
    """github.com/vllm-project/vllm/issues/21348: K and V of 8.23 GB each, for 367,404 tokens."""
    shape = named_model("Qwen3-235B-A22B-FP8", LIBRARY)
    load = Load(context_tokens=4096, memory_ratio=0.93, engine="sglang")
    card = card_of(LIBRARY.accelerators.find("H100"))
    found = plan_fit(shape, [card] * 4, Split(tensor=4, stages=(len(shape.layers),)), load)
    assert found.num_kv_tokens == pytest.approx(367_404, rel=WITHIN)
