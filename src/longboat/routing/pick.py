"""Chooses an endpoint for a request: the least busy one that is ready and was not tried yet."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeVar

from longboat.routing.decisions import Decision, EndpointView, Pick, Shed, ShedReason, Wait

__all__ = ("least_busy", "pick")

E = TypeVar("E", bound=EndpointView)


def pick(endpoints: Sequence[E], *, turn: int, tried: Container[str] = (), overfull: bool = False) -> Decision[E]:
    """Choose the endpoint with the fewest outstanding requests; equals take turns.

    turn: a counter that the caller raises with every request; it breaks ties, so that equal input gives equal output
    tried: keys of endpoints that failed for this request
    overfull: take full endpoints too, for a request that already holds a slot but can only go here
    """
    best = least_busy(endpoints, turn=turn, tried=tried, overfull=overfull)
    if best is not None:
        return Pick(endpoint=best)
    return _pick_rest(endpoints, turn=turn, tried=tried, overfull=overfull)


def least_busy(endpoints: Sequence[E], *, turn: int, tried: Container[str] = (), overfull: bool = False) -> E | None:
    """Return what ``pick`` picks where an endpoint has a free slot and no fault; None elsewhere."""
    least = -1
    best: list[E] = []
    for e in endpoints:
        if e.ready and not e.suspect and (not tried or e.key not in tried):
            outstanding = e.outstanding
            if overfull or e.capacity is None or outstanding < e.capacity:
                if least < 0 or outstanding < least:
                    least = outstanding
                    best = [e]
                elif outstanding == least:
                    best.append(e)
    return best[turn % len(best)] if best else None


def _pick_rest(endpoints: Sequence[E], *, turn: int, tried: Container[str], overfull: bool) -> Decision[E]:
    """Decide where every endpoint is full, suspect or not ready."""
    usable = [e for e in endpoints if e.ready and e.key not in tried]
    if not usable:
        some_ready = any(e.ready for e in endpoints)
        return Shed(reason=ShedReason.ALL_TRIED if some_ready else ShedReason.NONE_READY, num_endpoints=len(endpoints))
    roomy = usable if overfull else [e for e in usable if e.capacity is None or e.outstanding < e.capacity]
    if not roomy:
        return Wait(num_full=len(usable))
    trusted = [e for e in roomy if not e.suspect] or roomy
    least = min(e.outstanding for e in trusted)
    equals = [e for e in trusted if e.outstanding == least]
    return Pick(endpoint=equals[turn % len(equals)])
