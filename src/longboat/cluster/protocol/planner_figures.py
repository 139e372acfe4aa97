"""Predicted beside measured figures of each model, for consoles and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, log10
from typing import Any

from longboat.core.states import Phase, ReplicaState
from longboat.planner.search.measured import Pair, pair_of

__all__ = ("pairs_of", "with_predictions")

_FIELDS = (
    "itl_s", "predicted_itl_s", "ttft_s", "predicted_ttft_s", "rank_bytes", "predicted_rank_bytes", "kv_blocks",
    "predicted_kv_blocks",
)  # fmt: skip
_DIGITS = 2


def pairs_of(planned: Mapping[str, Any], replicas: Iterable[ReplicaState]) -> dict[str, Pair]:
    """Return a pair for each model with a ready replica. planned: model → its forecast"""
    ready = [state for state in replicas if state.phase is Phase.READY]
    actuals = {
        model: [state.actual for state in ready if state.model == model and state.actual is not None]
        for model in dict.fromkeys(state.model for state in ready)
    }
    return {model: pair_of(planned.get(model, {}), told) for model, told in actuals.items()}


def with_predictions(
    figures: Mapping[str, Mapping[str, float]], planned: Mapping[str, Any], replicas: Iterable[ReplicaState]
) -> dict[str, dict[str, float]]:
    """Return the figures of models with their pairs added, in two digits: each change is sent to all gateways."""
    joined = {model: dict(row) for model, row in figures.items()}
    for model, pair in pairs_of(planned, replicas).items():
        values = {name: getattr(pair, name) for name in _FIELDS}
        known = {name: _rounded(float(value)) for name, value in values.items() if value}
        joined[model] = {**joined.get(model, {}), **known}
    return joined


def _rounded(value: float) -> float:
    return round(value, _DIGITS - 1 - floor(log10(abs(value))))
