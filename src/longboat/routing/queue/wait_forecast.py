"""Predicts how long a new request waits for a slot, from the work ahead of it and the model's throughput."""

from __future__ import annotations

from longboat.routing.queue.flows import Flow, Flows
from longboat.routing.queue.throughput import Throughput

__all__ = ("forecast_s",)


def forecast_s(flow: Flow, flows: Flows, pace: Throughput, slots: int, busy: int, headroom: int) -> float:
    """Predict the seconds until a slot is free for a ticket that joins ``flow`` now and finds none. ``pace`` is known.

    headroom: slots that only tenants below their share may take. Assumes that no further requests come, that tenants
    with running but no waiting requests keep their slots, and that no class moves up by age.
    """
    tenant = flow.tenant
    within_share = headroom > 0 and tenant.running + tenant.waiting < flows.share(tenant, slots)
    tokens = _tokens_ahead(flow, flows, slots, rivals_over_share=not within_share) + pace.mean_tokens
    if within_share:
        return pace.seconds(tokens, slots)
    return pace.seconds(tokens, max(1, slots - headroom - _slots_of_unqueued(flow, flows, busy)))


def _tokens_ahead(flow: Flow, flows: Flows, slots: int, *, rivals_over_share: bool) -> float:
    """Add up the tenant's own waiting work, that of better classes, and that of its class in earlier virtual time."""
    own_tokens = flow.work_tokens
    until = flow.start() + own_tokens / flow.tenant.weight
    total_tokens = own_tokens
    for level in flows.levels:
        if level.priority > flow.level.priority:
            break
        for other in level.flows:
            if other is flow or not (rivals_over_share or other.tenant.running < flows.share(other.tenant, slots)):
                continue
            tokens = other.work_tokens
            if level is flow.level:
                tokens = min(tokens, max(0.0, (until - other.virtual_time) * other.tenant.weight))
            total_tokens += tokens
    return total_tokens


def _slots_of_unqueued(flow: Flow, flows: Flows, busy: int) -> int:
    """Count the slots that other processes, and tenants without waiting requests, use and keep."""
    queued = {other.tenant for level in flows.levels for other in level.flows}
    queued.add(flow.tenant)
    return max(0, busy - sum(tenant.running for tenant in queued))
