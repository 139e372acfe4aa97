"""Chooses an endpoint for a request that needs a LoRA adapter: one that holds it, unless its load says otherwise.

An endpoint that serves the adapter but does not have it in memory reads it first, and may have to give up another one.
So each adapter has a home, an endpoint that follows from the names alone: gateways that know nothing of each other
agree on it, and adapters spread evenly. Its requests leave home while others have fewer requests by a margin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from typing import TypeVar

from longboat.routing.decisions import EndpointView
from longboat.routing.pick import pick

__all__ = ("home_of", "margin_of", "pick_with_adapter")

_LEAST_MARGIN = 2


E = TypeVar("E", bound=EndpointView)


def pick_with_adapter(
    endpoints: Sequence[E], adapter: str, *, turn: int, tried: Container[str] = (), overfull: bool = False
) -> tuple[E, str] | None:
    """Return the endpoint and the reason; None where none has room.

    endpoints: those that serve the adapter; turn, tried and overfull: as for ``pick``
    """
    idlest = pick(endpoints, turn=turn, tried=tried, overfull=overfull)
    if idlest is None:
        return None
    holders = [e for e in endpoints if e.holds(adapter)]
    warm = pick(holders, turn=turn, tried=tried, overfull=overfull) if holders else None
    if warm is not None and (warm is idlest or _is_near(warm, idlest)):
        return warm, "it holds the adapter"
    if holders:
        return idlest, "the adapter's holders are busier"
    near = [e for e in endpoints if e.key not in tried and e.ready and (e is idlest or _is_near(e, idlest))]
    home = home_of(near, adapter)
    return home, "no replica holds the adapter: it gets a home"


def home_of(endpoints: Sequence[E], adapter: str) -> E:
    """Return the adapter's home among these endpoints; when one leaves, only its own adapters move."""
    return max(endpoints, key=lambda e: hashlib.blake2b(f"{adapter}\0{e.key}".encode(), digest_size=8).digest())


def margin_of(capacity: int | None) -> int:
    """Return how many requests more than the idlest a holder may have: a quarter of what it works on at once."""
    return max(_LEAST_MARGIN, capacity // 4) if capacity else _LEAST_MARGIN


def _is_near(endpoint: E, idlest: E) -> bool:
    has_room = endpoint.capacity is None or endpoint.outstanding < endpoint.capacity
    is_as_good = endpoint.suspect is idlest.suspect
    return has_room and is_as_good and endpoint.outstanding <= idlest.outstanding + margin_of(endpoint.capacity)
