"""Which plan is better: one order for ``longboat plan`` and ``longboat up``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

from longboat.planner.search.demand import Demand
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.layouts import Layout

__all__ = (
    "LAGGARD",
    "MAX_PLANS",
    "PREFERENCE",
    "Plan",
    "distinct",
    "effort",
    "forecast_order",
    "least_effort",
    "ranked",
    "speed_step",
)

# Plans that a search returns at most.
MAX_PLANS = 12
# Plans whose tokens per second differ by less count as equal: the simpler one is better.
EQUAL = 0.03
# Where some users wait this many times as long for an answer, a plan needs this many times the tokens per second.
LAGGARD, LAGGARD_WORTH = 2.0, 1.1
# A replica whose stages are on several sorts of cards must bring so much more than replicas on equal ones.
MIXED_WORTH = 1.1
# How many times as fast as the first plan a later one may be, by both of these rules.
PREFERENCE = LAGGARD_WORTH * MIXED_WORTH


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to serve a model: replicas of one layout, or of several that share the users."""

    groups: tuple[Forecast, ...]
    idle: tuple[str, ...] = ()  # accelerators without work, in words
    missed: str = ""  # limits, in words
    reasons: tuple[str, ...] = ()
    changed_format: str = ""  # why the weights are not planned as stored, and what to load, in words

    @property
    def title(self) -> str:
        return " and ".join(group.title for group in self.groups)

    @property
    def key(self) -> str:
        """The same for plans of the same replicas, whatever their order."""
        return " ".join(sorted(group.title for group in self.groups)) + self.groups[0].shape.quantization

    @property
    def format(self) -> str:
        """The format of its weights."""
        return self.groups[0].shape.quantization or self.groups[0].shape.dtype

    @property
    def estimate(self) -> tuple[str, ...]:
        """The reasons why numbers are not exact, of all groups."""
        return tuple(dict.fromkeys(reason for group in self.groups for reason in group.shape.estimate))

    @property
    def is_mixed(self) -> bool:
        """Whether stages of one replica are on several sorts of cards."""
        return any(len({place.card for place in group.layout.places}) > 1 for group in self.groups)

    @property
    def num_replicas(self) -> int:
        return sum(group.layout.replicas for group in self.groups)

    @property
    def tokens_per_s(self) -> float:
        return sum((group.tokens_per_s for group in self.groups), 0.0)

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token in the slowest group that has users."""
        return max(group.prediction.ttft_s.value for group in self.groups if group.busy)

    @property
    def itl_s(self) -> float:
        """Seconds between tokens in the slowest group that has users."""
        return max(group.prediction.itl_s.value for group in self.groups if group.busy)

    def answer_s(self, demand: Demand) -> float:
        """Return the seconds that a mean response of the slowest group takes, from the request to the last token."""
        return self.ttft_s + self.itl_s * demand.traffic(1.0).mean_output_tokens

    @property
    def max_sequences(self) -> int:
        """Requests of the whole context at once, over all replicas."""
        return sum(group.max_sequences for group in self.groups)


def ranked(plans: Iterable[Plan], demand: Demand) -> list[Plan]:
    """Return the plans, the best first."""
    return _without_laggards(_without_mixing(sorted(plans, key=lambda plan: _order(plan, demand))), demand)


def forecast_order(forecast: Forecast) -> tuple[object, ...]:
    """Return a key that sorts layouts for the same users: the quickest first, then the simplest.

    Names of cards and links come last, so that the order in which layouts were tried decides nothing.
    """
    return (-speed_step(forecast.tokens_per_s), effort(forecast), -forecast.fit.max_sequences, _Names(forecast))


@dataclass(frozen=True, eq=False)
class _Names:
    """The last part of a key: names are put together only where all before them is equal."""

    forecast: Forecast

    def __lt__(self, other: _Names) -> bool:
        return self.names < other.names

    @property
    def names(self) -> tuple[object, ...]:
        one, layout = self.forecast, self.forecast.layout
        return one.title, layout.hop.name, layout.places[0].link.name, -one.tokens_per_s, layout.pools


def speed_step(tokens_per_s: float) -> int:
    """Return the same number for speeds that differ by less than ``EQUAL``, and a larger one for higher speeds."""
    return round(log(min(1e30, max(1e-9, tokens_per_s))) / log(1 + EQUAL))


def _order(plan: Plan, demand: Demand) -> tuple[object, ...]:
    """Return a key: limits first, and by how much they are missed; then tokens per second, then simplicity."""
    return (
        bool(plan.missed),
        speed_step(demand.slo.excess(plan.ttft_s, plan.itl_s)),
        -speed_step(plan.tokens_per_s),
        sum(effort(group) for group in plan.groups),
        -plan.max_sequences,
        plan.title,
        -plan.tokens_per_s,
    )


def effort(forecast: Forecast) -> int:
    """Return how much can go wrong: ranks of a replica, uneven layers, ranks that meet over a network in each layer."""
    return least_effort(forecast.layout) + 4 * bool(forecast.layer_setting)


def least_effort(layout: Layout) -> int:
    """Return the part of the effort that is known before layers are divided."""
    return layout.num_ranks + 16 * layout.over_network + 2 * layout.expert_parallel + 4 * (layout.data > 1)


def _without_laggards(plans: list[Plan], demand: Demand) -> list[Plan]:
    """Put first the best plan that makes no users wait long for few more tokens per second."""
    if not plans:
        return plans
    best = plans[0]
    enough, quick_s = best.tokens_per_s / LAGGARD_WORTH, best.answer_s(demand) / LAGGARD
    able = (plan for plan in plans if not plan.missed and plan.tokens_per_s >= enough)
    first = next((plan for plan in able if plan.answer_s(demand) <= quick_s), best)
    return [first, *(plan for plan in plans if plan is not first)]


def _without_mixing(plans: list[Plan]) -> list[Plan]:
    """Put first a plan on equal cards that holds all requests within the limits, unless mixing brings much more."""
    if not plans or not plans[0].is_mixed:
        return plans
    able = (plan for plan in plans if not (plan.is_mixed or plan.missed) and all(one.fit.holds for one in plan.groups))
    first = next((plan for plan in able if plan.tokens_per_s >= plans[0].tokens_per_s / MIXED_WORTH), plans[0])
    return [first, *(plan for plan in plans if plan is not first)]


def distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Return the plans without those whose replicas came before."""
    seen: dict[str, Plan] = {}
    for plan in plans:
        seen.setdefault(plan.key, plan)
    return list(seen.values())
