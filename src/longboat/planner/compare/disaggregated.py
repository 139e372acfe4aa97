"""Prefill and decode apart beside replicas that do both: some replicas compute prompts and send their caches to others.

Decoding is then not held up by prompts of others, and prompts wait only for prompts; but each kind of replica may stand
idle while the other is full, both hold the weights, and caches are sent. For each division of the replicas of a plan, a
closed load is solved: as many requests as the demand says are in turn computed, sent and decoded. Prompts wait for
prompts, and caches for caches on the same link, as in a queue with even service (M/D/1). Caches stay within nodes where
every node can have both kinds; else they cross the network, on the links of the nodes of the rarer kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.pools import pool_with, pools_of
from longboat.planner.memory.engine import engine_traits
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.machine import Fabric
from longboat.planner.search.forecast import Forecast, Forecaster
from longboat.planner.search.ranking import Plan

__all__ = ("Apart", "apart")

SEARCH_STEPS = 40
# Prompts, or caches on the network, keep their replicas or links busy for this share of the time at most.
MAX_BUSY = 0.95
# More divisions are not looked at.
MAX_REPLICAS = 64
# A division that gains less than this is not worth a second kind of replica.
WORTH = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A division of a plan's replicas, and what it does with all users."""

    group: Forecast  # the replicas, as they are when each does both
    prefill: int
    decode: int
    users: int
    ttft_s: float
    itl_s: float
    tokens_per_s: float
    sent_bytes: float  # of the cache of a prompt
    send_s: float
    link: str
    link_busy: float  # share of the time that a link sends caches
    prefill_busy: float  # share of the time that a prefill replica computes
    missed: str  # limits, in words

    @property
    def excess(self) -> float:
        """How many times the limit the worst of both times takes."""
        return self.group.demand.slo.excess(self.ttft_s, self.itl_s)

    def beats(self, plan: Plan) -> bool:
        """Return whether it is better for the load: limits first, then tokens per second, by enough to be worth it."""
        if self.missed or plan.missed:
            return self.excess < self.group.demand.slo.excess(plan.ttft_s, plan.itl_s)
        return self.tokens_per_s > WORTH * plan.tokens_per_s


def apart(plans: Sequence[Plan], cluster: Cluster, calibration: Calibration) -> Apart | None:
    """Return the best division of the replicas of any of the plans; None where none has two equal replicas."""
    found = [one for plan in plans for one in _divisions(plan, cluster, calibration)]
    return min(found, key=lambda one: (one.excess, -one.tokens_per_s), default=None)


def _divisions(plan: Plan, cluster: Cluster, calibration: Calibration) -> Iterator[Apart]:
    (group, *others), replicas = plan.groups, plan.groups[0].layout.replicas
    if others or not 2 <= replicas <= MAX_REPLICAS or len(group.layout.pools) > 1:
        return
    if not engine_traits(group.engine).moves_caches:
        return
    maker = _Maker(group, cluster, calibration)
    for prefill in range(1, replicas):
        if (one := maker.divided(prefill, replicas - prefill)) is not None:
            yield one


class _Maker:
    """Solves the load for divisions of the replicas of one forecast."""

    def __init__(self, group: Forecast, cluster: Cluster, calibration: Calibration) -> None:
        self.group, self.demand = group, group.demand
        self.forecaster = Forecaster(group.shape, group.demand, group.engine, calibration)
        self.traffic = group.demand.traffic(1.0)
        self.prefill_s = self.forecaster.at(group, 1.0, 1).prediction.prefill_s.value
        self.sent_bytes = _cache_bytes(group, self.traffic.mean_prompt_tokens)
        first = group.layout.places[0]
        self.pool = pool_with(first.card, first.machine, pools_of(cluster))
        self.per_node = max(1, self.pool.cards_per_node // group.layout.num_ranks)  # replicas
        self._steps: dict[int, tuple[float, bool]] = {}

    def divided(self, prefill: int, decode: int) -> Apart | None:
        """Return what ``prefill`` replicas for prompts and ``decode`` for the rest do; None where no request passes."""
        low, high, found = 0.0, float(self.demand.users), None
        for _ in range(SEARCH_STEPS):
            middle = (low + high) / 2
            one = self._at(prefill, decode, middle)
            if one is None:
                high = middle
            else:
                low, found = middle, one
        return found

    def _at(self, prefill: int, decode: int, decoding: float) -> Apart | None:
        """Return the state with as many requests decoding at once; None where that needs more users than there are."""
        each = decoding / decode
        itl_s, held = self._step(each)
        rate = decoding / (self.traffic.mean_output_tokens * itl_s)
        link, count = self._links(prefill, decode)
        send_s = link.latency_s + self.sent_bytes / link.bandwidth_bytes_per_s
        busy, sending = rate * self.prefill_s / prefill, rate * send_s / count
        if not held or max(busy, sending) > MAX_BUSY:
            return None
        waits = busy / (2 * (1 - busy)) * self.prefill_s + sending / (2 * (1 - sending)) * send_s
        ttft_s = self.prefill_s + waits + send_s + itl_s
        if decoding + rate * ttft_s > self.demand.users:
            return None
        return Apart(
            group=self.group,
            prefill=prefill,
            decode=decode,
            users=self.demand.users,
            ttft_s=ttft_s,
            itl_s=itl_s,
            tokens_per_s=rate * self.traffic.mean_output_tokens,
            sent_bytes=self.sent_bytes,
            send_s=send_s,
            link=link.name,
            link_busy=sending,
            prefill_busy=busy,
            missed=self.demand.slo.missed(ttft_s, itl_s),
        )

    def _links(self, prefill: int, decode: int) -> tuple[Fabric, int]:
        """Return the link that caches take, and how many of them there are."""
        nodes = -(-(prefill + decode) // self.per_node)
        if prefill % nodes == 0 and decode % nodes == 0:
            return self.pool.bus, nodes
        return self.pool.network, -(-min(prefill, decode) // self.per_node)

    def _step(self, users: float) -> tuple[float, bool]:
        """Return the seconds of a decode step without prompts, and whether all are held; between two whole numbers."""
        low = max(1, int(users))
        part = max(0.0, users - low)
        (first, held), (second, _) = self._whole(low), self._whole(low + 1)
        return first + part * (second - first), held

    def _whole(self, users: int) -> tuple[float, bool]:
        if users not in self._steps:
            told = self.forecaster.at(self.group, float(users), 1).prediction
            self._steps[users] = (told.step_s.value, told.running >= users)
        return self._steps[users]


def _cache_bytes(group: Forecast, prompt_tokens: float) -> float:
    """Return the bytes of all layers' caches of one prompt: what is sent for each request."""
    kv_bytes = group.fit.load.kv_bytes
    return float(sum(layer.cache.bytes_of(round(prompt_tokens), kv_bytes) for layer in group.shape.layers))
