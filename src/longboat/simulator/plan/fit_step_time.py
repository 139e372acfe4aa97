"""Fits the few terms of a step's time to the planner's time model of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longboat.planner.predict.calibration.linear import solve_positive
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment
from longboat.planner.predict.load import Load
from longboat.planner.predict.serving import predict
from longboat.simulator.engine.step_time import StepTime

__all__ = ("Row", "fit_step_time", "fitted")

_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (64, 1024, 8192, 32768)
_PROMPTS = (256, 512, 1024, 2048, 4096, 8192)
_RIDGE = 1e-9  # keeps the equations of terms that are always 0 solvable

Row = tuple[Sequence[float], float, float]  # quantities by term, their seconds, and seconds that count as the error 1


def fit_step_time(deployment: Deployment, calibration: Calibration, *, max_sequences: int, kv_tokens: int) -> StepTime:
    """Return the step's terms of a replica.

    max_sequences, kv_tokens: what it may have at once; batches beyond are not fitted
    """
    base_s, sequence_s, kv_token_s = fitted(list(_decode_rows(deployment, calibration, max_sequences, kv_tokens)))
    prompt_base_s, prompt_token_s, prompt_pair_s = fitted(list(_prompt_rows(deployment, calibration, base_s)))
    return StepTime(
        base_s=max(base_s, 1e-6),
        prompt_base_s=prompt_base_s,
        prompt_token_s=max(prompt_token_s, 1e-9),
        prompt_pair_s=prompt_pair_s,
        sequence_s=sequence_s,
        kv_token_s=kv_token_s,
    )


def fitted(rows: Sequence[Row]) -> list[float]:
    """Return the coefficients, none of them negative, with the least relative errors."""
    kept = list(range(len(rows[0][0])))
    while True:
        found = _least_squares(rows, kept)
        worst = min(range(len(kept)), key=found.__getitem__)
        if found[worst] >= 0.0 or len(kept) == 1:
            every = [0.0] * len(rows[0][0])
            for at, value in zip(kept, found, strict=True):
                every[at] = max(0.0, value)
            return every
        del kept[worst]


def _least_squares(rows: Sequence[Row], kept: Sequence[int]) -> list[float]:
    """Solve the normal equations, with the columns scaled to about 1."""
    scales = [max(row[at] / whole_s for row, _, whole_s in rows) or 1.0 for at in kept]
    scaled = [
        ([row[at] / whole_s / scale for at, scale in zip(kept, scales, strict=True)], seconds / whole_s)
        for row, seconds, whole_s in rows
    ]
    size = len(kept)
    matrix = [
        [sum(row[i] * row[j] for row, _ in scaled) + (_RIDGE * len(rows) if i == j else 0.0) for j in range(size)]
        for i in range(size)
    ]
    right = [sum(row[i] * target for row, target in scaled) for i in range(size)]
    return [value / scale for value, scale in zip(solve_positive(matrix, right), scales, strict=True)]


def _decode_rows(deployment: Deployment, calibration: Calibration, max_sequences: int, kv_tokens: int) -> Iterator[Row]:
    for sequences in _SEQUENCES:
        for context in _CONTEXTS:
            held = sequences * context
            if sequences <= max_sequences and (held <= kv_tokens or sequences == 1):
                load = Load(concurrency=sequences, prompt_tokens=context, output_tokens=1.0, spread=0.0)
                seconds = predict(deployment, load, calibration).step_s.value
                yield (1.0, sequences, held), seconds, seconds


def _prompt_rows(deployment: Deployment, calibration: Calibration, base_s: float) -> Iterator[Row]:
    """Yield prompts of one pass, without what every step takes."""
    for tokens in _PROMPTS:
        if tokens <= deployment.engine.chunk_tokens:
            load = Load(concurrency=1.0, prompt_tokens=tokens, output_tokens=1.0, spread=0.0)
            seconds = predict(deployment, load, calibration).prefill_s.value
            yield (1.0, float(tokens), tokens * tokens / 2.0), seconds - base_s, seconds
