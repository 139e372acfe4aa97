"""A plan as plain values, for ``--json``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_notes import notes_of
from longboat.cli.shared.error_text import error_values
from longboat.core.errors import LongboatError
from longboat.planner.machines.pools import system_notes
from longboat.planner.memory.fit import RankBytes
from longboat.planner.search.demand import Demand
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.ranking import Plan
from longboat.planner.search.reasons import settings_of
from longboat.planner.search.search import SearchResult

if TYPE_CHECKING:
    from longboat.planner.cost import Cost

__all__ = ("cost_values", "demand_values", "found_values", "model_values", "plan_values", "print_refused")


def model_values(shape: ModelShape, kv_bits: int) -> dict[str, Any]:
    """Return what the model is, for the top of a document.

    kv_bytes_per_token: what each further token of a sequence longer than every window adds to the caches of all layers
    window_kv_bytes_per_token: what a token adds besides while the sequence is within the windows
    """
    numbers = {
        "parameters": shape.num_loaded_params,
        "active_parameters": shape.num_active_params,
        "kv_bytes_per_token": round(shape.kv_bytes_per_token(kv_bits / 8)),
        "window_kv_bytes_per_token": round(shape.window_bytes_per_token(kv_bits / 8)),
        "state_bytes_per_sequence": shape.state_bytes,
    }
    told = {"estimate": list(shape.estimate), "notes": list(notes_of(shape, kv_bits))}
    return {"model": shape.name, "architecture": shape.architecture, **numbers, **told}


def print_refused(error: LongboatError, shape: ModelShape | None, kv_bits: int) -> None:
    """Print the one document of a model that is not planned: the numbers that are known, and the reason."""
    unread: dict[str, Any] = {"model": None, "parameters": None, "kv_bytes_per_token": None, "estimate": []}
    told = model_values(shape, kv_bits) if shape else unread
    print(json.dumps({**told, "fits": False, "error": error_values(error), "plans": []}, indent=2))
    error.after_document = True


def found_values(found: SearchResult) -> dict[str, Any]:
    """Return machines, demand, plans (best first) and what was refused."""
    cluster = found.cluster
    return {
        "cluster": {
            "text": cluster.title,
            "nodes": cluster.num_nodes,
            "accelerators": cluster.num_cards,
            "notes": list(system_notes(cluster)),
        },
        "demand": demand_values(found.demand),
        "plans": [plan_values(plan) for plan in found.plans],
        "rejected": [{"what": one.what, "why": one.why, "hint": one.hint} for one in found.rejected],
    }


def demand_values(demand: Demand) -> dict[str, Any]:
    """Return the load and the limits."""
    values = asdict(replace(demand, draft=None)) | {"draft": demand.draft.name if demand.draft else None}
    values |= {"context_tokens": demand.context, "kv_bits": demand.settings.kv_bits}
    return {name: value for name, value in values.items() if name != "settings"}


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return one plan; per replica and total capacity apart."""
    return {
        "title": plan.title,
        "total": {
            "replicas": plan.num_replicas,
            "tokens_per_s": plan.tokens_per_s,
            "ttft_s": plan.ttft_s,
            "itl_s": plan.itl_s,
            "max_sequences": plan.max_sequences,
        },
        "missed": plan.missed,
        "changed_format": plan.changed_format,
        "idle": list(plan.idle),
        "reasons": list(plan.reasons),
        "estimate": list(plan.estimate),
        "groups": [_group(group) for group in plan.groups],
    }


def _group(group: Forecast) -> dict[str, Any]:
    layout, fit, prediction = group.layout, group.fit, group.prediction
    return {
        "replicas": layout.replicas,
        "engine": group.engine,
        "quantization": group.shape.quantization or group.shape.dtype,
        "split": {
            "tensor": layout.tensor,
            "pipeline": len(layout.places),
            "expert_parallel": layout.expert_parallel,
            "attention_data": fit.split.data,
            "layers": list(fit.split.stages),
            "over_network": layout.over_network,
        },
        "settings": list(settings_of(group)),
        "per_replica": {
            "accelerators": layout.num_ranks,
            "budget_bytes": sum(rank.budget_bytes for rank in fit.ranks),
            "weight_bytes": sum(rank.weight_bytes for rank in fit.ranks),
            "kv_tokens": fit.num_kv_tokens,
            "max_context_tokens": fit.request_tokens,
            "max_sequences": fit.max_sequences,
            "users": group.users,
            "ttft_s": asdict(prediction.ttft_s),
            "itl_s": asdict(prediction.itl_s),
            "request_tokens_per_s": asdict(prediction.request_tokens_per_s),
            "total_tokens_per_s": asdict(prediction.total_tokens_per_s),
        },
        "ranks": [_rank(rank) for rank in fit.ranks],
    }


def _rank(rank: RankBytes) -> dict[str, Any]:
    return {
        "stage": rank.stage,
        "tensor_rank": rank.tensor_rank,
        "accelerator": rank.card.name,
        "memory_bytes": rank.card.memory_bytes,
        "budget_bytes": rank.budget_bytes,
        "weights": dict(rank.weights),
        "overhead": dict(rank.overhead),
        "cache_bytes": rank.cache_bytes,
        "used_bytes": rank.used_bytes,
    }


def cost_values(cost: Cost) -> dict[str, Any]:
    """Return figures of ``longboat cost``."""
    derived = ("usd_per_month", "usd_per_million", "usd_per_million_output", "joules_per_token", "rent_usd_per_million")
    return asdict(cost) | {name: getattr(cost, name) for name in derived}
