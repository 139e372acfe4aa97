"""One model's time model in use: the planner's terms, corrected by what is measured, over the lengths that are seen."""

from __future__ import annotations

import math
from collections import deque

from longboat.core.scaling import ModelObservation, Objective, ReplicaSpeed, ScaledModel, SloTarget
from longboat.scaling.correction import Correction
from longboat.scaling.queueing import Mix, heavier, late_share, mix_of, replicas_for, slower, step_s

__all__ = ("TimeModel",)

_SAMPLE = 2000
"""Requests whose lengths stand for those that come."""
_ENOUGH, _ENOUGH_S = 50, 30.0
"""Lengths, or seconds since the first of them, until they stand for all: short requests end first."""
_MIX_S = 10.0
"""Seconds between two looks at the lengths."""
_NEWEST_S = 10.0
"""Seconds at least whose prompts show that requests ask for more now."""
_MOST_AT_ONCE = 32
"""Lengths at most that one observation gives."""
_DEFAULT_SPEED = ReplicaSpeed(base_s=0.02, prompt_token_s=1e-4, sequence_s=5e-4, kv_token_s=1e-7)


def _spread(seen: ModelObservation) -> list[tuple[int, int]]:
    """Return a length for each request that ended, spread exponentially around the means: single ones are not known.

    As many as ended: more would make chance look like a change of the load.
    """
    count = min(seen.ended, _MOST_AT_ONCE) if seen.prompt_tokens else 0
    factors = [-math.log(1.0 - (at + 0.5) / count) for at in range(count)]
    whole = sum(factors) / count * seen.ended if count else 0.0
    prompts, outputs = seen.prompt_tokens - seen.cached_tokens, seen.output_tokens
    return [(max(1, round(one * prompts / whole)), max(1, round(one * outputs / whole))) for one in factors]


class _Lengths:
    """Lengths of the newest requests."""

    def __init__(self) -> None:
        self.known: deque[tuple[int, int]] = deque(maxlen=_SAMPLE)  # of prompts without their cached part, and outputs
        self.first_s = math.inf  # when a request ended first
        self._cached: deque[float] = deque(maxlen=_SAMPLE)  # tokens of the cached parts: means of single seconds

    @property
    def cached_tokens(self) -> float:
        """Mean tokens of the cached parts of prompts."""
        return sum(self._cached) / len(self._cached)

    def add(self, now_s: float, seen: ModelObservation) -> None:
        """Note the requests that ended."""
        new = seen.lengths or _spread(seen)
        if new:
            self.known.extend(new)
            self._cached.extend([seen.cached_tokens / max(1, seen.ended)] * len(new))
            self.first_s = min(self.first_s, now_s)


class TimeModel:
    """What replicas of one model do in time, as it is known now."""

    def __init__(self, model: ScaledModel, target: SloTarget) -> None:
        self._model, self._target = model, target
        self._foreseen = self._speed = model.speed or _DEFAULT_SPEED
        self._correction = Correction()
        self._lengths = _Lengths()
        self._mix: Mix | None = None
        self._mixed_s = -math.inf
        self.heavier = 1.0  # newest prompts, over those of the mix
        self._counted: dict[float, int] = {}  # needs by rate, of the present mix
        self._newest = (-1.0, 1)  # the rate that was looked at last, and its need

    @property
    def knows_lengths(self) -> bool:
        """Whether enough requests ended already."""
        return len(self._lengths.known) >= _ENOUGH or self._mixed_s - self._lengths.first_s >= _ENOUGH_S

    @property
    def factor(self) -> float:
        """Seconds that replicas take, over those that were foreseen."""
        return self._correction.factor

    def observe(self, now_s: float, seen: ModelObservation, rate: float) -> None:
        """Note lengths, and compare the measured times between tokens with those of the present batches."""
        self._lengths.add(now_s, seen)
        changed = self._learn(seen, rate)
        if self._lengths.known and (changed or now_s - self._mixed_s >= _MIX_S):
            lengths, cached_tokens = tuple(self._lengths.known), self._lengths.cached_tokens
            self._mix, self._mixed_s = mix_of(lengths, self._speed, cached_tokens=cached_tokens), now_s
            self.heavier = heavier(lengths, self._mix, self._speed, least=_NEWEST_S * rate)
            self._counted.clear()

    def needed(self, rate: float) -> int:
        """Return the replicas that keep all objectives at a rate of requests; lengths must be known."""
        if self._mix is None:
            return self._newest[1]
        if rate not in self._counted:
            self._counted[rate] = self._count(rate, self._mix)
        self._newest = (rate, self._counted[rate])
        return self._newest[1]

    def _count(self, rate: float, mix: Mix) -> int:
        near = self._newest[1]
        least, most = max(1, self._model.min_replicas), self._model.max_replicas
        return max(
            replicas_for(rate, mix, self._speed, one, least=least, most=most, near=near)
            for one in self._target.objectives
        )

    def hopeless(self, objective: Objective) -> float:
        """Return the part of the requests that miss an objective with twice the replicas that were needed last."""
        rate, needed = self._newest
        if self._mix is None or rate < 0.0:
            return 0.0
        return late_share(rate, 2 * needed, self._mix, self._speed, objective)

    def _learn(self, seen: ModelObservation, rate: float) -> bool:
        # tokens may pass where no response ends
        measured = [
            (max(1, one.ended), one.itl_ms.p50 if one.itl_mean_ms is None else one.itl_mean_ms)
            for one in seen.latencies
            if one.itl_ms is not None
        ]
        if self._mix is None or seen.ready == 0 or not measured or seen.starting:
            return False
        measured_s = sum(count * value for count, value in measured) / sum(count for count, _ in measured) / 1e3
        foreseen_s = step_s(rate / seen.ready, seen.running / seen.ready, self._mix, self._foreseen)
        if not self._correction.learn(measured_s, foreseen_s):
            return False
        self._speed = slower(self._foreseen, self._correction.factor)
        return True
