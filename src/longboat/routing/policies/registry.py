"""Policies by name, as ``gateway.routing.policy`` in the fleet file and ``longboat simulate --policies`` have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from longboat.core.errors import UserInputError
from longboat.core.policy import ROUTING_POLICIES, nearest_routing_policy
from longboat.routing.policies.aibrix import Aibrix
from longboat.routing.policies.consistent_hash import ConsistentHash
from longboat.routing.policies.contract import RoutingPolicy
from longboat.routing.policies.cost import Cost
from longboat.routing.policies.dynamo import Dynamo
from longboat.routing.policies.llm_d import LlmD
from longboat.routing.policies.plain import LeastRequests, RoundRobin
from longboat.routing.policies.power_of_two import PowerOfTwo
from longboat.routing.policies.prefill_time import PrefillSeed
from longboat.routing.policies.smg import Smg

__all__ = ("DEFAULT_POLICY", "POLICIES", "policy_of")

_PEERS: Final[Mapping[str, Callable[[], RoutingPolicy]]] = {
    "round_robin": RoundRobin,
    "least_requests": LeastRequests,
    "power_of_two": PowerOfTwo,
    "consistent_hash": ConsistentHash,
    "smg": Smg,
    "dynamo": Dynamo,
    "llm_d": LlmD,
    "aibrix": Aibrix,
}
POLICIES: Final = ROUTING_POLICIES
DEFAULT_POLICY: Final = POLICIES[0]


def policy_of(name: str, seed: PrefillSeed | None = None) -> RoutingPolicy:
    """Make a policy. Each model and each gateway process has one of its own: policies keep what they learn.

    seed: what the planner predicts for the model's replicas; only ``cost`` uses it
    """
    if name == DEFAULT_POLICY:
        return Cost(seed)
    make = _PEERS.get(name)
    if make is None:
        near = nearest_routing_policy(name)
        hint = f"Did you mean {near}? " if near else ""
        raise UserInputError(f"{name!r} is not a routing policy", hint=f"{hint}Policies: {', '.join(POLICIES)}.")
    return make()
