"""Divides an engine's slots between the gateway processes that send to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ("Demand", "corrected", "lease", "lease_by_tenant")

_SLACK_RATIO = 0.25
"""Part by which a tenant gets more than its demand, so that it can grow until the next division."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The requests of one tenant at one gateway."""

    weight: float  # above 0
    running: int
    waiting: int


def lease(capacity: int, demands: Sequence[int]) -> list[int]:
    """Divide ``capacity`` into the slots of each gateway: max-min fair, nothing left over, equal input gives equal
    output.

    demands: running and waiting requests of each gateway. Slots without demand are spread evenly, so that an idle
    gateway can start requests at once; each gateway gets at least 1 where ``capacity`` allows.
    """
    if not demands:
        return []
    least = 1 if capacity >= len(demands) else 0
    leases = _water_fill(max(0, capacity), [max(least, demand) for demand in demands])
    each, odd = divmod(max(0, capacity) - sum(leases), len(leases))
    return [slots + each + (index < odd) for index, slots in enumerate(leases)]


def lease_by_tenant(capacity: int, demands: Sequence[Mapping[str, Demand]], *, least: int = 1) -> list[int]:
    """Divide ``capacity`` so that a tenant's part of the engine does not depend on how many gateways it uses.

    demands: of each gateway by tenant. Each tenant gets its weighted max-min fair part of ``capacity``, and a gateway
    gets the parts of its tenants there. Where a gateway runs more than its new lease, the excess is held back from the
    others until it ends, so that running and startable requests stay within ``capacity``; without excess the leases add
    up to ``capacity``. least: slots of each gateway, where ``capacity`` allows
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
    """Return the room left on an engine, by the larger of what this gateway sent and what the engine reports.

    reported_running, reported_waiting: the engine's own counts, which include requests of other senders
    """
    return max(0, capacity - max(own_outstanding, reported_running + reported_waiting))


def _water_fill(capacity: int, demands: list[int]) -> list[int]:
    """Meet the smallest demands whole; the others get equal parts of the rest, the earlier ones its remainder."""
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
    """Weighted max-min fairness: satisfy the smallest demand per weight first, then divide the rest by weight."""
    parts: dict[str, float] = {}
    weight_left = sum(weights[name] for name in totals)
    for name in sorted(totals, key=lambda name: (totals[name] / weights[name], name)):
        parts[name] = min(totals[name], capacity * weights[name] / weight_left)
        capacity -= parts[name]
        weight_left -= weights[name]
    return parts


def _rounded(capacity: int, ideal: Sequence[float]) -> list[int]:
    """Round the ideal numbers so that their sum is ``capacity``; what is left over is spread evenly."""
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
