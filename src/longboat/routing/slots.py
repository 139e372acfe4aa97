"""Divides an engine's slots between the gateway processes that send to it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("corrected", "lease")


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
