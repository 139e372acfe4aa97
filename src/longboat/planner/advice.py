"""When nothing fits: the constraint with its numbers, and the nearest changes that were tried and work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from longboat.catalog.model_shape import ModelShape
from longboat.catalog.requantize import requantized
from longboat.planner.cluster import Cluster
from longboat.planner.demand import Demand
from longboat.planner.fit import Fit, plan_fit
from longboat.planner.fit_changes import BY_ENGINE, nearest_changes
from longboat.planner.pools import pools_of
from longboat.planner.predict.constants import Calibration
from longboat.planner.search import Found, Rejected, search
from longboat.planner.split_shape import Card, EngineKind

__all__ = ("changes_that_fit", "constraint_of", "quantizations_below")

GIB = 1024**3
MORE_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
MAX_CHANGES = 4
# Changes of a single split: ranks and stages are what the search has tried already.
OWN_CHANGES = ("context", "sequences", "kv", "ratio")


def constraint_of(shape: ModelShape, found: Found) -> str:
    """What is broken by the split that comes nearest to fitting."""
    nearest = _nearest(found.rejected)
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
    changes = [*_of_split(found), *_of_bits(shape, found, engine, calibration, fixed_quantization)]
    changes += _of_machines(shape, found, engine, calibration)
    least = (
        None
        if fixed_quantization
        else min(quantizations_below(shape, engine, found.cluster), key=lambda fewer: fewer.weight_bytes, default=None)
    )
    if least is not None:
        more = _of_machines(least, found, engine, calibration)
        changes += [f"--quantization {least.quantization} {change}" for change in more]
    return tuple(changes[:MAX_CHANGES])


def _of_split(found: Found) -> Iterator[str]:
    nearest = _nearest(found.rejected)
    fit = nearest.fit if nearest else None
    if fit is None or not fit.ranks:
        return
    cards: list[Card] = [rank.card for rank in fit.ranks]
    again: Fit = plan_fit(fit.shape, cards, fit.split, replace(fit.load, num_sequences=1))
    for change in nearest_changes(again, cards):
        if change.kind in OWN_CHANGES:
            yield change.what


def quantizations_below(shape: ModelShape, engine: EngineKind, cluster: Cluster) -> Iterator[ModelShape]:
    """The model in fewer bits, from the one that changes answers least to the one that changes them most.

    Formats of 4-bit floating-point numbers are for hardware that multiplies them.
    """
    float4 = all(pool.machine.native == "fp4" for pool in pools_of(cluster))
    for name in BY_ENGINE[engine]:
        if name == "nvfp4" and not float4:
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
