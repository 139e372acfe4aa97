"""Requests a second: how many are under way at once, and how many machines of a kind serve them within the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from longboat.planner.machines.cluster import Cluster
from longboat.planner.search.demand import Demand, Slo
from longboat.planner.search.ranking import Plan

__all__ = ("MAX_NODES", "Served", "Sized", "Wanted", "missed_by_waiting", "served_at", "sized")

MAX_NODES = 64
MAX_USERS = 1 << 17
# Twice as many requests at once that bring less than this are more than the machines can use.
LEAST_GROWTH = 1.03
# Where the machines cannot serve a rate, as few requests at once are taken as reach this share of what they can.
NEARLY = 0.99
# The number of requests at once is searched to this share of itself.
USERS_STEP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The plan for the requests that a rate keeps under way."""

    plan: Plan
    users: int  # requests under way at once
    requests_per_s: float  # that the plan serves with that number
    kept: bool  # whether it serves the rate

    def users_at(self, rate: float) -> int:
        """Return the requests that a rate would keep under way if each took as long as now."""
        return min(MAX_USERS, ceil(rate * self.users / self.requests_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The load that machines are to serve: a rate, or as many requests at once as the demand says."""

    demand: Demand
    rate: float = 0.0  # requests a second; 0: none is given
    # Seconds that requests of a rate wait before a plan's replicas because they do not come evenly.
    wait_s: Callable[[Plan, float], float] = lambda plan, rate: 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The fewest machines of one kind that serve a load, or the most that were tried."""

    cluster: Cluster
    served: Served | None  # None: not even the most machines have room for the model
    kept: bool  # the load is served, within the limits

    @property
    def problem(self) -> str:
        """Why the load is not served; ``""`` where it is."""
        if self.kept:
            return ""
        if self.served is None:
            return f"{self.cluster.title} have no room for the model"
        if self.served.plan.missed:
            return self.served.plan.missed
        served, plan = self.served, self.served.plan
        if not served.kept:
            return f"{self.cluster.title} serve {served.requests_per_s:.3g} requests/s"
        return f"{self.cluster.title} hold {plan.max_sequences} requests at once, not {served.users}"


def requests_per_s(plan: Plan) -> float:
    """Return the requests that a plan ends in a second."""
    return plan.tokens_per_s / plan.groups[0].demand.traffic(1.0).mean_output_tokens


def missed_by_waiting(plan: Plan, wait_s: float) -> str:
    """Return the limits that a plan misses where requests wait before their first token, in words."""
    return plan.groups[0].demand.slo.missed(plan.ttft_s + max(0.0, wait_s), plan.itl_s)


def served_at(best_for: Callable[[int], Plan | None], rate: float, *, users: int = 1) -> Served | None:
    """Return the least number of requests at once with which the machines serve a rate; None where nothing fits.

    By Little's law, a rate keeps as many requests under way as arrive while one is served. Where the machines cannot
    serve the rate, the answer is what more requests at once no longer raise.

    best_for: the best plan for a number of requests at once; users: the number to begin with
    """
    low, found = _reached(best_for, rate, users)
    return _fewest(best_for, rate, low, found) if found else None


def _reached(best_for: Callable[[int], Plan | None], rate: float, users: int) -> tuple[int, Served | None]:
    """Return a number of requests at once that does not serve a rate, and what one that does, or the most, brings."""
    low, found = 0, _served(best_for, max(1, users), rate)
    while found and not found.kept and found.users < MAX_USERS:
        more = _served(best_for, min(MAX_USERS, max(2 * found.users, found.users_at(rate))), rate)
        if more is None or not (more.kept or more.requests_per_s >= LEAST_GROWTH * found.requests_per_s):
            break
        low, found = found.users, more
    return low, found


def _fewest(best_for: Callable[[int], Plan | None], rate: float, low: int, found: Served) -> Served:
    """Return about the least number of requests at once that serves a rate, or else nearly as much as ``found``.

    Little's law only shortens the search: near the top the latency is mostly the queue that too many requests make.

    low: a number that does not serve it
    """
    enough = rate if found.kept else NEARLY * found.requests_per_s
    while found.users - low > (step := max(1, low // USERS_STEP)):
        middle = max(low + step, min((low + found.users) // 2, found.users_at(enough)))
        between = _served(best_for, middle, rate)
        serves = between is not None and between.requests_per_s >= enough
        low, found = (low, between) if between and serves else (middle, found)
    return found


def _served(best_for: Callable[[int], Plan | None], users: int, rate: float) -> Served | None:
    plan = best_for(users)
    if plan is None:
        return None
    reached = requests_per_s(plan)
    return Served(plan=plan, users=users, requests_per_s=reached, kept=reached >= rate)


def sized(unit: Cluster, wanted: Wanted, best_for: Callable[[Cluster, int], Plan | None]) -> Sized:
    """Return the fewest times that ``unit`` must be there to serve a load within its limits, ``MAX_NODES`` at most."""
    trials = _Trials(unit, wanted, best_for)
    low, high = 0, 1
    while not trials.at(high).kept and high < MAX_NODES:
        low, high = high, min(MAX_NODES, max(2 * high, _least(trials.at(high), high, wanted)))
    while trials.at(high).kept and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if trials.at(middle).kept else (middle, high)
    return trials.in_fewest(high)


class _Trials:
    """What numbers of machines bring under one load, each counted once."""

    def __init__(self, unit: Cluster, wanted: Wanted, best_for: Callable[[Cluster, int], Plan | None]) -> None:
        self._unit, self._wanted, self._best_for = unit, wanted, best_for
        self._tried: dict[int, Sized] = {}
        self._low: dict[int, int] = {}  # where fewer requests at once may do: a number that does not serve the rate
        self._begin = 1

    def at(self, count: int) -> Sized:
        """Return whether this many machines serve the load. Of a rate, some number of requests at once is enough."""
        if count not in self._tried:
            kinds = tuple(replace(kind, count=count * kind.count) for kind in self._unit.kinds)
            cluster = replace(self._unit, kinds=kinds)
            self._tried[count] = self._at_rate(count, cluster) if self._wanted.rate else self._at_users(cluster)
        return self._tried[count]

    def in_fewest(self, count: int) -> Sized:
        """Return the same, and of a rate about the least number of requests at once that serves it."""
        found = self.at(count)
        if count not in self._low or found.served is None:
            return found
        return self._judged(found.cluster, self._fewest(found.cluster, self._low[count], found.served))

    def _at_users(self, cluster: Cluster) -> Sized:
        users = self._wanted.demand.users
        plan = self._best_for(cluster, users)
        served = Served(plan=plan, users=users, requests_per_s=requests_per_s(plan), kept=True) if plan else None
        holds = plan is not None and plan.max_sequences >= users
        return Sized(cluster=cluster, served=served, kept=holds and plan is not None and not plan.missed)

    def _at_rate(self, count: int, cluster: Cluster) -> Sized:
        low, served = _reached(lambda users: self._best_for(cluster, users), self._wanted.rate, self._begin)
        has_limits = self._wanted.demand.slo != Slo()
        if served is not None and served.kept and has_limits:  # more at once than it takes make each slower
            served = self._fewest(cluster, low, served)
        else:
            self._low[count] = low
        if served is not None and served.kept:
            self._begin = served.users_at(self._wanted.rate)
        return self._judged(cluster, served)

    def _fewest(self, cluster: Cluster, low: int, found: Served) -> Served:
        return _fewest(lambda users: self._best_for(cluster, users), self._wanted.rate, low, found)

    def _judged(self, cluster: Cluster, served: Served | None) -> Sized:
        if served is not None and served.kept:
            late = missed_by_waiting(served.plan, self._wanted.wait_s(served.plan, self._wanted.rate))
            served = replace(served, plan=replace(served.plan, missed=late))
        return Sized(cluster=cluster, served=served, kept=served is not None and served.kept and not served.plan.missed)


def _least(found: Sized, count: int, wanted: Wanted) -> int:
    """Return how many machines a rate needs at least, half of it for what is not proportional; 0: not known."""
    if not wanted.rate or found.served is None or found.served.kept:
        return 0
    return int(count * wanted.rate / found.served.requests_per_s / 2)
