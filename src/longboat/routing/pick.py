"""Chooses one endpoint for a request: the least busy that is ready and was not tried yet."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeVar

from longboat.routing.decisions import EndpointView

__all__ = ("pick",)

E = TypeVar("E", bound=EndpointView)


def pick(endpoints: Sequence[E], *, turn: int, tried: Container[str] = (), overfull: bool = False) -> E | None:
    """Return the endpoint with the fewest outstanding requests, or None where none has room; equals take turns.

    turn: a counter that the caller raises with every request: the tie-break, so that equal input gives equal output
    tried: keys of endpoints that failed for this request
    overfull: a full endpoint is taken too: for a request that has room elsewhere, but can only go here
    """
    best = _least_busy(endpoints, tried, overfull, suspect=False) or _least_busy(
        endpoints, tried, overfull, suspect=True
    )
    return best[turn % len(best)] if best else None


def _least_busy(endpoints: Sequence[E], tried: Container[str], overfull: bool, *, suspect: bool) -> list[E]:
    least = -1
    best: list[E] = []
    for e in endpoints:
        if e.ready and e.suspect is suspect and (not tried or e.key not in tried):
            outstanding = e.outstanding
            if overfull or e.capacity is None or outstanding < e.capacity:
                if least < 0 or outstanding < least:
                    least = outstanding
                    best = [e]
                elif outstanding == least:
                    best.append(e)
    return best
