"""What an engine may use of a card, and what it takes beside weights and cache.

vLLM: takes ``memory_ratio`` of the whole card, refuses to start where less is free, and gives the cache what weights,
peak activations, communicators and CUDA graphs leave. SGLang keeps a reserve that it computes from its settings.
llama.cpp takes what it needs. Formulas of activations and reserves follow the engines' code and that of
ai-dynamo/aiconfigurator; those marked so are our estimates from published logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.catalog.shape.weight import Weight
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.processor import is_wide, processor_overhead
from longboat.planner.memory.split_shape import Card, Load, Split

__all__ = (
    "Budget",
    "budget_of",
    "engine_sequences",
    "in_flight_tokens",
    "modest_load",
    "overhead_of",
    "padding_bytes",
    "state_copies",
    "window_batch",
)

MIB, GIB = 1024**2, 1024**3
# vLLM takes larger steps and more requests on cards of 70 GiB or more, and since 0.29 still larger ones on cards of
# 160 GiB or more (``arg_utils.py``).
LARGE_CARD_BYTES, HUGE_CARD_BYTES = 70 * GIB, 160 * GIB
HUGE_CARDS_FROM = (0, 29)
ENGINE_SEQUENCES, LARGE_ENGINE_SEQUENCES = 256, 1024

# Hidden states of a step that are alive at once beside a layer's own results: input, residual, and norms of both.
HIDDEN_STATES = 4
# Peak activations of mixtures of experts in units of 2 x tokens x attention width, by tensor parallel degree
# (aiconfigurator).
MOE_ACTIVATION_FACTORS = {1: 22.0, 2: 13.0, 4: 10.0}
MIN_ACTIVATION_BYTES = 70 * MIB
# Libraries, allocator's rounding: 0.07 to 0.26 GiB "non-torch memory" in vLLM's logs of one card.
RUNTIME_BYTES = 256 * MIB
LLAMA_RUNTIME_BYTES = 255 * MIB
# Hidden states that are alive at once in llama.cpp, and those of its copies on each accelerator of several.
LLAMA_HIDDEN_STATES, LLAMA_COPIES, LLAMA_LAST_COPIES = 4, 14, 9
CPU_RUNTIME_BYTES = 600 * MIB
COMMUNICATOR_BYTES = {2: 342 * MIB}
MANY_COMMUNICATOR_BYTES = 392 * MIB
# What NCCL keeps besides where the switch of the cards' links adds up (NVLink SHARP): between vLLM's logs of two
# and of four Hopper and Blackwell cards with NVLink (0.95 to 1.84 GiB "non-torch memory").
MULTICAST_BYTES = int(1.2 * GIB)
# What the driver keeps of a card before CUDA counts its memory: between the logs of several cards.
DRIVER_BYTES, DRIVER_RATIO = int(0.4 * GIB), 0.0025
# Kernels for MXFP4 (Marlin) pad the hidden size and a rank's slice of an expert to multiples of these.
PADDED_HIDDEN, PADDED_SLICE = 256, 128
# Our estimate from vLLM's logs: a captured size takes 8 MiB; sizes are 1, 2, 4, then each 8th to 256, each 16th to 512.
GRAPH_BYTES = 8 * MIB
MAX_CAPTURED = 512
# The largest batch of SGLang's graphs on cards below 60 GiB (its ``server_args.py``).
MAX_SMALL_GRAPHS = 160
# The sampler's peak in logits of 32 bits, one row for each request that runs at most. vLLM sorted them until 0.15
# (1.25 GB for 256 rows of 131,072: vllm pull request 32558; 8.1 to 10.3 in logs), and keeps four copies of them since
# (3.9 in a log of Gemma-4-31B).
SORTED_LOGITS, LOGITS_COPIES = 9.6, 3.9
SORTS_BEFORE, COUNTS_GRAPHS_FROM = (0, 17), (0, 21)
# vLLM schedules the next step while one is computed: a log of 0.26 counts the tokens of both (13.25 requests of 16,384
# tokens of Gemma-4-31B on a B300), 0.29 and 0.32 in ``VllmConfig.max_in_flight_tokens``. With its prefix cache, a
# request of a model with states has two of them (``MambaSpec.max_memory_usage_bytes`` of 0.29 and 0.32).
OVERLAPS_FROM, COPIES_STATES_FROM = (0, 26), (0, 29)
# Hidden states of all ranks' tokens, gathered before experts and scattered after them: our estimate.
GATHERED_COPIES = 2


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes of one card that the engine may use for everything, and the rule in words."""

    num_bytes: int
    rule: str


def budget_of(card: Card, split: Split, load: Load) -> Budget:
    """Return what the engine may use of ``card``."""
    traits = engine_traits(load.engine)
    ratio = load.memory_ratio or traits.memory_ratio
    if traits.memory_ratio:
        total = reported_bytes(card)
        asked = min(int(total * ratio), card.usable_bytes)
        return Budget(num_bytes=asked, rule=f"gpu-memory-utilization {ratio:g} of {total / GIB:.1f} GiB")
    usable = card.usable_bytes if card.free_bytes is None else min(card.usable_bytes, card.free_bytes)
    if traits.keeps_reserve:
        return _sglang_budget(card, usable, split, load)
    share = int(card.memory_bytes * ratio) if ratio else reported_bytes(card)
    return Budget(num_bytes=min(share, usable), rule=f"all usable memory of {card.name}")


def _sglang_budget(card: Card, usable: int, split: Split, load: Load) -> Budget:
    """Return the part of what is free before weights are loaded, when the runtime and communicators are there."""
    ratio = load.memory_ratio
    reserve = 0 if ratio else _sglang_reserve(card, split, load)
    rule = f"mem-fraction-static {ratio:g}" if ratio else f"all but SGLang's reserve of {reserve / GIB:.1f} GiB"
    ratio = ratio or 1 - reserve / card.memory_bytes
    free = min(usable, reported_bytes(card))
    if card.kind == "gpu":
        free -= RUNTIME_BYTES + (_communicator_bytes(card, split) if split.num_ranks > 1 else 0)
    return Budget(num_bytes=int(max(0, free) * max(0.0, ratio)), rule=rule)


def reported_bytes(card: Card) -> int:
    """Return the memory that CUDA reports, of which vLLM takes its share: less than what ``nvidia-smi`` reports.

    Logs say 23.56 GiB of 24.0 (RTX 3090), 31.40 of 31.8 (RTX 5090), 39.38 of 40.0, 79.2 of 79.6 to 80.0 and 178.35 of
    179.1 (B200).
    """
    if card.kind != "gpu":
        return card.memory_bytes
    return card.memory_bytes - DRIVER_BYTES - int(DRIVER_RATIO * card.memory_bytes)


def _sglang_step(card: Card, tensor: int) -> tuple[int, int]:
    """Return SGLang's defaults by memory of the card: tokens of a prefill chunk, the largest batch of its graphs."""
    table = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))
    for gib, chunk, few, many in table:
        if card.memory_bytes < gib * GIB:
            return chunk, few if tensor < 4 else many
    return 16384, 512


def _sglang_reserve(card: Card, split: Split, load: Load) -> int:
    """Return what SGLang 0.5 leaves for activations and graphs (its ``server_args.py``)."""
    chunk, largest = _sglang_step(card, split.tensor)
    batched = load.batched_tokens or chunk
    graphs = (load.engine_sequences or largest) if load.graphs else 0
    mib = 512 + 1.5 * max(batched, 2048) + split.num_ranks / 8 * 1024 + 2 * graphs
    if split.data > 1:
        mib += (3.0 if graphs <= 300 else 4.5) * graphs * split.data
    if card.memory_bytes > 60 * GIB:
        mib = max(mib, 10 * 1024)
    return int(mib * MIB)


def modest_load(cards: Sequence[Card], split: Split, load: Load) -> Load | None:
    """Return the load with settings that take less memory than the engine's defaults; None where there are none.

    vLLM and SGLang take larger steps, batches and reserves on large cards. Where those do not fit, the settings of
    smaller cards may: more memory must never make a plan worse.
    """
    traits = engine_traits(load.engine)
    if traits.memory_ratio and not load.batched_tokens and any(_is_large(card) for card in cards):
        sequences = load.engine_sequences or ENGINE_SEQUENCES
        return replace(load, batched_tokens=traits.batched_tokens, engine_sequences=sequences)
    if traits.keeps_reserve and not load.memory_ratio:
        smallest = min(card.memory_bytes for card in cards)
        reserve = MIB * (
            512 + 1.5 * 2048 + split.num_ranks / 8 * 1024 + 2 * min(max(8, load.num_sequences), MAX_SMALL_GRAPHS)
        )
        ratio = 1 - reserve / smallest
        return replace(load, batched_tokens=2048, memory_ratio=ratio) if ratio > 0 else None
    return None


def overhead_of(card: Card, shape: ModelShape, split: Split, load: Load, *, last: bool) -> Mapping[str, int]:
    """Return bytes by part that one rank takes beside weights and cache. last: it is of the last stage, with the head.

    On accelerators, SGLang's reserve holds these already; they are not counted twice.
    """
    if is_wide(card, load):
        return processor_overhead(shape, split, load)
    traits = engine_traits(load.engine)
    if traits.keeps_reserve:
        return {}
    if traits.slots:
        return _llama_overhead(card, shape, split, load, last=last)
    parts = {"activations": _activation_bytes(shape, split, load, card), "runtime": RUNTIME_BYTES}
    if split.num_ranks > 1:
        parts["communicators"] = _communicator_bytes(card, split)
    if load.graphs and (not load.version or load.version >= COUNTS_GRAPHS_FROM):
        parts["graphs"] = GRAPH_BYTES * _captured_sizes(engine_sequences(load, card))
    if last and (more := _sampler_bytes(shape, load, card) - parts["activations"]) > 0:
        parts["sampler"] = more  # it runs after the step, whose activations are free then
    return parts


def _communicator_bytes(card: Card, split: Split) -> int:
    multicast = MULTICAST_BYTES if card.multicast and split.tensor > 1 else 0
    return COMMUNICATOR_BYTES.get(split.num_ranks, MANY_COMMUNICATOR_BYTES) + multicast


def _sampler_bytes(shape: ModelShape, load: Load, card: Card) -> int:
    rows = min(engine_sequences(load, card), batched_tokens(load, card))
    sorts = load.version and load.version < SORTS_BEFORE
    return int((SORTED_LOGITS if sorts else LOGITS_COPIES) * rows * shape.vocab_size * 4)


def batched_tokens(load: Load, card: Card) -> int:
    """Return tokens of one step at most."""
    if load.batched_tokens:
        return load.batched_tokens
    traits = engine_traits(load.engine)
    if not _is_large(card):
        return traits.batched_tokens
    is_huge = card.memory_bytes >= HUGE_CARD_BYTES and (not load.version or load.version >= HUGE_CARDS_FROM)
    return (is_huge and traits.huge_batched_tokens) or traits.large_batched_tokens or traits.batched_tokens


def engine_sequences(load: Load, card: Card) -> int:
    """Return requests at once that the engine prepares for, and that it runs at most; others wait."""
    return load.engine_sequences or (LARGE_ENGINE_SEQUENCES if _is_large(card) else ENGINE_SEQUENCES)


def _is_large(card: Card) -> bool:
    by_cuda = card.kind == "gpu" or card.name.startswith("DGX Spark")  # CUDA reports its machine's memory as its own
    return by_cuda and card.memory_bytes >= LARGE_CARD_BYTES and "A100" not in card.name


def _activation_bytes(shape: ModelShape, split: Split, load: Load, card: Card) -> int:
    """Return the peak of the largest step: that of the widest layer; with experts, aiconfigurator's model of it."""
    tokens = batched_tokens(load, card)
    kinds = shape.kinds
    results = shape.once(("results", split.cut), lambda: max(_results(layer, split) for layer in kinds))
    width = HIDDEN_STATES * shape.hidden_size + results
    peak = 2 * tokens * width
    if any(layer.num_experts for layer in kinds):
        heads = max((layer.num_heads * layer.value_dim for layer in kinds), default=0) or shape.hidden_size
        factor = MOE_ACTIVATION_FACTORS.get(split.cut, MOE_ACTIVATION_FACTORS[4 if split.cut > 2 else 2])
        peak = max(peak, int(2 * tokens * heads * factor))
    if split.data > 1:
        peak += GATHERED_COPIES * 2 * split.data * tokens * shape.hidden_size
    most = max(layer.num_experts * layer.experts_per_token for layer in kinds)
    return max(peak, MIN_ACTIVATION_BYTES) + _expert_workspace(shape.hidden_size, most, split, tokens)


def _results(layer: Layer, split: Split) -> int:
    """Return numbers per token that the widest part of a layer has at once on a rank: what goes in and comes out."""
    sums: dict[str, int] = {}
    for weight in layer.weights:
        if weight.part == "experts" or weight.shard not in ("out", "kv_heads", "in"):
            continue
        whole = weight.columns if weight.shard == "in" else weight.rows
        pieces = min(split.cut, weight.units or split.cut) if weight.shard == "kv_heads" else split.cut
        sums[weight.part] = sums.get(weight.part, 0) + -(-whole // pieces)
    return max(sums.values(), default=0)


def _expert_workspace(hidden: int, most: int, split: Split, tokens: int) -> int:
    """Return buffers of the grouped multiplication: 4 x tokens x hidden x experts x chosen / 128 (aiconfigurator)."""
    return tokens * hidden * most // 128 * 4 // split.cut


def padding_bytes(shape: ModelShape, split: Split, experts_bytes: int) -> int:
    """Return bytes that padding adds to a rank's experts in MXFP4 (gpt-oss: 2,880 columns are held as 3,072)."""
    if "mxfp4" not in shape.quantization:
        return 0
    experts = (weight for weight in shape.layers[-1].weights if weight.part == "experts" and weight.shard == "in")
    widths = [weight.columns for weight in experts]
    if not widths:
        return 0
    hidden, whole = shape.hidden_size, min(widths)
    piece = whole if split.expert > 1 else -(-whole // split.expert_cut)
    grown = _padded(hidden, PADDED_HIDDEN) / hidden * _padded(piece, PADDED_SLICE) / piece
    return int(experts_bytes * (grown - 1.0))


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@lru_cache(maxsize=64)
def _captured_sizes(num_sequences: int) -> int:
    most = min(2 * num_sequences, MAX_CAPTURED)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, MAX_CAPTURED + 1, 16)]
    return sum(size <= most for size in sizes)


def _llama_overhead(card: Card, shape: ModelShape, split: Split, load: Load, *, last: bool) -> Mapping[str, int]:
    """Return buffers of llama.cpp: activations of one ubatch in fp32, the attention mask, logits of all requests.

    Between several accelerators, it keeps four copies of the mask, and of hidden states in numbers that we took from
    what it says of Llama-3.3-70B and Qwen3-32B.
    """
    tokens = batched_tokens(load, card)
    kept = load.context_tokens * load.num_sequences
    width = LLAMA_HIDDEN_STATES * shape.hidden_size + max(
        _llama_width(layer, shape.hidden_size) for layer in shape.kinds
    )
    copies = card.kind == "gpu" and split.num_ranks > 1
    if copies:
        width += (LLAMA_LAST_COPIES if last else LLAMA_COPIES) * shape.hidden_size
    parts = {
        "activations": 4 * tokens * width + (4 if copies else 1) * 2 * kept * tokens,
        "runtime": LLAMA_RUNTIME_BYTES if card.kind == "gpu" else CPU_RUNTIME_BYTES // 4,
    }
    if last:
        parts["logits"] = 4 * load.num_sequences * shape.vocab_size
    return parts


def window_batch(load: Load) -> int:
    """Return tokens of a step for which the engine keeps room in each sequence's caches with a window; 0: none."""
    traits = engine_traits(load.engine)
    return (load.batched_tokens or traits.batched_tokens) if traits.window_holds_batch else 0


def in_flight_tokens(load: Load, card: Card, split: Split) -> int:
    """Return tokens of all steps under way, for which vLLM keeps room in layers with a window before it starts.

    Each stage has a step, and one more is scheduled; on processors only where there is one stage.
    """
    if not engine_traits(load.engine).window_in_flight:
        return 0
    steps = split.pipeline
    if (not load.version or load.version >= OVERLAPS_FROM) and (card.kind != "cpu" or steps == 1):
        steps += 1
    return steps * batched_tokens(load, card)


def state_copies(load: Load) -> int:
    """Return the states of fixed size that each request has in a layer of that kind."""
    copied = not load.version or load.version >= COPIES_STATES_FROM
    return engine_traits(load.engine).states if copied else 1


def _llama_width(layer: Layer, hidden: int) -> int:
    """Return numbers per token that the widest part of a layer has at once in llama.cpp.

    The feed-forward part has three vectors of its inner width; for each expert that a token is routed to, and then
    their results. Latent attention has queries and results of all heads in the latent space, and two of values.
    """
    inner = sum(w.rows * (layer.experts_per_token if w.part == "experts" else 1) for w in layer.weights if _is_up(w))
    results = layer.experts_per_token * hidden if layer.num_experts else 0
    latent = layer.num_heads * (2 * layer.cache.latent_dim + layer.value_dim) if layer.cache.kind == "latent" else 0
    return max(3 * inner + results, latent)


def _is_up(weight: Weight) -> bool:
    return weight.name.endswith("up_proj") and weight.columns > 1
