"""Chooses among those who wait and may go: between priority classes by class and age, inside one by service."""

from __future__ import annotations

from longboat.routing.queue.flows import Flow

__all__ = ("first_by_class",)


def first_by_class(classes: list[list[Flow]], now_s: float, age_s: float) -> Flow | None:
    """Best class first; one whose oldest ticket waited long takes turns with the class above. In it, least served.

    Age lifts the class and not the tenant: who floods has the oldest tickets, and must not win by that.
    classes: flows with waiting tickets, best class first; some may be empty. age_s: 0 is no ageing
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
    return int((now_s - min(flow.head.arrived_s for flow in flows)) / age_s)


def _least_served(flows: list[Flow]) -> Flow:
    if len(flows) == 1:
        return flows[0]
    return min(flows, key=lambda flow: (flow.virtual_time, flow.head.arrived_s))
