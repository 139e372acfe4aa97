"""Divides an engine's slots between the gateway processes that send to it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("corrected", "lease")


def lease(capacity: int, demands: Sequence[int]) -> list[int]:
    """Slots of each gateway: max-min fair, all of ``capacity`` given out, equal input gives equal output.

    demands: running and waiting requests of each gateway. What nobody demands is spread evenly, so that a gateway
    with no demand can start at once; each gets at least 1 where ``capacity`` allows.
    """
    raise NotImplementedError


def corrected(capacity: int, own_outstanding: int, reported_running: int, reported_waiting: int) -> int:
    """Room left on an engine, by the larger of what we sent and what it reports; at least 0.

    reported_running, reported_waiting: the engine's own counts, also of requests that others sent
    """
    raise NotImplementedError
