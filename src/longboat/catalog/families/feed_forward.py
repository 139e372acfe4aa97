"""Dense feed-forward layers and mixtures of experts."""

from __future__ import annotations

from longboat.catalog.families.parts import FeedForward, linear, vector
from longboat.catalog.shape.weight import Part, Weight

__all__ = ("dense", "experts", "projections")


def projections(
    name: str, part: Part, hidden: int, width: int, *, gated: bool = True, count: int = 1, bias: bool = False
) -> tuple[Weight, ...]:
    """Return up (and gate) and down projections; ``count`` copies of each for experts."""
    ups = ("gate_proj", "up_proj") if gated else ("up_proj",)
    up = tuple(
        weight for up in ups for weight in linear(f"{name}.{up}", part, width, hidden, "out", count=count, bias=bias)
    )
    return up + linear(f"{name}.down_proj", part, hidden, width, "in", count=count, bias=bias)


def dense(hidden: int, width: int, *, name: str = "mlp", gated: bool = True, bias: bool = False) -> FeedForward:
    """Build one feed-forward network for all tokens."""
    return FeedForward(weights=projections(name, "mlp", hidden, width, gated=gated, bias=bias))


def experts(
    hidden: int,
    width: int,
    num_experts: int,
    per_token: int,
    *,
    shared_width: int = 0,
    name: str = "mlp",
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
    shared_gate: bool = False,
    latent: int = 0,
) -> FeedForward:
    """Build experts of inner ``width`` of which a router chooses ``per_token``, and shared ones that all tokens pass.

    shared_width: inner width of all shared experts together; shared_gate: one output gate for them
    latent: the routed experts work on vectors of this width, projected down and up once; 0: on the hidden state
    """
    weights = [
        *linear(f"{name}.gate", "router", num_experts, hidden),
        *vector(f"{name}.gate.bias", num_experts if router_bias else 0, "router"),
        *projections(f"{name}.experts", "experts", latent or hidden, width, gated=gated, count=num_experts, bias=bias),
    ]
    if latent:
        weights += linear(f"{name}.fc1_latent_proj", "mlp", latent, hidden)
        weights += linear(f"{name}.fc2_latent_proj", "mlp", hidden, latent)
    if shared_width:
        weights += projections(f"{name}.shared_experts", "shared_experts", hidden, shared_width, gated=gated)
    if shared_gate:
        weights += linear(f"{name}.shared_expert_gate", "router", 1, hidden)
    return FeedForward(weights=tuple(weights), num_experts=num_experts, experts_per_token=per_token)
