"""The search: every layout of a model over the machines is tried, and what cannot be is refused with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.pools import Pool, pools_of
from longboat.planner.memory.fit import Fit
from longboat.planner.memory.split_shape import EngineKind
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.kernels import computed_on
from longboat.planner.predict.machine import machine_for
from longboat.planner.search.ceiling import Ceilings
from longboat.planner.search.demand import Demand
from longboat.planner.search.forecast import Forecast, Forecaster, Forecasters
from longboat.planner.search.layouts import Layout, layouts, mixed_layouts
from longboat.planner.search.ranking import MAX_PLANS, Plan, distinct, forecast_order, ranked
from longboat.planner.search.shortlist import Bound, Shortlist, SpeedLimit, figures_of

__all__ = ("Rejected", "Search", "SearchResult", "search")

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A layout that was tried and cannot be, or is not worth it, and why."""

    what: str
    why: str
    hint: str = ""
    fit: Fit | None = None  # where bytes were counted


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Plans, best first, and what was refused."""

    cluster: Cluster
    demand: Demand
    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    behind: tuple[Plan, ...] = ()  # plans of several searches that are ranked behind the best few
    # What each format reaches at most on one kind of the machines alone, where that was counted.
    ceilings: Mapping[tuple[str, tuple[object, ...]], Bound] = field(default_factory=dict)

    @property
    def best(self) -> Plan | None:
        return self.plans[0] if self.plans else None

    def with_plans(self, plans: Iterable[Plan]) -> SearchResult:
        """Return the same search with these plans."""
        return replace(self, plans=tuple(plans))


def search(
    shapes: Sequence[ModelShape],
    cluster: Cluster,
    demand: Demand,
    engine: EngineKind,
    calibration: Calibration,
    shared: Forecasters | None = None,
    *,
    prune: bool = True,
) -> SearchResult:
    """Return ranked plans for one model, in each of the quantizations ``shapes`` that are allowed.

    shared: forecasters of the same demand and calibration that other searches have used
    prune: whether layouts that cannot be among the best get no forecast
    """
    shared = shared or Forecasters(demand, calibration)
    pools = tuple(replace(pool, machine=machine_for(pool.machine, engine)) for pool in pools_of(cluster))
    plans: list[Plan] = []
    rejected: list[Rejected] = []
    ceilings: dict[tuple[str, tuple[object, ...]], Bound] = {}
    for shape in shapes:
        # An engine does not mix accelerators with processors: the first pool speaks for all.
        one = Search(pools, shared.of(computed_on(pools[0].machine, shape), engine), prune=prune)
        plans += one.plans()
        rejected += one.rejected
        ceilings |= {(shape.quantization, pools[number].sort): value for number, value in one.ceilings.items()}
    kept = distinct(ranked(plans, demand))[:MAX_PLANS]
    return SearchResult(cluster=cluster, demand=demand, plans=tuple(kept), rejected=tuple(rejected), ceilings=ceilings)


class Search:
    """Tries every layout of one model over pools of machines."""

    def __init__(self, pools: Sequence[Pool], forecaster: Forecaster, *, prune: bool = True) -> None:
        self.pools, self.forecaster, self.prune = tuple(pools), forecaster, prune
        self.shape, self.demand, self.engine = forecaster.shape, forecaster.demand, forecaster.engine
        self.weight_bytes = self.shape.weight_bytes  # counted once: a sum over all weights
        self.rejected: list[Rejected] = []
        self.ceilings: Mapping[int, Bound] = {}  # as in ``Shortlist``

    def plans(self) -> list[Plan]:
        """Return a plan for each layout that is worth it: with the best one for the machines that it leaves, and alone.

        A layout whose bound (``Ceilings``) is below what others reach gets no forecast.
        """
        layouts = [layout for layout in self._layouts() if not self._refused_as_large(layout)]
        shortlist = Shortlist(layouts, self.pools, Ceilings(self.forecaster) if self.prune else None, self.best)
        kept = shortlist.best_few()
        self._refuse_all(shortlist)
        if len(self.pools) == 1:
            return [self._plan([group]) for group in kept]
        best = {group.layout.pools[0]: group for group in reversed(kept) if len(group.layout.pools) == 1}
        plans = [self._plan(_shared(self.forecaster, [group, *_others(group, best)])) for group in kept]
        limit = SpeedLimit(plans)
        for group in shortlist.alone(limit):
            plans.append(self._plan([group]))
            limit.add(plans[-1])
        self.ceilings = shortlist.ceilings
        return plans

    def alone(self, replicas: int | None, *, equal: bool, mixed: bool) -> list[Forecast]:
        """Return forecasts of single layouts that serve all users, those that fit and those that do not.

        replicas: that there must be; None: as many as find room, one for each user at most
        equal, mixed: whether layouts on one pool, and on several, are tried
        """
        found = []
        for layout in self.every_layout(equal=equal, mixed=mixed):
            count = min(layout.replicas, self.demand.users) if replicas is None else replicas
            if count <= layout.replicas and len(layout.places) <= len(self.shape.layers):
                found.append(self.best(replace(layout, replicas=count)))
        return found

    def best(self, layout: Layout, share: float = 1.0) -> Forecast:
        """Return the best forecast of a layout; where no division of its layers fits, the first one."""
        found = self.forecaster.divided(layout, share)
        return min((one for one in found if one.fit.fits), key=forecast_order, default=found[0])

    def every_layout(self, *, equal: bool = True, mixed: bool = True) -> Iterator[Layout]:
        """Yield all layouts, or of these the split that is asked for."""
        traits, asked = self.forecaster.traits, self.demand.split
        parallel = traits.tensor_parallel
        experts = self.demand.expert_parallel and any(layer.num_experts for layer in self.shape.layers)
        for pool in self.pools if equal else ():
            for layout in layouts(pool, tensor_parallel=parallel, expert_parallel=experts, asked=asked):
                if layout.matches(asked) and (layout.data == 1 or self._divides_requests(layout)):
                    yield layout
        if mixed and len(self.pools) > 1:
            found = mixed_layouts(
                self.pools,
                tensor_parallel=parallel,
                any_platform=traits.mixes_platforms,
                shallow=not traits.overlaps_stages,
            )
            yield from (layout for layout in found if layout.matches(asked))

    def _layouts(self) -> Iterator[Layout]:
        found = self.every_layout()
        first = next(found, None)
        if first is None:
            self.rejected.append(self._not_laid_out())
            return
        yield first
        yield from found

    def _divides_requests(self, layout: Layout) -> bool:
        """Return whether dividing requests is asked for, or allowed and saves copies of caches."""
        if self.demand.split.data > 1:
            return True
        caches = {layer.cache for layer in self.shape.kinds}
        copied = any(cache.kind != "none" and cache.tensor_shards(layout.tensor) < layout.tensor for cache in caches)
        return self.demand.data_attention and copied

    def _not_laid_out(self) -> Rejected:
        """Return why the machines have no place for the split that is asked for."""
        asked, cards = self.demand.split, sum(pool.num_cards for pool in self.pools)
        if asked.expert_parallel and not any(layer.num_experts for layer in self.shape.layers):
            return Rejected(what=asked.title, why=f"{self.shape.name} is dense: it has 0 experts to divide")
        widest = asked.tensor * max(1, asked.data) or max(pool.cards_per_node for pool in self.pools)
        if asked.expert_parallel and widest == 1:
            return Rejected(what=asked.title, why="experts are divided over the ranks of a stage, and there is 1")
        if asked.least_ranks > cards:
            return Rejected(what=asked.title, why=f"{asked.least_ranks} accelerators are needed, and there are {cards}")
        each = ", ".join(f"{pool.num_nodes} x {pool.cards_per_node} {pool.entry.name}" for pool in self.pools)
        return Rejected(what=asked.title, why=f"{asked.least_ranks} accelerators in equal stages, of {each}")

    def _refused_as_large(self, layout: Layout) -> bool:
        if refused := self._too_large(layout):
            self._refuse(layout, refused)
        return bool(refused)

    def _refuse_all(self, shortlist: Shortlist) -> None:
        """Refuse what does not fit, and what is slower than the best few on the same machines."""
        for found in shortlist.unfit:
            self._refuse_fit(found)
        for layout, figures, best in shortlist.slower:
            self._refuse(layout, f"{figures}; {best.title} on the same machines, {figures_of(best)}")

    def _too_large(self, layout: Layout) -> str:
        """Return why weights alone exceed all memory of a replica: a cheap check that refuses most layouts."""
        if len(layout.places) > len(self.shape.layers):
            return f"{len(layout.places)} stages for {len(self.shape.layers)} layers"
        memory = sum(layout.tensor * place.card.usable_bytes for place in layout.places)
        if self.weight_bytes <= memory:
            return ""
        return (
            f"weights of {self.weight_bytes / GIB:.1f} GiB, and {layout.cards_title} have {memory / GIB:.1f} GiB "
            "usable together"
        )

    def _plan(self, groups: Sequence[Forecast]) -> Plan:
        served = {number for one in groups for number in one.layout.pools}
        idle = [f"{pool.num_cards} x {pool.entry.name}" for pool in self.pools if pool.number not in served]
        for one in groups:
            idle += _left_over(one, self.pools)
        plan = Plan(groups=tuple(groups), idle=tuple(idle))
        return replace(plan, missed=self.demand.slo.missed(plan.ttft_s, plan.itl_s))

    def _refuse(self, layout: Layout, why: str) -> None:
        self.rejected.append(Rejected(what=f"{layout.cards_title}, {layout.split_title}", why=why))

    def _refuse_fit(self, forecast: Forecast) -> None:
        layout, short = forecast.layout, forecast.fit.shortage
        quantization = f" in {self.shape.quantization}" if self.shape.quantization else ""
        what = f"{layout.cards_title}, {layout.split_title}{quantization}"
        if short is None:
            self.rejected.append(Rejected(what=what, why="no division of its layers fits"))
        else:
            self.rejected.append(Rejected(what=what, why=short.what, hint=short.hint, fit=forecast.fit))


def _others(group: Forecast, best: Mapping[int, Forecast]) -> list[Forecast]:
    """Return the best for each pool that ``group`` leaves."""
    return [found for number, found in sorted(best.items()) if number not in group.layout.pools]


def _shared(forecaster: Forecaster, groups: Sequence[Forecast]) -> list[Forecast]:
    """Share the users among replicas by their speed; where there are few users, the quickest get them."""
    speeds = [group.layout.replicas * group.prediction.total_tokens_per_s.value for group in groups]
    if forecaster.demand.users < sum(group.layout.replicas for group in groups):
        return _few_users(forecaster, groups)
    shares = [speed / sum(speeds, 0.0) * forecaster.demand.users for speed in speeds]
    return [_again(forecaster, group, share) for group, share in zip(groups, shares, strict=True)]


def _again(forecaster: Forecaster, group: Forecast, share: float) -> Forecast:
    """Return the same replicas with ``share`` users; room for more of them is planned where there is any."""
    users = max(1.0, share / group.layout.replicas)
    busy = max(1, min(group.layout.replicas, round(share)))
    if ceil(users) > group.fit.load.num_sequences:
        tried = forecaster.of(group.layout, group.fit.split.stages, users, busy)
        if tried.fit.fits:
            return tried
    return forecaster.at(group, users, busy)


def _few_users(forecaster: Forecaster, groups: Sequence[Forecast]) -> list[Forecast]:
    alone = [forecaster.at(group, 1.0, group.busy) for group in groups]
    left, found = forecaster.demand.users, []
    for group in sorted(alone, key=lambda group: group.prediction.itl_s.value):
        found.append(replace(group, busy=min(left, group.layout.replicas)))
        left -= found[-1].busy
    return found


def _left_over(group: Forecast, pools: Sequence[Pool]) -> Iterator[str]:
    for number in group.layout.pools:
        used = group.layout.replicas * group.layout.tensor
        used *= sum(place.pool == number for place in group.layout.places)
        if left := pools[number].num_cards - used:
            yield f"{left} x {pools[number].entry.name}"
