"""The comparison of one model's plans: all machines and their parts, as stored and in fewer bits.

Weights are planned as they are stored. Formats of fewer bits are compared with them where a replica of the stored
weights needs the network: on all machines, or on a few nodes of them (``groups_of``). What a few nodes ask for is
asked for by every larger set of nodes too, so a further node never takes a format, and its plan, away. What a few nodes
ask for without limits they ask for with limits: a limit takes no format away either.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from math import inf

from longboat.catalog.library import Library
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.planner.compare.asked_formats import asked_formats, check_kernels, in_float16, marked_gguf
from longboat.planner.compare.choices import best_of, crosses, groups_of, parts_of, with_kernels, within_kinds
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.engine_choice import engine_for
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.split_shape import EngineKind
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.machine import machine_for
from longboat.planner.search.advice import quantizations_below
from longboat.planner.search.demand import Demand, Slo
from longboat.planner.search.forecast import Forecasters
from longboat.planner.search.ranking import Plan
from longboat.planner.search.search import SearchResult, search
from longboat.planner.search.shortlist import Bound, SpeedLimit

__all__ = ("Comparison",)


class Comparison:
    """Searches for one model under one demand; what one search has counted, the others do not count again."""

    def __init__(
        self, *, shape: ModelShape, library: Library, calibration: Calibration, demand: Demand, quantization: str
    ) -> None:
        self.shape, self.library, self.calibration, self.demand = shape, library, calibration, demand
        self.quantization = quantization  # formats that are asked for, as the command line has them; "": none is
        self._shared = Forecasters(demand, calibration)
        self._fewer: dict[tuple[EngineKind, str], ModelShape] = {}

    def best(self, cluster: Cluster, *, fewer_bits: bool) -> SearchResult:
        """Return the plans on all machines and their parts; an error counts where all machines together have it."""
        fewer_bits = fewer_bits and not self.quantization
        results = self._searched(cluster, fewer_bits=fewer_bits)
        limit = SpeedLimit(plan for one in results for plan in one.plans)
        for part in islice(parts_of(cluster), 1, None):
            with suppress(UserInputError):
                if self._may_be_best(part, results, limit, fewer_bits=fewer_bits):
                    results += self._searched(part, fewer_bits=fewer_bits)
        if fewer_bits:
            results += self._of_groups(cluster)
        found = best_of(cluster, self.demand, results)
        if found.plans and (more := self._in_format_of(found.plans[0], cluster, results)):
            found = best_of(cluster, self.demand, [*results, more])
        return found

    def stored(self, cluster: Cluster) -> SearchResult:
        """Search in the formats that are asked for, else as stored; nodes whose cards lack kernels stay idle.

        Raises UserInputError where none of the cards has kernels.
        """
        engine = engine_for(cluster, self.library)
        shapes = self.formats(engine)
        if not engine_traits(engine).gguf:
            if "," not in self.quantization:
                cluster = with_kernels(cluster, shapes[0].quantization)
            check_kernels(shapes, cluster, engine)
        return self._search(shapes, cluster, engine)

    def formats(self, engine: EngineKind) -> list[ModelShape]:
        """Return the model in the formats that are asked for, else as the engine computes the stored one."""
        return asked_formats(self.shape, self.quantization, engine, self.library.engines.find(engine))

    def _searched(self, cluster: Cluster, *, fewer_bits: bool) -> list[SearchResult]:
        """Search as stored, and where each of these plans crosses nodes also in fewer bits."""
        results = [self.stored(cluster)]
        if not fewer_bits or _stays(results[0]):
            return results
        for _, found in self._below(cluster):
            results.append(found)
            if _stays(found):
                break
        return results

    def _may_be_best(
        self, part: Cluster, results: Sequence[SearchResult], limit: SpeedLimit, *, fewer_bits: bool
    ) -> bool:
        """Return whether a part may have a plan among the best: unknown bounds count as high ones.

        Raises UserInputError where none of the cards has kernels for a format that is asked for.
        """
        engine = engine_for(part, self.library)
        pools = pools_of(part)
        if len(pools) > 1 or engine != engine_for(results[0].cluster, self.library):
            return True
        pool = replace(pools[0], machine=machine_for(pools[0].machine, engine))
        formats = [shape.quantization for shape in self.formats(engine)]
        formats += [shape.quantization for shape in quantizations_below(self.shape, engine, part)] if fewer_bits else []
        known = ChainMap(*(dict(one.ceilings) for one in results))
        unknown = Bound(tokens_per_s=inf, excess_step=0.0)
        return any(limit.allows(known.get((name, pool.sort), unknown)) for name in formats)

    def _of_groups(self, cluster: Cluster) -> Iterator[SearchResult]:
        """Yield plans in fewer bits that a few of the nodes ask for, as their best plan as stored crosses nodes.

        These plans stay within nodes: fewer bits that cross nodes too gain nothing that was asked for.
        """
        done: set[tuple[object, ...]] = set()
        for group in groups_of(cluster, self._one_node(cluster)):
            whole = within_kinds(cluster, group)
            kinds = tuple(kind.key for kind in group.kinds)
            if kinds in done:
                continue
            with suppress(UserInputError):
                if not any(_best_crosses(comparison.stored(group)) for comparison in self._with_and_without_limits):
                    continue
                done.add(kinds)
                for fewer, found in self._below(group):
                    more = self._search([fewer], whole, engine_for(whole, self.library))
                    yield more.with_plans(plan for plan in more.plans if not crosses(plan))
                    if _stays(found):
                        break

    @cached_property
    def _with_and_without_limits(self) -> tuple[Comparison, ...]:
        if self.demand.slo == Slo():
            return (self,)
        without = Comparison(
            shape=self.shape,
            library=self.library,
            calibration=self.calibration,
            demand=replace(self.demand, slo=Slo()),
            quantization=self.quantization,
        )
        return self, without

    def _one_node(self, cluster: Cluster) -> dict[object, bool]:
        """Return for each kind whose node has room for the stored weights whether it also holds all requests."""
        found: dict[object, bool] = {}
        for kind in cluster.kinds:
            with suppress(UserInputError):
                plans = self.stored(replace(cluster, kinds=(replace(kind, count=1),))).plans
                if plans:
                    found[kind.key] = max(plan.max_sequences for plan in plans) >= self.demand.users
        return found

    def _below(self, cluster: Cluster) -> Iterator[tuple[ModelShape, SearchResult]]:
        """Yield the model in fewer bits, and the plans there, from the format that changes answers least."""
        engine = engine_for(cluster, self.library)
        for fewer in quantizations_below(self.shape, engine, cluster):
            known = self._fewer.setdefault((engine, fewer.quantization), fewer)
            yield known, self._search([known], cluster, engine)

    def _in_format_of(self, best: Plan, cluster: Cluster, before: Sequence[SearchResult]) -> SearchResult | None:
        """Search all machines in the format of a part's plan, where that is not the stored one and was not done."""
        engine, own = engine_for(cluster, self.library), best.groups[0].shape
        asked = bool(self.quantization) or engine != best.groups[0].engine
        if asked or len(cluster.kinds) < 2 or own.quantization in ("", self.shape.quantization):
            return None
        able = with_kernels(cluster, own.quantization)
        if any(one.cluster == able and one.plans[0].groups[0].shape == own for one in before if one.plans):
            return None
        fewer = requantized(self.formats(engine)[0], own.quantization)
        return self._search([fewer], able, engine)

    def _search(self, shapes: Sequence[ModelShape], cluster: Cluster, engine: EngineKind) -> SearchResult:
        """Search with the shapes as the cards and the engine compute them."""
        if engine_traits(engine).gguf:
            return search(shapes, cluster, self.demand, engine, self.calibration, self._shared)
        name = self.library.engines.find(engine).name
        shapes = [marked_gguf(one, name) for one in shapes]
        found = search(shapes, cluster, self.demand, engine, self.calibration, self._shared)
        return found.with_plans(in_float16(plan, cluster) for plan in found.plans)


def _stays(found: SearchResult) -> bool:
    """Return whether one of the plans has no replica that crosses a network."""
    return any(not crosses(plan) for plan in found.plans)


def _best_crosses(found: SearchResult) -> bool:
    return found.best is not None and crosses(found.best)
