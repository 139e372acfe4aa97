"""When nothing fits: the constraint with its numbers, and the nearest changes that were tried and work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.cluster import Cluster
from longboat.planner.demand import Demand
from longboat.planner.fit import Fit, plan_fit
from longboat.planner.fit_changes import BY_ENGINE, Change, nearest_changes
from longboat.planner.formats import lacks_kernels
from longboat.planner.pools import pools_of
from longboat.planner.predict.constants import Calibration
from longboat.planner.search import Found, Rejected, search
from longboat.planner.split_shape import ANY_SPLIT, AskedSplit, Card, EngineKind

__all__ = ("changes_that_fit", "changes_that_meet", "constraint_of", "quantizations_below")

GIB = 1024**3
MORE_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
# Where kernels for the usual formats do not run.
OLD_CARDS: Mapping[str, tuple[str, ...]] = {"vllm": ("gptq-int8", "gptq"), "sglang": ("gptq-int8", "gptq")}
MAX_CHANGES = 4
FEW_NODES = 8
MAX_NEAR = 16
# Changes of a single split: ranks and stages are what the search has tried already.
OWN_CHANGES = ("context", "kv", "ratio")


def constraint_of(shape: ModelShape, found: Found) -> str:
    """What is broken by the split that comes nearest to fitting."""
    nearest = _nearest(found.rejected)
    if nearest is None and found.demand.split and found.rejected:
        nearest = found.rejected[0]
    if nearest is not None:
        return f"{nearest.what}: {nearest.why}"
    pools = pools_of(found.cluster)
    memory = sum(pool.num_cards * pool.card.usable_bytes for pool in pools)
    return (
        f"the weights take {shape.weight_bytes / GIB:.1f} GiB, and all accelerators together have {memory / GIB:.1f} "
        "GiB usable"
    )


def _nearest(rejected: Sequence[Rejected]) -> Rejected | None:
    counted = [one for one in rejected if one.fit is not None and one.fit.shortage is not None]
    return min(counted, key=_distance) if counted else None


def _distance(rejected: Rejected) -> float:
    shortage = rejected.fit.shortage if rejected.fit else None
    if shortage is None or not shortage.available_bytes:
        return float("inf")
    return shortage.needed_bytes / shortage.available_bytes


def changes_that_fit(
    shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration, *, fixed_quantization: bool
) -> tuple[str, ...]:
    """In words, each alone enough. fixed_quantization: whoever asks has chosen one; others are named all the same."""
    changes = [*_of_asked(shape, found, engine, calibration), *_of_split(shape, found, engine, calibration)]
    changes += _of_bits(shape, found, engine, calibration, fixed_quantization)
    changes += _of_machines(shape, found, engine, calibration)
    least = (
        None
        if fixed_quantization
        else min(quantizations_below(shape, engine, found.cluster), key=lambda fewer: fewer.weight_bytes, default=None)
    )
    if least is not None:
        more = _of_machines(least, found, engine, calibration)
        changes += [f"--quantization {least.quantization} {change}" for change in more if change not in changes]
    return tuple(changes[:MAX_CHANGES])


def changes_that_meet(shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration) -> tuple[str, ...]:
    """Changes each of which alone keeps the limits (``--slo``) that the best plan misses: tried, nearest first."""
    best = found.plans[0]
    changes: list[str] = []
    if found.cluster.num_nodes <= FEW_NODES:
        changes += _fewer_users(shape, found, engine, calibration)
        changes += _quicker_bits(shape, found, engine, calibration)
        changes += _quicker_machines(shape, found, engine, calibration)
    slo, parts = found.demand.slo, []
    for name, limit_s, value_s in (("ttft", slo.ttft_s, best.ttft_s), ("itl", slo.itl_s, best.itl_s)):
        parts += [f"{name}={ceil(max(limit_s, value_s) * 1e3)}ms"] if limit_s is not None else []
    return (*changes, f"--slo {','.join(parts)}")


def _fewer_users(shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration) -> Iterator[str]:
    users = found.demand.users // 2
    while users:
        demand = replace(found.demand, users=users)
        if _meets(search([shape], found.cluster, demand, engine, calibration)):
            yield f"--users {users}"
            return
        users //= 2


def _quicker_bits(shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration) -> Iterator[str]:
    for fewer in quantizations_below(shape, engine, found.cluster):
        if _meets(search([fewer], found.cluster, found.demand, engine, calibration)):
            yield f"--quantization {fewer.quantization}"
            return


def _quicker_machines(shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration) -> Iterator[str]:
    kind = found.cluster.kinds[0]
    for more in MORE_NODES[:3]:
        cluster = replace(found.cluster, kinds=(replace(kind, count=kind.count + more), *found.cluster.kinds[1:]))
        if _meets(search([shape], cluster, found.demand, engine, calibration)):
            yield f'--add "{more}x({kind.title})"'
            return


def _meets(found: Found) -> bool:
    return bool(found.plans) and not found.plans[0].missed


def _of_asked(shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration) -> Iterator[str]:
    """The nearest split to the one that is asked for that works on these machines, else leaving it to the planner."""
    asked = found.demand.split
    for split in _near(asked) if asked else ():
        demand = replace(found.demand, split=split)
        if search([shape], found.cluster, demand, engine, calibration).plans:
            yield f"{split.title} instead of {asked.title}" if split else f"leave out {asked.title}"
            return


def _near(asked: AskedSplit) -> Iterator[AskedSplit]:
    """Splits like the one asked for, in steps away from it: tensor, then pipeline, then neither."""
    if asked.expert_parallel:
        yield replace(asked, expert_parallel=False)
    yield from (replace(asked, tensor=degree) for degree in _around(asked.tensor))
    yield from (replace(asked, pipeline=degree) for degree in _around(asked.pipeline))
    yield ANY_SPLIT


def _around(degree: int) -> list[int]:
    """Other degrees, the nearest first; none where none was asked for."""
    others = (other for other in range(1, 2 * degree) if other != degree)
    return sorted(others, key=lambda other: abs(other - degree))[:MAX_NEAR]


def _of_split(shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration) -> Iterator[str]:
    """Less of what is asked for, with the same machines and weights."""
    nearest = _nearest(found.rejected)
    fit = nearest.fit if nearest else None
    if fit is None or not fit.ranks:
        return
    if engine == "llama.cpp" and 1 <= fit.max_sequences < fit.load.num_sequences:
        fewer = replace(found.demand, users=fit.max_sequences)
        if search([shape], found.cluster, fewer, engine, calibration).plans:
            yield f"--users {fewer.users}"
    cards: list[Card] = [rank.card for rank in fit.ranks]
    again: Fit = plan_fit(fit.shape, cards, fit.split, replace(fit.load, num_sequences=1))
    for change in nearest_changes(again, cards):
        if change.kind in OWN_CHANGES:
            yield _in_options(change, found.demand)


def _in_options(change: Change, demand: Demand) -> str:
    """A change in the words of the command line, where it has some."""
    tokens = change.fit.load.context_tokens
    if change.kind == "context":
        prompt = tokens - demand.output_tokens
        shorter = f" --prompt {prompt}" if 0 < prompt < demand.prompt_tokens else ""
        return f"--context {tokens}{shorter}"
    return "--kv-bits 8" if change.kind == "kv" else change.what


def quantizations_below(shape: ModelShape, engine: EngineKind, cluster: Cluster) -> Iterator[ModelShape]:
    """The model in fewer bits, from the one that changes answers least to the one that changes them most.

    Formats of 4-bit floating-point numbers are for hardware that multiplies them.
    """
    pools = pools_of(cluster)
    float4 = all(pool.machine.native == "fp4" for pool in pools)
    for name in (*BY_ENGINE[engine], *OLD_CARDS.get(engine, ())):
        if (name == "nvfp4" and not float4) or any(lacks_kernels(pool.entry, name) for pool in pools):
            continue
        fewer = requantized(shape, name)
        if fewer.weight_bytes < shape.weight_bytes:
            yield fewer


def _of_bits(
    shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration, fixed: bool
) -> Iterator[str]:
    if not fixed:
        return
    for fewer in quantizations_below(shape, engine, found.cluster):
        if search([fewer], found.cluster, found.demand, engine, calibration).plans:
            yield f"--quantization {fewer.quantization} ({fewer.weight_bytes / GIB:.1f} GiB of weights)"
            return


def _of_machines(shape: ModelShape, found: Found, engine: EngineKind, calibration: Calibration) -> Iterator[str]:
    """More nodes of a kind that is there."""
    for index, kind in enumerate(found.cluster.kinds):
        for more in MORE_NODES:
            kinds = list(found.cluster.kinds)
            kinds[index] = replace(kind, count=kind.count + more)
            if _fits(shape, replace(found.cluster, kinds=tuple(kinds)), found.demand, engine, calibration):
                yield f'--add "{more}x({kind.title})": {more} more node{"s" if more > 1 else ""}'
                break


def _fits(shape: ModelShape, cluster: Cluster, demand: Demand, engine: EngineKind, calibration: Calibration) -> bool:
    memory = sum(pool.num_cards * pool.card.usable_bytes for pool in pools_of(cluster))
    return memory > shape.weight_bytes and bool(search([shape], cluster, demand, engine, calibration).plans)
