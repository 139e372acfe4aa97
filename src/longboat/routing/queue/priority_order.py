"""Chooses among the waiting flows: by share, then by class and age, and inside a class by service."""

from __future__ import annotations

from longboat.core.policy import QueuePolicy
from longboat.routing.queue.flows import Flow, Flows
from longboat.routing.queue.throughput import Throughput

__all__ = ("first_by_class", "is_below_share", "next_flow")


def next_flow(
    flows: Flows, pace: Throughput, queue: QueuePolicy, now_s: float, slots: int, free: int, *, by_age: bool = True
) -> Flow | None:
    """Choose the next flow. The last free slots are for tenants below their share, unless all tenants wait.

    by_age: a class that waits long takes turns with the one above
    """
    age_s = queue.age_s if by_age else 0.0
    waiting = [list(level.flows) for level in flows.levels]
    if free > flows.headroom(slots, queue.headroom_ratio, now_s):
        return first_by_class(waiting, now_s, age_s)
    floors = [level.floor() for level in flows.levels]
    below = [
        [flow for flow in of_level if is_below_share(flow, flows, pace, slots, floor)]
        for of_level, floor in zip(waiting, floors, strict=True)
    ]
    chosen = first_by_class(below, now_s, age_s)
    if chosen is None and all(tenant.waiting for tenant in flows.tenants.values()):
        return first_by_class(waiting, now_s, age_s)
    return chosen


def is_below_share(flow: Flow, flows: Flows, pace: Throughput, slots: int, floor: float | None) -> bool:
    """Return whether the tenant has fewer slots than its share and is not too far ahead of waiting flows.

    Too far is a lead of more tokens than its share holds. Without that part, a tenant that uses more tokens a second on
    each slot would get more than others. A tenant that recently wanted less than its share is never too far ahead.
    floor: virtual time of the least served waiting flow of the class; None if no flow waits
    """
    share = flows.share(flow.tenant, slots)
    if flow.tenant.running >= share:
        return False
    if floor is None or not pace.known or flow.tenant.demand.mean < share:
        return True
    lead_tokens = (flow.virtual_time - floor) * flow.tenant.weight
    return lead_tokens <= share * pace.mean_tokens


def first_by_class(classes: list[list[Flow]], now_s: float, age_s: float) -> Flow | None:
    """Choose the least served flow of the best class; one whose oldest ticket waited long takes turns with the next.

    Age lifts the class and not the tenant: a tenant that floods has the oldest tickets, and must not win by that.
    classes: flows with waiting tickets, best class first; some may be empty. age_s: 0 turns ageing off
    """
    best: list[Flow] = []
    best_rank = (0, 0)
    for flows in classes:
        if not flows:
            continue
        level = flows[0].level
        if not best:
            best, best_rank = flows, (level.priority, level.turn)
            continue
        rank = (max(level.priority - _ages(flows, now_s, age_s), best_rank[0]), level.turn)
        if rank < best_rank:
            best, best_rank = flows, rank
    return _least_served(best) if best else None


def _ages(flows: list[Flow], now_s: float, age_s: float) -> int:
    if age_s <= 0:
        return 0
    return int((now_s - min(flow.head.since_s for flow in flows)) / age_s)


def _least_served(flows: list[Flow]) -> Flow:
    if len(flows) == 1:
        return flows[0]
    return min(flows, key=lambda flow: (flow.virtual_time, flow.head.arrived_s))
