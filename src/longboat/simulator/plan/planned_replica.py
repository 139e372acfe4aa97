"""The engine that the planner foresees, as the twin simulates it and as the scaler counts with it."""

from __future__ import annotations

from dataclasses import asdict

from longboat.core.errors import UserInputError
from longboat.core.scaling import ReplicaSpeed
from longboat.planner.predict.constants import Calibration
from longboat.planner.search.forecast import Forecast
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.plan.fit_step_time import fit_step_time

__all__ = ("planned_engine", "speed_of")

_SEQUENCES = 256
"""What an engine takes into a step where its settings do not say."""


def planned_engine(
    forecast: Forecast, calibration: Calibration, kv_tokens: int | None = None
) -> tuple[StepTime, EngineLimits]:
    """Return the times and limits of one replica of a forecast that fits.

    kv_tokens: of its KV cache; None: what the planner foresees
    """
    settings = forecast.demand.settings
    foreseen = _blocks(forecast)
    blocks = foreseen if kv_tokens is None else max(1, kv_tokens // settings.block_tokens)
    if not blocks:
        raise UserInputError(
            f"{forecast.title}: the size of the KV cache is not known, so the twin has nothing to simulate",
            hint="give --kv-tokens",
        )
    deployment, parts = forecast.deployment, forecast.deployment.attention_data
    engine = deployment.engine
    sequences = engine.of_part(settings.sequences or _SEQUENCES, parts) * parts
    fitted_tokens = (foreseen or blocks) * settings.block_tokens
    time = fit_step_time(deployment, calibration, max_sequences=sequences, kv_tokens=fitted_tokens)
    limits = EngineLimits(
        kv_blocks=blocks,
        block_tokens=settings.block_tokens,
        max_num_seqs=sequences,
        max_num_batched_tokens=engine.of_part(settings.batched_tokens or engine.chunk_tokens, parts),
        data_parts=parts,
    )
    return time, limits


def _blocks(forecast: Forecast) -> int:
    """Return the cache blocks of all data parts together; where layers of several kinds share blocks, about as many."""
    of_part = forecast.kv_blocks
    if of_part is None:
        return forecast.fit.num_kv_tokens // forecast.demand.settings.block_tokens
    return of_part * forecast.fit.split.data


def speed_of(time: StepTime, limits: EngineLimits) -> ReplicaSpeed:
    """Return the speed of such a replica in the scaler's words."""
    terms = asdict(time)
    del terms["wake_s"]  # a replica that counts does not rest
    return ReplicaSpeed(
        **terms,  # they have the same names
        max_sequences=limits.max_num_seqs,
        kv_tokens=limits.kv_blocks * limits.block_tokens,
        step_tokens=limits.max_num_batched_tokens,
    )
