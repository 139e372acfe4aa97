"""When nothing fits: the constraint with its numbers, and the nearest changes that were tried and work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.fit import plan_fit
from longboat.planner.memory.fit_changes import Change, nearest_changes
from longboat.planner.memory.formats import lacks_kernels
from longboat.planner.memory.split_shape import ANY_SPLIT, AskedSplit, EngineKind
from longboat.planner.predict.constants import Calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.ranking import Plan
from longboat.planner.search.search import Rejected, SearchResult, search

__all__ = ("Advisor", "constraint_of", "quantizations_below")

GIB = 1024**3
MORE_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
MAX_CHANGES = 4
FEW_NODES = 8
MAX_NEAR = 16
# Changes of a single split: ranks and stages are what the search has tried already.
OWN_CHANGES = ("context", "kv", "ratio")


def constraint_of(shape: ModelShape, found: SearchResult) -> str:
    """Return what is broken by the split that comes nearest to fitting."""
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


@dataclass(frozen=True, slots=True)
class Advisor:
    """Tries changes to what was asked for where a search found no plan, or none that keeps the limits."""

    shape: ModelShape
    found: SearchResult
    engine: EngineKind
    calibration: Calibration

    def changes_that_fit(self, *, fixed_quantization: bool) -> tuple[str, ...]:
        """Return changes in words, each alone enough. fixed_quantization: one was asked for; others are named too."""
        changes = [*self._of_asked(), *self._of_split()]
        if fixed_quantization:
            changes += self._of_bits()
        changes += self._of_machines(self.shape)
        below = () if fixed_quantization else quantizations_below(self.shape, self.engine, self.found.cluster)
        if least := min(below, key=lambda fewer: fewer.weight_bytes, default=None):
            more = self._of_machines(least)
            changes += [f"--quantization {least.quantization} {change}" for change in more if change not in changes]
        return tuple(changes[:MAX_CHANGES])

    def changes_that_meet(self) -> tuple[str, ...]:
        """Return changes each of which alone keeps the limits (``--slo``) that the best plan misses, nearest first."""
        best, slo = self.found.plans[0], self.found.demand.slo
        changes: list[str] = []
        if self.found.cluster.num_nodes <= FEW_NODES:
            changes += self._fewer_users()
            changes += self._quicker_bits()
            changes += self._quicker_machines()
        limits = (("ttft", slo.ttft_s, best.ttft_s), ("itl", slo.itl_s, best.itl_s))
        parts = [f"{name}={ceil(max(limit, value) * 1e3)}ms" for name, limit, value in limits if limit is not None]
        return (*changes, f"--slo {','.join(parts)}")

    def _plans(
        self, *, shape: ModelShape | None = None, cluster: Cluster | None = None, demand: Demand | None = None
    ) -> tuple[Plan, ...]:
        """Search again with something changed."""
        cluster, demand = cluster or self.found.cluster, demand or self.found.demand
        return search([shape or self.shape], cluster, demand, self.engine, self.calibration).plans

    def _with_more(self, index: int, more: int) -> Cluster:
        kinds = list(self.found.cluster.kinds)
        kinds[index] = replace(kinds[index], count=kinds[index].count + more)
        return replace(self.found.cluster, kinds=tuple(kinds))

    def _fewer_users(self) -> Iterator[str]:
        users = self.found.demand.users // 2
        while users:
            if _meets(self._plans(demand=replace(self.found.demand, users=users))):
                yield f"--concurrency {users}"
                return
            users //= 2

    def _quicker_bits(self) -> Iterator[str]:
        for fewer in quantizations_below(self.shape, self.engine, self.found.cluster):
            if _meets(self._plans(shape=fewer)):
                yield f"--quantization {fewer.quantization}"
                return

    def _quicker_machines(self) -> Iterator[str]:
        for more in MORE_NODES[:3]:
            if _meets(self._plans(cluster=self._with_more(0, more))):
                yield f'--add "{more}x({self.found.cluster.kinds[0].title})"'
                return

    def _of_asked(self) -> Iterator[str]:
        """Yield the nearest split to the one that is asked for that works here, else leaving it to the planner."""
        asked = self.found.demand.split
        for split in _near(asked) if asked else ():
            if self._plans(demand=replace(self.found.demand, split=split)):
                yield f"{split.title} instead of {asked.title}" if split else f"leave out {asked.title}"
                return

    def _of_split(self) -> Iterator[str]:
        """Yield less of what is asked for, with the same machines and weights."""
        nearest = _nearest(self.found.rejected)
        fit = nearest.fit if nearest else None
        if fit is None or not fit.ranks:
            return
        if engine_traits(self.engine).slots and 1 <= fit.max_sequences < fit.load.num_sequences:
            fewer = replace(self.found.demand, users=fit.max_sequences)
            if self._plans(demand=fewer):
                yield f"--concurrency {fewer.users}"
        cards = [rank.card for rank in fit.ranks]
        again = plan_fit(fit.shape, cards, fit.split, replace(fit.load, num_sequences=1))
        for change in nearest_changes(again, cards):
            if change.kind in OWN_CHANGES:
                yield _in_options(change, self.found.demand)

    def _of_bits(self) -> Iterator[str]:
        for fewer in quantizations_below(self.shape, self.engine, self.found.cluster):
            if self._plans(shape=fewer):
                yield f"--quantization {fewer.quantization} ({fewer.weight_bytes / GIB:.1f} GiB of weights)"
                return

    def _of_machines(self, shape: ModelShape) -> Iterator[str]:
        """Yield more nodes of each kind that is there."""
        for index, kind in enumerate(self.found.cluster.kinds):
            for more in MORE_NODES:
                cluster = self._with_more(index, more)
                memory = sum(pool.num_cards * pool.card.usable_bytes for pool in pools_of(cluster))
                if memory > shape.weight_bytes and self._plans(shape=shape, cluster=cluster):
                    yield f'--add "{more}x({kind.title})": {more} more node{"s" if more > 1 else ""}'
                    break


def _meets(plans: Sequence[Plan]) -> bool:
    return bool(plans) and not plans[0].missed


def _near(asked: AskedSplit) -> Iterator[AskedSplit]:
    """Yield splits like the one asked for, in steps away from it: tensor, then pipeline, then neither."""
    if asked.expert_parallel:
        yield replace(asked, expert_parallel=None)
    yield from (replace(asked, tensor=degree) for degree in _around(asked.tensor))
    yield from (replace(asked, pipeline=degree) for degree in _around(asked.pipeline))
    yield from (replace(asked, data=degree) for degree in _around(asked.data))
    yield ANY_SPLIT


def _around(degree: int) -> list[int]:
    """Return other degrees, the nearest first; none where none was asked for."""
    others = (other for other in range(1, 2 * degree) if other != degree)
    return sorted(others, key=lambda other: abs(other - degree))[:MAX_NEAR]


def _in_options(change: Change, demand: Demand) -> str:
    """Return a change in the words of the command line, where it has some."""
    tokens = change.fit.load.context_tokens
    if change.kind == "context":
        prompt = tokens - demand.output_tokens
        shorter = f" --prompt-tokens {prompt}" if 0 < prompt < demand.prompt_tokens else ""
        return f"--context {tokens}{shorter}"
    return "--kv-bits 8" if change.kind == "kv" else change.what


def quantizations_below(shape: ModelShape, engine: EngineKind, cluster: Cluster) -> Iterator[ModelShape]:
    """Yield the model in fewer bits, from the one that changes answers least to the one that changes them most.

    Formats of 4-bit floating-point numbers are for hardware that multiplies them, those of old cards for machines that
    lack kernels for the others.
    """
    pools = pools_of(cluster)
    float4 = all(pool.machine.native == "fp4" for pool in pools)
    traits = engine_traits(engine)
    able = all(not lacks_kernels(pool.entry, name) for pool in pools for name in traits.fewer_bits if name != "nvfp4")
    for name in traits.fewer_bits if able else (*traits.fewer_bits, *traits.old_card_bits):
        if (name == "nvfp4" and not float4) or any(lacks_kernels(pool.entry, name) for pool in pools):
            continue
        fewer = requantized(shape, name)
        if fewer.weight_bytes < shape.weight_bytes:
            yield fewer
