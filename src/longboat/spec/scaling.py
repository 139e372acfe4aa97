"""From the fleet file's ``replicas:`` to what the scaler reads."""

from __future__ import annotations

from longboat.core.scaling import (
    FixedTarget,
    Objective,
    OngoingTarget,
    ScaledModel,
    ScalingTarget,
    ScheduleEntry,
    SloTarget,
)
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.replicas import ReplicasSpec, ScheduleSpec, duration_s

__all__ = ("scaled_model", "scaled_models")

_IDLE_S = 600.0
_UPSCALE_S = 30.0
_LOOK_BACK_S = 30.0
_DOWNSCALE_S = 600.0


def scaled_models(fleet: Fleet) -> tuple[ScaledModel, ...]:
    """Return the fleet's models in the order of the file, with those whose count is fixed. All must be decided."""
    return tuple(scaled_model(model) for model in fleet.models)


def scaled_model(spec: ModelSpec) -> ScaledModel:
    """Return ``spec`` in the scaler's words, without ``takes``, ``speed`` and cold start: the hardware decides those.

    Raises ValueError where the number of replicas is not decided.
    """
    ruled = spec.replicas
    if not isinstance(ruled, ReplicasSpec):
        count = spec.num_replicas
        return ScaledModel(
            name=spec.name,
            target=FixedTarget(),
            min_replicas=count,
            max_replicas=count,
            initial_replicas=count,
        )
    return ScaledModel(
        name=spec.name,
        target=_target(ruled),
        min_replicas=ruled.min,
        max_replicas=ruled.max,
        initial_replicas=ruled.first,
        schedule=tuple(_entry(entry) for entry in ruled.schedule),
        priority=ruled.priority,
        weight=ruled.weight,
    )


def _target(ruled: ReplicasSpec) -> ScalingTarget:
    if ruled.slo is not None:
        return SloTarget(
            objectives=tuple(Objective(**entry.model_dump()) for entry in ruled.slo),
            upscale_delay_s=ruled.upscale_delay_s or 0.0,
            downscale_delay_s=ruled.downscale_delay_s,
            downscale_to_zero_delay_s=_given(ruled.downscale_to_zero_delay_s, _IDLE_S),
        )
    if ruled.target_ongoing_requests is not None:
        return OngoingTarget(
            target_ongoing_requests=ruled.target_ongoing_requests,
            look_back_period_s=_given(ruled.look_back_period_s, _LOOK_BACK_S),
            upscale_delay_s=_given(ruled.upscale_delay_s, _UPSCALE_S),
            downscale_delay_s=_given(ruled.downscale_delay_s, _DOWNSCALE_S),
            downscale_to_zero_delay_s=_given(ruled.downscale_to_zero_delay_s, _IDLE_S),
        )
    return FixedTarget()


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _entry(entry: ScheduleSpec) -> ScheduleEntry:
    return ScheduleEntry(
        cron=entry.cron,
        for_s=None if entry.duration is None else duration_s(entry.duration),
        until=entry.until,
        timezone=entry.timezone,
        min_replicas=entry.min,
        replicas=entry.replicas,
    )
