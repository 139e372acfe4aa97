"""Builders of nodes, models and facts for the planner's tests."""

from __future__ import annotations

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.core.topology import Node
from longboat.core.wanted import WantedModel
from longboat.engines.registry import splits_of
from longboat.planner.fleet.check_fleet import FleetCheck, check_fleet
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.spec.files.load import fleet_from, load_fleet
from longboat.spec.types.fleet import Fleet
from longboat.spec.wanted import wanted_model, wanted_models

TINY = ModelConfig(
    num_layers=4, num_heads=8, num_kv_heads=4, vocab_size=4096, intermediate_size=512, max_position_tokens=2048
)


def node(number: int, *, cpus: float = 2, gpus: float = 0, memory_bytes: int = 0, **labels: str) -> Node:
    return Node(
        node_id=f"n{number}",
        address=f"10.0.0.{number}",
        hostname=f"host{number}",
        num_cpus=cpus,
        num_gpus=gpus,
        memory_bytes=memory_bytes,
        labels=labels,
    )


def nodes(count: int, *, cpus: float = 2, gpus: float = 0, memory_bytes: int = 0) -> tuple[Node, ...]:
    return tuple(node(number, cpus=cpus, gpus=gpus, memory_bytes=memory_bytes) for number in range(1, count + 1))


def model(**fields: object) -> WantedModel:
    return wanted_model(
        fleet_from({"models": [{"source": "builtin:tiny"} | fields]}, "test", folder="/").models[0], splits_of
    )


def fleet(text: str) -> Fleet:
    return load_fleet(text, "test", folder="/")


def checked(told: Fleet, inputs: PlannerInputs) -> FleetCheck:
    """Check a fleet as ``longboat up`` does."""
    return check_fleet(wanted_models(told, splits_of), inputs, gateway_port=told.gateway.port)
