"""Divides scarce accelerators among the models that want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from longboat.core.scaling import ScaledModel

__all__ = ("Claim", "shared")

_TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one model would have if there were room for all."""

    model: ScaledModel
    least: int  # that it has before any other model gets more than its least
    needed: int  # that its load needs now
    wanted: int  # with those that it keeps for a while, or because they pay for their cold start


def shared(claims: Sequence[Claim], room: Mapping[str, float]) -> dict[str, int]:
    """Return the replicas that each model gets.

    room: accelerators of the whole fleet by their kind; a kind that is not named is not scarce

    First each model gets its least, then what its load needs, then what it wants beyond that. In each of these rounds
    models with the lower priority number go first, and models of one number get replicas in proportion to weight. So an
    idle replica goes to another model that needs it, and never below its own model's least.
    """
    left = dict(room)
    got = {claim.model.name: 0 for claim in claims}
    for limit in (_least, _needed, _wanted):
        for priority in sorted({claim.model.priority for claim in claims}):
            _grant([claim for claim in claims if claim.model.priority == priority], limit, got, left)
    return got


def _least(claim: Claim) -> int:
    return min(claim.least, claim.wanted)


def _needed(claim: Claim) -> int:
    return min(max(claim.least, claim.needed), claim.wanted)


def _wanted(claim: Claim) -> int:
    return claim.wanted


def _grant(claims: list[Claim], limit: Callable[[Claim], int], got: dict[str, int], left: dict[str, float]) -> None:
    """Give one replica after the other to the model that has the least for its weight."""
    open_claims = [claim for claim in claims if got[claim.model.name] < limit(claim)]
    while open_claims:
        claim = min(open_claims, key=lambda one: (got[one.model.name] + 1) / one.model.weight)
        name, takes = claim.model.name, claim.model.takes
        if any(kind in left and left[kind] + _TINY < count for kind, count in takes.items()):
            open_claims.remove(claim)
            continue
        for kind, count in takes.items():
            if kind in left:
                left[kind] -= count
        got[name] += 1
        if got[name] >= limit(claim):
            open_claims.remove(claim)
