"""The few layouts that may be among the best: forecasts are made in the order of their bounds, until none can be."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from longboat.planner.machines.pools import Pool
from longboat.planner.search.ceiling import Ceilings
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.layouts import Layout
from longboat.planner.search.ranking import (
    MAX_PLANS,
    PREFERENCE,
    Plan,
    effort,
    forecast_order,
    least_effort,
    speed_step,
)

__all__ = ("Bound", "Shortlist", "SpeedLimit", "figures_of")

# Layouts for the same machines, where there are several kinds of them.
MAX_GROUPS = 3


class Bound(NamedTuple):
    """What layouts on one kind of machine reach at most."""

    tokens_per_s: float
    excess_step: float  # by which they miss limits at least


class SpeedLimit:
    """What a further plan must reach to be among the best, or to be put before a faster one."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        self._speeds: dict[str, float] = {}
        self._excesses: dict[str, int] = {}
        self.tokens_per_s = 0.0
        self.excess_step: float = inf  # of plans that miss limits by more, all are behind the best
        for plan in plans:
            self.add(plan)

    def allows(self, bound: Bound) -> bool:
        """Return whether a plan within the bound may be among the best."""
        fast = speed_step(bound.tokens_per_s) >= speed_step(self.tokens_per_s)
        return fast and bound.excess_step <= self.excess_step

    def add(self, plan: Plan) -> None:
        """Count a plan; the speed of one that misses limits does not count, as slower ones may keep them."""
        step = speed_step(plan.groups[0].demand.slo.excess(plan.ttft_s, plan.itl_s))
        self._excesses[plan.key] = min(step, self._excesses.get(plan.key, step))
        if len(self._excesses) >= MAX_PLANS:
            self.excess_step = float(sorted(self._excesses.values())[MAX_PLANS - 1])
        if plan.missed:
            return
        self._speeds.setdefault(plan.key, plan.tokens_per_s)
        fastest = sorted(self._speeds.values(), reverse=True)
        if len(fastest) >= MAX_PLANS:
            self.tokens_per_s = min(fastest[MAX_PLANS - 1], fastest[0] / PREFERENCE)


class Shortlist:
    """Layouts of one search, with a forecast of those that may be among the best."""

    def __init__(
        self,
        layouts: Sequence[Layout],
        pools: Sequence[Pool],
        ceilings: Ceilings | None,
        best: Callable[[Layout, float], Forecast],
    ) -> None:
        """Take layouts that may fit.

        ceilings: None: all layouts get a forecast
        best: the best forecast of a layout with a share of all users
        """
        self.layouts, self.pools, self._ceilings, self._best = layouts, pools, ceilings, best
        self.unfit: list[Forecast] = []
        # Layouts that are slower than the best few on the same machines, with their figures and the best.
        self.slower: list[tuple[Layout, str, Forecast]] = []
        # The bounds of the best layouts on each kind of machine, for all users, where there are several kinds.
        self.ceilings: dict[int, Bound] = {}
        self._tried: dict[int, Forecast] = {}

    def best_few(self) -> list[Forecast]:
        """Return the best few layouts for each set of machines, in order."""
        by_pools: dict[frozenset[int], list[int]] = {}
        for index, layout in enumerate(self.layouts):
            by_pools.setdefault(frozenset(layout.pools), []).append(index)
        most = MAX_PLANS if len(by_pools) == 1 else MAX_GROUPS
        kept = [one for indices in by_pools.values() for one in self._best_of(indices, most)]
        self.unfit = [one for _, one in sorted(self._tried.items()) if not one.fit.fits]
        return sorted(kept, key=forecast_order)

    def alone(self, limit: SpeedLimit) -> Iterator[Forecast]:
        """Yield the forecasts of layouts that serve all users alone, while they may be as fast as ``limit``."""
        ordered = self._in_order(range(len(self.layouts)), lambda _: 1.0)
        fast = (pair for pair in ordered if speed_step(pair[0]) >= speed_step(limit.tokens_per_s))
        bounds = sorted(self._with_excess(fast))
        self._keep(ordered, {index: excess_step for excess_step, _, index in bounds})
        for excess_step, ceiling, index in bounds:
            if excess_step > limit.excess_step:
                return
            if speed_step(-ceiling) < speed_step(limit.tokens_per_s) or not self._may_fit(index):
                continue
            found = self._best(self.layouts[index], 1.0)
            if found.fit.fits:
                yield found

    def _with_excess(self, ordered: Iterable[tuple[float, int]]) -> Iterator[tuple[int, float, int]]:
        """Yield by how much each layout alone misses limits at least, as a step, then its bound below zero."""
        for ceiling, index in ordered:
            excess = 1.0 if self._ceilings is None else self._ceilings.least_excess(self.layouts[index])
            yield speed_step(excess), -ceiling, index

    def _keep(self, ordered: Iterable[tuple[float, int]], excess_steps: Mapping[int, int]) -> None:
        """Keep the bounds of each kind of machine; layouts that are too slow have no bound on limits."""
        for ceiling, index in ordered:
            if len(pools := self.layouts[index].pools) == 1:
                known = self.ceilings.get(pools[0], Bound(tokens_per_s=ceiling, excess_step=inf))
                least = min(known.excess_step, excess_steps.get(index, inf))
                self.ceilings[pools[0]] = Bound(tokens_per_s=known.tokens_per_s, excess_step=least)

    def _may_fit(self, index: int) -> bool:
        """Return whether nothing is known that speaks against a layout: its forecast with fewer users."""
        return index not in self._tried or self._tried[index].fit.fits

    def _best_of(self, indices: Sequence[int], most: int) -> list[Forecast]:
        found: list[Forecast] = []
        slow: list[tuple[Layout, str]] = []
        few = len(indices) <= 2 * most  # bounds would cost more than they save
        for ceiling, index in [(inf, index) for index in indices] if few else self._in_order(indices, self._share):
            if len(found) >= most and _comes_after(ceiling, self.layouts[index], found[most - 1]):
                slow.append((self.layouts[index], f"{ceiling:.0f} tokens/s at most"))
                continue
            one = self._forecast(index)
            if one.fit.fits:
                insort(found, one, key=forecast_order)
        slow = [(one.layout, figures_of(one)) for one in found[most:]] + slow
        self.slower += [(layout, figures, found[0]) for layout, figures in slow]
        return found[:most]

    def _in_order(self, indices: Iterable[int], share: Callable[[Layout], float]) -> list[tuple[float, int]]:
        """Return the bounds of layouts, the highest first."""
        if self._ceilings is None:
            return [(inf, index) for index in indices]
        told = (
            (self._ceilings.tokens_per_s(self.layouts[index], share(self.layouts[index])), index) for index in indices
        )
        return sorted(told, key=lambda pair: (-pair[0], pair[1]))

    def _forecast(self, index: int) -> Forecast:
        """Return the forecast with the users that the layout's machines get at first."""
        if index not in self._tried:
            layout = self.layouts[index]
            self._tried[index] = self._best(layout, self._share(layout))
        return self._tried[index]

    def _share(self, layout: Layout) -> float:
        """Return the part of the users that the layout's machines get at first: their part of all memories' speed."""
        total = sum((pool.bandwidth_bytes_per_s for pool in self.pools), 0.0)
        return sum((self.pools[number].bandwidth_bytes_per_s for number in layout.pools), 0.0) / total


def _comes_after(ceiling: float, layout: Layout, other: Forecast) -> bool:
    """Return whether a layout with this bound is behind a forecast for certain: slower, or not simpler."""
    step, least = speed_step(ceiling), speed_step(other.tokens_per_s)
    return step < least or (step == least and least_effort(layout) > effort(other))


def figures_of(group: Forecast) -> str:
    """Return tokens per second and ITL in words."""
    return f"{group.tokens_per_s:.0f} tokens/s, ITL {group.prediction.itl_s.value * 1e3:.1f} ms"
