"""What one pass through a model costs at the hardware's peak, term by term (``terms`` names them)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from longboat.catalog.shape.cache import Cache
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Weight
from longboat.planner.predict.deployment import Deployment, Stage
from longboat.planner.predict.efficiency import expert_read_share
from longboat.planner.predict.kernels import multiply_flops, unpacks
from longboat.planner.predict.machine import Fabric

__all__ = (
    "IMBALANCE",
    "Pass",
    "each_work",
    "expected_experts",
    "head_work",
    "layer_work",
    "stage_work",
    "work_of",
)

# Reads and writes of the hidden state in one layer, beside the multiplications: norms, residuals, rotation, conversion.
ACTIVATION_PASSES = 10
# An all-reduce of more ranks takes longer: measured 6.4 to 11 us for two to eight A100, 14 to 60 us over PCIe.
LATENCY_GROWTH = 0.3
REDUCES_PER_LAYER = 2
MULTIPLY_ADD = 2
# The share by which the fullest rank is fuller at most where whole experts are divided, and tokens that halve it.
IMBALANCE, EVEN_TOKENS = 0.3, 512.0
HEAD = 0  # in the place of a layer's ``id``


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass of the engine."""

    tokens: float  # that go through the model
    sequences: float  # whose next token is sampled
    context_tokens: float  # that each token attends to, on average
    decoding: bool  # one token of each sequence, whose cache is read; else ``tokens`` of one prompt

    @property
    def kind(self) -> str:
        return "decode_" if self.decoding else "prefill_"


def expected_experts(num_experts: int, experts_per_token: int, tokens: float) -> float:
    """Return how many experts at least one of ``tokens`` is routed to, if each expert is as likely as any other."""
    return float(num_experts * (1.0 - (1.0 - experts_per_token / num_experts) ** tokens))


def stage_work(deployment: Deployment, index: int, step: Pass) -> dict[str, float]:
    """Return quantities of the terms for one stage, on its fullest rank, without the hop to the next."""
    layers, last = deployment.counted_layers()[index], index == len(deployment.stages) - 1
    return work_of(deployment, deployment.stages[index], layers, step, last=last)


def work_of(
    deployment: Deployment, stage: Stage, layers: Iterable[tuple[Layer, int]], step: Pass, *, last: bool
) -> dict[str, float]:
    """Return what ``stage_work`` does for a stage with certain layers. last: it has the head too."""
    known = _known(deployment, stage, step)
    found: dict[str, float] = defaultdict(float)
    for layer, count in layers:
        for name, value in _once(known, deployment, stage, layer, step).items():
            found[name] += count * value
    if last:
        for name, value in _head_once(known, deployment, stage, step).items():
            found[name] += value
    return found


def each_work(
    deployment: Deployment, stage: Stage, layers: Iterable[Layer], step: Pass
) -> Iterator[Mapping[str, float]]:
    """Yield the quantities of each layer of a stage, then of the head, counted once for the deployments of a search.

    The head is one multiplication for each sequence that samples; embedding rows are few bytes.
    """
    known = _known(deployment, stage, step)
    for layer in layers:
        yield _once(known, deployment, stage, layer, step)
    yield _head_once(known, deployment, stage, step)


def layer_work(deployment: Deployment, stage: Stage, layer: Layer, step: Pass) -> dict[str, float]:
    """Return the quantities of one layer of a stage."""
    return _once(_known(deployment, stage, step), deployment, stage, layer, step)


def head_work(deployment: Deployment, stage: Stage, step: Pass) -> dict[str, float]:
    """Return the quantities of the head."""
    return _head_once(_known(deployment, stage, step), deployment, stage, step)


def _known(deployment: Deployment, stage: Stage, step: Pass) -> dict[int, dict[str, float]]:
    """Return what was counted for such a stage and pass, by the ``id`` of a layer; the head's by ``HEAD``."""
    key = (
        stage.machine,
        stage.tensor,
        stage.link,
        stage.near,
        deployment.attention_data,
        deployment.expert,
        deployment.stages[0].machine,
        step,
    )
    return deployment.counted.setdefault(key, {})


def _once(
    known: dict[int, dict[str, float]], deployment: Deployment, stage: Stage, layer: Layer, step: Pass
) -> dict[str, float]:
    found = known.get(id(layer))
    if found is None:
        sums: dict[str, float] = defaultdict(float)
        for name, value in _layer_work(deployment, stage, layer, step):
            sums[name] += value
        found = known[id(layer)] = {step.kind + name: value for name, value in sums.items() if value}
    return found


def _head_once(
    known: dict[int, dict[str, float]], deployment: Deployment, stage: Stage, step: Pass
) -> dict[str, float]:
    if HEAD not in known:
        head, found = deployment.shape.head or deployment.shape.embedding, {}
        if head is not None:
            params, size = _rank_size(head, stage.tensor)
            found["read_weights"] = size / stage.machine.bandwidth_bytes_per_s
            found["multiply"] = MULTIPLY_ADD * params * step.sequences / stage.machine.flops_16
        if step.decoding:
            found |= {"step": 1.0, "sequence": step.sequences}
        known[HEAD] = {step.kind + name: value for name, value in found.items()}
    return known[HEAD]


def _layer_work(deployment: Deployment, stage: Stage, layer: Layer, step: Pass) -> Iterator[tuple[str, float]]:
    yield from _weights_work(deployment, stage, layer, step)
    yield from _attention_work(deployment, stage, layer, step)
    yield from _link_work(deployment, stage, step)
    numbers = step.tokens * deployment.shape.hidden_size * ACTIVATION_PASSES
    yield "activations", numbers * deployment.number_bytes / stage.machine.bandwidth_bytes_per_s
    yield "layer", 1.0
    for name, present in (
        ("expert_layer", layer.num_experts > 0),
        ("state_layer", layer.cache.kind == "state"),
        ("latent_layer", layer.cache.kind in ("latent", "compressed")),
        ("indexer_layer", layer.cache.index_dim > 0),
    ):
        if present:
            yield name, 1.0


@lru_cache(maxsize=4096)
def _rank_size(weight: Weight, tensor: int) -> tuple[int, int]:
    return weight.rank_params(tensor=tensor), weight.rank_bytes(tensor=tensor)


def _weights_work(deployment: Deployment, stage: Stage, layer: Layer, step: Pass) -> Iterator[tuple[str, float]]:
    """Count reading and multiplying all weights of a layer.

    Experts are divided over all ranks of the stage by copies or by cutting each; the bytes are the same.
    """
    unit = _weight_costs(deployment, stage, layer)
    yield "read_weights", unit["read_weights"]
    yield "multiply", unit["multiply"] * step.tokens
    if not layer.num_experts:
        return
    share = _imbalance(deployment, step)
    read = share * expected_experts(layer.num_experts, layer.experts_per_token, step.tokens) / layer.num_experts
    yield "read_experts", unit["read_experts"] * read
    yield "multiply_experts", unit["multiply_experts"] * step.tokens * share
    yield (
        "unpack_experts",
        unit["unpack_read"] * read if step.decoding else unit["unpack_multiply"] * step.tokens * share,
    )


def _weight_costs(deployment: Deployment, stage: Stage, layer: Layer) -> dict[str, float]:
    """Return seconds at the peak for the weights of a layer on a rank: reads of all, and multiplications of a token.

    They are the same for all passes, and counted once for the deployments of a search.
    """
    key = ("weights", stage.machine, stage.tensor, deployment.attention_data, deployment.expert)
    known = deployment.counted.setdefault(key, {})
    found = known.get(id(layer))
    if found is None:
        found = defaultdict(float)
        for weight in layer.weights:
            if weight.part not in ("vision", "mtp", "norm"):
                count = _expert_costs if weight.part == "experts" else _common_costs
                for name, value in count(deployment, stage, layer, weight):
                    found[name] += value
        known[id(layer)] = found
    return found


def _common_costs(deployment: Deployment, stage: Stage, layer: Layer, weight: Weight) -> Iterator[tuple[str, float]]:
    groups = deployment.attention_data if weight.part in ("attention", "mixer") else 1
    params, size = _rank_size(weight, max(1, stage.tensor // groups))
    yield "read_weights", size / stage.machine.bandwidth_bytes_per_s
    flops = multiply_flops(weight, deployment.shape, stage.machine)
    yield "multiply", MULTIPLY_ADD * params / groups / flops


def _expert_costs(deployment: Deployment, stage: Stage, layer: Layer, weight: Weight) -> Iterator[tuple[str, float]]:
    """Count all experts' bytes, and the multiplications of those that a token is routed to, divided by the ranks."""
    machine = stage.machine
    reached = expert_read_share(machine, deployment.engine.name, _slice_columns(deployment, stage, weight))
    read_s = weight.num_bytes / machine.bandwidth_bytes_per_s / reached / stage.tensor
    active = weight.num_params * layer.experts_per_token / layer.num_experts
    multiply_s = MULTIPLY_ADD * active / multiply_flops(weight, deployment.shape, machine) / stage.tensor
    yield "read_experts", read_s
    yield "multiply_experts", multiply_s
    if unpacks(weight, deployment.shape, machine):
        yield "unpack_read", read_s
        yield "unpack_multiply", multiply_s


def _slice_columns(deployment: Deployment, stage: Stage, weight: Weight) -> float:
    """Return the width of an expert's part on one rank: whole where experts are divided by copies."""
    width = weight.columns if weight.shard == "in" else weight.rows
    return width if deployment.expert > 1 else width / stage.tensor


def _imbalance(deployment: Deployment, step: Pass) -> float:
    """Return how much fuller the fullest rank is where whole experts are divided: less for many tokens.

    Our estimate, within the 1.1 to 1.5 that is usual.
    """
    return 1.0 + IMBALANCE / (1.0 + step.tokens / EVEN_TOKENS) if deployment.expert > 1 else 1.0


def _attention_work(deployment: Deployment, stage: Stage, layer: Layer, step: Pass) -> Iterator[tuple[str, float]]:
    cache, machine, groups = layer.cache, stage.machine, deployment.attention_data
    ranks = max(1, stage.tensor // groups)
    context = round(step.context_tokens)
    if step.decoding:
        read = _cache_read_bytes(cache, context, deployment.cache_bytes, ranks)
        yield "read_cache", _fullest(step.sequences, groups) * read / machine.bandwidth_bytes_per_s
    tokens = _fullest(step.tokens, groups) if step.decoding else step.tokens / groups
    pairs = tokens * cache.attended_tokens(context) * layer.num_heads / ranks
    yield "attend", MULTIPLY_ADD * pairs * _pair_numbers(layer, step) / machine.flops_16
    if cache.index_dim:
        scores = step.tokens * context * cache.num_index_heads / groups
        yield "attend", MULTIPLY_ADD * scores * cache.index_dim / machine.flops_8


def _fullest(count: float, groups: int) -> float:
    """Return the requests of the group that has most of them: a request is not divided."""
    return max(min(1.0, count), count / groups)


def _pair_numbers(layer: Layer, step: Pass) -> int:
    """Return multiplications for one query, key and head: decoding attends to the latent (absorbed projections)."""
    if step.decoding and layer.cache.kind in ("latent", "compressed"):
        return 2 * layer.cache.latent_dim
    return layer.query_dim + layer.value_dim


def _cache_read_bytes(cache: Cache, context_tokens: int, dtype_bytes: float, ranks: int) -> float:
    """Return bytes that decoding one token of one sequence reads on one rank (a state is written back too)."""
    shards = cache.tensor_shards(ranks)
    if cache.kind == "state":
        return 2.0 * cache.state_bytes / shards
    attended = cache.attended_tokens(context_tokens)
    keys = context_tokens * cache.index_bytes if cache.top_k_tokens else 0
    return (attended * (cache.entry_bytes(dtype_bytes) - cache.index_bytes) + keys) / shards


def _link_work(deployment: Deployment, stage: Stage, step: Pass) -> Iterator[tuple[str, float]]:
    """Count two all-reduces a layer, of attention and of what follows it.

    Where requests are divided, the ranks of a group reduce the attention of its own tokens; gathering all tokens
    before the experts and scattering them afterwards moves as much as one all-reduce of all ranks.
    """
    groups = deployment.attention_data
    if groups == 1:
        yield from _reduce_work(deployment, stage.link, stage.tensor, step.tokens, REDUCES_PER_LAYER)
        return
    near = stage.link if stage.near is None else stage.near
    yield from _reduce_work(deployment, near, stage.tensor // groups, _fullest(step.tokens, groups), 1)
    yield from _reduce_work(deployment, stage.link, stage.tensor, step.tokens, 1)


def _reduce_work(
    deployment: Deployment, link: Fabric, ranks: int, tokens: float, count: int
) -> Iterator[tuple[str, float]]:
    """Count all-reduces of the hidden states of ``tokens`` among ``ranks``."""
    if ranks < 2:
        return
    growth = 1.0 + LATENCY_GROWTH * (log2(ranks) - 1.0)
    yield "link_latency", count * growth * link.latency_s
    if deployment.host_calls:
        yield "link_call", count * growth
    payload = tokens * deployment.shape.hidden_size * deployment.number_bytes
    moved = count * 2.0 * (ranks - 1) / ranks * payload
    yield "link_bytes", moved / link.bandwidth_bytes_per_s
