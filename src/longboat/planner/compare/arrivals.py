"""The wait of requests that arrive at random: engines have room for a number of requests, and compute prompts in turn.

A rate says how many requests arrive on average. ``burstiness`` is the squared coefficient of variation of the times
between them: 0 for even arrivals, 1 for independent ones (Poisson), more for bursts. Two queues form:

- for room in the engines, a queue of c servers by Allen and Cunneen's approximation (Allen, Probability, Statistics,
  and Queueing Theory, 1990, 5.2.4): ``(Ca² + Cs²) / 2`` times the wait of M/M/c, which is Erlang's C formula;
- for prompts before it, one after the other. The time model already has the wait of independent arrivals
  (``queueing.first_token_passes``); by Kingman's formula, other arrivals change it by ``(Ca² - 1) / 2``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from longboat.planner.predict.constants import Calibration
from longboat.planner.search.forecast import Forecaster
from longboat.planner.search.ranking import Plan

__all__ = ("Arrivals", "Queue", "erlang_c", "queue_of", "waits_for")

# More requests on a replica than any engine runs at once: what still runs is its capacity.
FULL = 8192.0
# As in the time model: prompts keep an engine busy for this share of its time at most.
MAX_BUSY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests a second, and how unevenly they come."""

    rate: float
    burstiness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What random arrivals add to the time to the first token of a plan."""

    utilization: float  # the rate, of all that the plan serves at most
    room: int  # requests that run at once at most
    wait_s: float  # the mean wait that even arrivals would not have; infinite from a utilization of 1 on


def erlang_c(servers: int, load: float) -> float:
    """Return the share of arrivals that wait in M/M/c. load: arrivals a second times seconds of service."""
    if load >= servers:
        return 1.0
    blocked = 1.0  # Erlang's B formula, by its recursion over the servers
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return servers * blocked / (servers - load * (1.0 - blocked))


def queue_of(plan: Plan, arrivals: Arrivals, calibration: Calibration) -> Queue:
    """Return the queue before the replicas of a plan."""
    served, room = 0.0, 0
    demand = plan.groups[0].demand
    traffic = demand.traffic(1.0)
    for group in plan.groups:
        maker = Forecaster(group.shape, demand, group.engine, calibration)
        full = maker.at(group, FULL, group.layout.replicas)
        served += full.tokens_per_s / traffic.mean_output_tokens
        room += group.layout.replicas * max(1, int(full.prediction.running))
    utilization = arrivals.rate / served
    if utilization >= 1.0:
        return Queue(utilization=utilization, room=room, wait_s=inf)
    lengths = (traffic.spread / (1.0 - traffic.spread / 2.0)) ** 2 / 12.0  # Cs² of lengths between two bounds
    waiting = erlang_c(room, utilization * room) / (served - arrivals.rate)
    wait_s = (arrivals.burstiness + lengths) / 2.0 * waiting + _prompts_s(plan, arrivals)
    return Queue(utilization=utilization, room=room, wait_s=wait_s)


def waits_for(burstiness: float, calibration: Calibration) -> Callable[[Plan, float], float]:
    """Return a function of a plan and a rate: the seconds that requests wait."""
    return lambda plan, rate: queue_of(plan, Arrivals(rate=rate, burstiness=burstiness), calibration).wait_s


def _prompts_s(plan: Plan, arrivals: Arrivals) -> float:
    """Return what arrivals that are more or less even than independent ones change of the wait for other prompts."""
    replicas = max(1, sum(group.busy for group in plan.groups))
    prefill_s = max(group.prediction.prefill_s.value for group in plan.groups)
    busy = min(MAX_BUSY, arrivals.rate / replicas * prefill_s)
    return (arrivals.burstiness - 1.0) / 2.0 * prefill_s * busy / (1.0 - busy)
