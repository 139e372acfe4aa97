"""Requests a second: how many are under way at once, and how many machines of a kind serve them within the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from longboat.planner.machines.cluster import Cluster
from longboat.planner.search.demand import Demand
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
    low, found = 0, _served(best_for, max(1, users), rate)
    while found and not found.kept and found.users < MAX_USERS:
        more = _served(best_for, min(MAX_USERS, max(2 * found.users, found.users_at(rate))), rate)
        if more is None or not (more.kept or more.requests_per_s >= LEAST_GROWTH * found.requests_per_s):
            break
        low, found = found.users, more
    return _fewest(best_for, rate, low, found) if found else None


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
    tried: dict[int, Sized] = {}

    def at(count: int) -> Sized:
        if count not in tried:
            before = next((one.served for one in reversed(tried.values()) if one.served), None)
            tried[count] = _at(_times(unit, count), wanted, best_for, before)
        return tried[count]

    high = 1
    while not at(high).kept and high < MAX_NODES:
        high = min(MAX_NODES, max(2 * high, _least(at(high), high, wanted)))
    low = max((count for count, one in tried.items() if not one.kept), default=0)
    while at(high).kept and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle).kept else (middle, high)
    return at(high)


def _at(
    cluster: Cluster, wanted: Wanted, best_for: Callable[[Cluster, int], Plan | None], before: Served | None
) -> Sized:
    if not wanted.rate:
        users = wanted.demand.users
        plan = best_for(cluster, users)
        served = Served(plan=plan, users=users, requests_per_s=requests_per_s(plan), kept=True) if plan else None
        holds = plan is not None and plan.max_sequences >= users
        return Sized(cluster=cluster, served=served, kept=holds and plan is not None and not plan.missed)
    begin = before.users_at(wanted.rate) if before and before.kept else 1
    served = served_at(lambda users: best_for(cluster, users), wanted.rate, users=begin)
    if served is not None and served.kept:
        late = missed_by_waiting(served.plan, wanted.wait_s(served.plan, wanted.rate))
        served = replace(served, plan=replace(served.plan, missed=late))
    return Sized(cluster=cluster, served=served, kept=served is not None and served.kept and not served.plan.missed)


def _least(found: Sized, count: int, wanted: Wanted) -> int:
    """Return how many machines a rate needs at least, half of it for what is not proportional; 0: not known."""
    if not wanted.rate or found.served is None or found.served.kept:
        return 0
    return int(count * wanted.rate / found.served.requests_per_s / 2)


def _times(unit: Cluster, count: int) -> Cluster:
    return replace(unit, kinds=tuple(replace(kind, count=count * kind.count) for kind in unit.kinds))
