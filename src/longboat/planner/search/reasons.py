"""Why a plan is ranked where it is, in sentences with figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from longboat.planner.memory.engine import engine_traits
from longboat.planner.search.demand import Demand
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.ranking import LAGGARD, Plan
from longboat.planner.search.search import SearchResult

__all__ = ("explained", "longest_request", "memory_settings", "settings_of")

GIB = 1024**3
USUAL_CONTEXT = 32_768
"""Tokens up to which an engine allows requests that are longer than those that were planned for, where they fit."""


def explained(found: SearchResult) -> SearchResult:
    """Return the same plans, each with its reasons."""
    if not found.plans:
        return found
    best, *others = found.plans
    first = replace(best, reasons=tuple(_of_best(best, others, found.demand)))
    rest = (replace(plan, reasons=tuple(_beside(plan, best, found.demand))) for plan in others)
    return replace(found, plans=(first, *rest))


def settings_of(group: Forecast) -> tuple[str, ...]:
    """Return the settings that the engine needs, as its command line or environment takes them."""
    split, load = group.fit.split, group.fit.load
    if engine_traits(group.engine).slots:
        tokens = load.cache_tokens or load.context_tokens * load.num_sequences
        parts = [f"--ctx-size {tokens}", *memory_settings(group)]
        parts += ["--kv-unified"] if load.cache_tokens else []
        return (*parts, group.layer_setting) if group.layer_setting else tuple(parts)
    names = {
        "vllm": ("--tensor-parallel-size", "--pipeline-parallel-size", "--enable-expert-parallel", "--max-model-len"),
        "sglang": ("--tp-size", "--pp-size", f"--ep-size {split.tensor}", "--context-length"),
    }[group.engine]
    told = [f"{names[3]} {longest_request(group)}"]
    told += [f"--dtype {engine_traits(group.engine).dtype_half}"] if group.shape.dtype == "float16" else []
    told += _ranks_told(group, names[0])
    told += [f"{names[1]} {split.pipeline}"] if split.pipeline > 1 else []
    told += [names[2]] if split.expert_parallel else []
    told += [group.layer_setting] if group.layer_setting else []
    return (*told, *memory_settings(group))


def longest_request(group: Forecast) -> int:
    """Return the longest request to allow: what was asked for, or what fits, up to a usual length.

    A command's own length stays as it is; where it has none, it is what fits.
    """
    if group.fit.load.fixed:
        return group.demand.context_tokens or group.fit.request_tokens
    return max(group.fit.load.context_tokens, min(group.fit.request_tokens, USUAL_CONTEXT))


def _ranks_told(group: Forecast, tensor_option: str) -> list[str]:
    split = group.fit.split
    if split.data == 1:
        return [f"{tensor_option} {split.tensor}"] if split.tensor > 1 else []
    if group.engine == "vllm":
        return [*([f"{tensor_option} {split.cut}"] if split.cut > 1 else []), f"--data-parallel-size {split.data}"]
    return [f"{tensor_option} {split.tensor}", f"--attn-dp-size {split.data}"]


def memory_settings(group: Forecast) -> Iterator[str]:
    """Yield the settings of the engine's memory and numbers that are not the split's: those of a fleet file too."""
    load, vllm = group.fit.load, group.engine == "vllm"
    if engine_traits(group.engine).slots:
        yield f"--parallel {load.num_sequences}"
        if load.kv_bits == 8:
            yield from ("--cache-type-k q8_0", "--cache-type-v q8_0")
        return
    if load.batched_tokens:
        yield f"{'--max-num-batched-tokens' if vllm else '--chunked-prefill-size'} {load.batched_tokens}"
    if load.engine_sequences:
        yield f"{'--max-num-seqs' if vllm else '--max-running-requests'} {load.engine_sequences}"
    if load.memory_ratio:
        yield f"{'--gpu-memory-utilization' if vllm else '--mem-fraction-static'} {load.memory_ratio:.2f}"
    if load.kv_bits == 8:
        yield f"--kv-cache-dtype {'fp8' if vllm else 'fp8_e5m2'}"


def _of_best(plan: Plan, others: Sequence[Plan], demand: Demand) -> Iterator[str]:
    for group in plan.groups:
        yield from _of_split(group)
    yield from _against(plan, others)
    yield from _pooling(plan)
    yield from _shortcomings(plan, demand)
    if estimates := plan.estimate:
        yield f"an estimate: {'; '.join(estimates)}"


def _of_split(group: Forecast) -> Iterator[str]:
    layout, name = group.layout, group.layout.places[0].link.name
    if layout.over_network:
        yield f"tensor {layout.tensor} crosses nodes over {name}: the figures say so, against what is usual"
    elif layout.tensor > 1:
        yield f"tensor {layout.tensor} stays within a node ({name})"
    if group.layer_setting:
        layers = ", ".join(map(str, group.fit.split.stages))
        yield f"stages of {layers} layers: by memory and speed, embedding and head counted ({group.layer_setting})"


def _against(plan: Plan, others: Sequence[Plan]) -> Iterator[str]:
    """Yield the next best of each sort that the plan is not."""
    sorts = (
        ("tensor parallelism over the network", lambda one: any(group.layout.over_network for group in one.groups)),
        ("a pipeline", lambda one: any(len(group.layout.places) > 1 for group in one.groups)),
        ("fewer replicas", lambda one: one.num_replicas < plan.num_replicas),
        ("more replicas", lambda one: one.num_replicas > plan.num_replicas),
    )
    for title, has in sorts:
        if has(plan) and "replicas" not in title:
            continue
        other = next((one for one in others if has(one)), None)
        if other is not None:
            yield f"{title} ({other.title}): {_difference(other, plan)}"


def _difference(other: Plan, plan: Plan) -> str:
    ratio = other.tokens_per_s / plan.tokens_per_s
    return (
        f"{other.tokens_per_s:.0f} tokens/s, {ratio - 1:+.0%}; ITL {other.itl_s * 1e3:.1f} ms, {plan.itl_s * 1e3:.1f} "
        f"ms here{f'; misses {other.missed}' if other.missed else ''}"
    )


def _pooling(plan: Plan) -> Iterator[str]:
    if plan.num_replicas < 2:
        return
    group = plan.groups[0]
    each = sum(rank.budget_bytes for rank in group.fit.ranks)
    total = sum(one.layout.replicas * sum(rank.budget_bytes for rank in one.fit.ranks) for one in plan.groups)
    yield (
        f"replicas do not pool memory: one has {each / GIB:.1f} GiB for the engine, not {total / GIB:.1f}; its longest "
        f"request is {group.fit.request_tokens} tokens"
    )


def _shortcomings(plan: Plan, demand: Demand) -> Iterator[str]:
    if plan.missed:
        yield f"misses the limit: {plan.missed}"
    if plan.max_sequences < demand.users:
        yield (
            f"holds {plan.max_sequences} requests of {demand.context} tokens at once, not {demand.users}: "
            "with requests that long some wait"
        )
    if plan.idle:
        yield f"without work: {', '.join(plan.idle)}"


def _beside(plan: Plan, best: Plan, demand: Demand) -> Iterator[str]:
    yield f"{plan.tokens_per_s / best.tokens_per_s - 1:+.0%} tokens/s against the best"
    slow, quick = plan.answer_s(demand), best.answer_s(demand)
    if plan.tokens_per_s > best.tokens_per_s and slow > LAGGARD * quick:
        yield f"its slowest replica takes {slow:.1f} s for an answer, not {quick:.1f}"
    yield from _shortcomings(plan, demand)
