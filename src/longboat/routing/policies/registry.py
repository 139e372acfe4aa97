"""The policies by name."""

from __future__ import annotations

from longboat.routing.policies.contract import RoutingPolicy
from longboat.routing.policies.plain import LeastRequests, RoundRobin

__all__ = ("policy_of",)


def policy_of(name: str) -> RoutingPolicy:
    """Return a policy by its name."""
    return RoundRobin() if name == "round_robin" else LeastRequests()
