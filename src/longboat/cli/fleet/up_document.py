"""What ``longboat up --json`` prints: what was decided and done, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from longboat.cluster.preflight.surroundings import CheckedPlan
from longboat.cluster.protocol.messages import FleetReport
from longboat.core.plan import GangShape
from longboat.core.states import ReplicaState
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.forecast_document import planned_values
from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = ("Action", "up_values")

Action = Literal["started", "changed", "unchanged"]
"""Whether this ``up`` started the fleet, changed the one that runs, or found it as it is wanted."""

PLANNED = (
    "hardware",
    "link",
    "hop",
    "prompt_tokens",
    "output_tokens",
    "fits",
    "kv_blocks",
    "block_tokens",
    "rank_bytes",
)
"""Values that have the names of ``longboat status``."""


def up_values(
    asked: Fleet,
    plan: CheckedPlan,
    report: FleetReport | None,
    *,
    action: Action,
    changes: Sequence[str] = (),
    started_cluster: bool = False,
) -> dict[str, Any]:
    """Return the document. asked: as the file has it; changes: one line each; report: None: there is none."""
    replicas = report.replicas if report else ()
    gateways = report.gateways if report else ()
    return {
        "fleet": plan.fleet.name,
        "action": action,
        "changes": list(changes),
        "started_cluster": started_cluster,
        "models": {
            model.name: _model(model, asked.model_named(model.name), plan, replicas) for model in plan.fleet.models
        },
        "forced": [str(problem) for problem in plan.overridden],
        "addresses": [f"{gateway.url}/v1" for gateway in gateways if not gateway.problem],
        "gateways": [
            {name: getattr(gateway, name) for name in ("node_id", "hostname", "address", "url", "problem")}
            for gateway in gateways
        ],
        "auth": plan.fleet.gateway.auth or "none",
    }


def _model(
    model: ModelSpec, asked: ModelSpec | None, plan: CheckedPlan, replicas: Iterable[ReplicaState]
) -> dict[str, Any]:
    shape, forecast = plan.shapes[model.name], plan.decision.forecasts.get(model.name)
    return {
        "source": model.source,
        "engine": model.engine.model_dump(mode="json", include={"kind", "version", "environment"}),
        "auto": _left_open(asked) if asked else [],
        "replicas": model.num_replicas,
        "split": {
            "tensor": shape.tensor,
            "pipeline": shape.pipeline,
            "data": shape.data,
            "expert": shape.expert,
            "layers": list(forecast.fit.split.stages if forecast else shape.layers),
        },
        "nodes": shape.num_nodes,
        "labels": dict(model.placement.labels),
        "per_rank": asdict(shape.resources),
        "reasons": _reasons(shape, plan.decision.reasons.get(model.name, "")),
        "expected": _expected(forecast, model.source) if forecast else None,
        "warnings": list(plan.decision.notes.get(model.name, ())),
        "running": [_running(state) for state in replicas if state.model == model.name],
    }


def _left_open(asked: ModelSpec) -> list[str]:
    """Return what the file leaves to decide."""
    split = ["split"] if asked.split == "auto" else [f"split.{name}" for name in asked.parts.open_parts]
    return [*split, "replicas"] if asked.replicas == "auto" else split


def _reasons(shape: GangShape, decided: str) -> list[str]:
    """Return why these numbers, where they were decided; why these nodes."""
    return [reason for reason in (decided, shape.reason.removeprefix(f"{decided}; ")) if reason]


def _expected(forecast: Forecast, source: str) -> dict[str, Any]:
    """Return bytes of the fullest rank, cache of one replica, seconds of the mean request; None: it does not fit."""
    values, told, short = planned_values(forecast, source), forecast.outcome, forecast.fit.shortage
    return {
        **{name: values[name] for name in PLANNED},
        "users": forecast.demand.users,
        "users_per_replica": forecast.users,
        "kv_tokens": forecast.fit.num_kv_tokens,
        "ttft_s": asdict(told.ttft_s) if told else None,
        "itl_s": asdict(told.itl_s) if told else None,
        "tokens_per_s": asdict(told.total_tokens_per_s.map(lambda one: one * forecast.busy)) if told else None,
        "missed": forecast.missed,
        "shortage": short.what if short else "",
    }


def _running(state: ReplicaState) -> dict[str, Any]:
    """Return a replica: its engine's address, and the nodes that its ranks are on."""
    return {
        "replica": state.replica,
        "phase": state.phase.value,
        "url": state.url,
        "nodes": [{name: getattr(rank, name) for name in ("node_id", "hostname", "address")} for rank in state.ranks],
    }
