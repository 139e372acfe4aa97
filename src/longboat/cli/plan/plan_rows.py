"""The plan in words: one row for each model, for the table that ``longboat up`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longboat.core.plan import GangShape
from longboat.planner.fleet.resources import describe, shape_amount
from longboat.spec.types.fleet import EngineSpec, Fleet, ModelSpec
from longboat.spec.types.replicas import ReplicasSpec

__all__ = ("PlanRow", "explain")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One model of the plan."""

    model: str
    source: str
    replicas: str
    engine: str
    split: str
    nodes: str  # of one replica
    per_node: str  # resources of one replica on each node
    reason: str


def explain(fleet: Fleet, shapes: Mapping[str, GangShape]) -> tuple[PlanRow, ...]:
    """Return rows in the order of the file; a model without a shape has no row."""
    return tuple(_row(model, shapes[model.name]) for model in fleet.models if model.name in shapes)


def _row(model: ModelSpec, shape: GangShape) -> PlanRow:
    return PlanRow(
        model=model.name,
        source=model.source,
        replicas=_replicas(model),
        engine=_engine(model.engine),
        split=_split(shape),
        nodes=f"up to {shape.num_nodes}" if shape.shares_nodes else str(shape.num_nodes),
        per_node=describe(shape_amount(shape)),
        reason=shape.reason,
    )


def _replicas(model: ModelSpec) -> str:
    ruled = model.replicas
    return f"{ruled.first} ({ruled.min} to {ruled.max})" if isinstance(ruled, ReplicasSpec) else str(ruled)


def _engine(engine: EngineSpec) -> str:
    detail = engine.version or engine.environment
    return f"{engine.kind} {detail}" if detail else engine.kind


def _split(shape: GangShape) -> str:
    parts = [f"tensor {shape.tensor}"] if shape.tensor > 1 else []
    parts += [f"pipeline {shape.pipeline}"] if shape.pipeline > 1 else []
    parts += [f"data {shape.data}"] if shape.data > 1 else []
    parts += ["experts divided"] if shape.expert else []
    return ", ".join(parts) or "none"
