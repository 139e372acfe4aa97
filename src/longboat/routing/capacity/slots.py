"""Divides an engine's slots between the gateway processes that send to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ("Demand", "corrected", "lease", "lease_by_tenant")

_SLACK_RATIO = 0.25
"""By how much more than it demands a tenant gets, so that it can grow until leases are made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one tenant has at one gateway. weight: above 0"""

    weight: float
    running: int
    waiting: int


def lease(capacity: int, demands: Sequence[int]) -> list[int]:
    """Slots of each gateway: max-min fair, all of ``capacity`` given out, equal input gives equal output.

    demands: running and waiting requests of each gateway. What nobody demands is spread evenly, so that a gateway
    with no demand can start at once; each gets at least 1 where ``capacity`` allows.
    """
    if not demands:
        return []
    least = 1 if capacity >= len(demands) else 0
    leases = _water_fill(max(0, capacity), [max(least, demand) for demand in demands])
    each, odd = divmod(max(0, capacity) - sum(leases), len(leases))
    return [slots + each + (index < odd) for index, slots in enumerate(leases)]


def lease_by_tenant(capacity: int, demands: Sequence[Mapping[str, Demand]], *, least: int = 1) -> list[int]:
    """Slots of each gateway, such that a tenant's part of the engine does not depend on how many gateways it uses.

    demands: of each gateway by tenant. Each tenant gets its weighted max-min fair part of ``capacity``, and a gateway
    the parts of its tenants there. What gateways have running above their new lease is held back from the others
    until it ended, so the sum of running and startable requests stays within ``capacity``; without that it is
    ``capacity``. least: slots of each gateway, where ``capacity`` allows
    """
    if not demands:
        return []
    least = min(least, max(0, capacity) // len(demands))
    wanted = [{name: _wanted(demand) for name, demand in gateway.items()} for gateway in demands]
    weights = {name: demand.weight for gateway in demands for name, demand in gateway.items()}
    totals = {name: sum(gateway.get(name, 0.0) for gateway in wanted) for name in sorted(weights)}
    parts = _weighted_fill(float(max(0, capacity) - least * len(demands)), totals, weights)
    ideal = [sum(parts[name] * want / totals[name] for name, want in sorted(g.items()) if want) for g in wanted]
    leases = [least + slots for slots in _rounded(max(0, capacity) - least * len(demands), ideal)]
    return _held_back(leases, [sum(demand.running for demand in gateway.values()) for gateway in demands])


def corrected(capacity: int, own_outstanding: int, reported_running: int, reported_waiting: int) -> int:
    """Room left on an engine, by the larger of what we sent and what it reports; at least 0.

    reported_running, reported_waiting: the engine's own counts, also of requests that others sent
    """
    return max(0, capacity - max(own_outstanding, reported_running + reported_waiting))


def _water_fill(capacity: int, demands: list[int]) -> list[int]:
    """The smallest demands are met whole; the others get equal parts of what is left, the earlier ones what is odd."""
    leases = [0] * len(demands)
    left, still = capacity, len(demands)
    for index in sorted(range(len(demands)), key=lambda index: (demands[index], -index)):
        leases[index] = min(demands[index], left // still)
        left -= leases[index]
        still -= 1
    return leases


def _wanted(demand: Demand) -> float:
    number = demand.running + demand.waiting
    return math.ceil(number * (1 + _SLACK_RATIO)) + 1.0 if number else 0.0


def _weighted_fill(capacity: float, totals: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Who wants least for its weight is given all of it; the others get parts of what is left by weight."""
    parts: dict[str, float] = {}
    weight_left = sum(weights[name] for name in totals)
    for name in sorted(totals, key=lambda name: (totals[name] / weights[name], name)):
        parts[name] = min(totals[name], capacity * weights[name] / weight_left)
        capacity -= parts[name]
        weight_left -= weights[name]
    return parts


def _rounded(capacity: int, ideal: Sequence[float]) -> list[int]:
    """Whole numbers near the ideal ones, whose sum is ``capacity``: what is over is spread evenly."""
    spare = (capacity - sum(ideal)) / len(ideal)
    exact = [max(0.0, slots + spare) for slots in ideal]
    whole = [math.floor(slots + 1e-9) for slots in exact]
    by_rest = sorted(range(len(ideal)), key=lambda index: (whole[index] - exact[index], index))
    for index in by_rest[: capacity - sum(whole)]:
        whole[index] += 1
    return whole


def _held_back(leases: list[int], running: list[int]) -> list[int]:
    excess = sum(max(0, runs - slots) for slots, runs in zip(leases, running, strict=True))
    growth = [max(0, slots - runs) for slots, runs in zip(leases, running, strict=True)]
    allowed = _water_fill(max(0, sum(growth) - excess), growth)
    return [slots - grown + may for slots, grown, may in zip(leases, growth, allowed, strict=True)]
