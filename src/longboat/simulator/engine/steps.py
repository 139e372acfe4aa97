"""The steps of one engine that are under way: when they began, and when they end."""

from __future__ import annotations

import math
from typing import Final

from longboat.simulator.engine.batch import Batch
from longboat.simulator.engine.jitter import Jitter
from longboat.simulator.engine.step_time import StepTime

__all__ = ("Steps",)

_IDLE_S: Final = -1.0
_EARLY: Final = 1e-9  # part of a step: an arrival that is so shortly after a step's end counts as before it


class Steps:
    """One step that computes prompts, or a stretch of steps that only decode, whose length has a closed form."""

    __slots__ = ("_batch", "_jitter", "_pace", "_time", "began_s", "count", "due_s", "only_decode", "wakes")

    def __init__(self, time: StepTime, batch: Batch, jitter: Jitter | None) -> None:
        self.due_s = _IDLE_S  # when they end; below 0: none is under way
        self.began_s = 0.0
        self.count = 0  # steps until ``due_s``
        self.only_decode = False
        self.wakes = False  # whether the next step is the first of a cold engine
        self._time = time
        self._batch = batch
        self._jitter = jitter  # of steps, which are made one by one then; None: steps take what their terms say
        self._pace = 1.0  # their seconds, in those of the time model

    @property
    def are_single(self) -> bool:
        """Return whether each step is made by itself, because the next one may take longer."""
        return self._jitter is not None

    def begin_prompts(self, now_s: float, pace: float) -> None:
        """Begin the step that the batch has planned, which computes prompts beside sequences that decode."""
        decodes = self._batch.decodes
        tokens, pairs = 0, 0.0
        for job in self._batch.chunks:
            tokens += job.chunk
            pairs += job.chunk * (job.computed + job.chunk / 2.0)
        seconds = self._time.mixed_s(tokens, pairs, decodes.num_jobs, decodes.kv_tokens)
        if self.wakes:
            seconds += self._time.wake_s
            self.wakes = False
        self._begin(now_s, 1, pace, only_decode=False)
        self.due_s = now_s + self._with_jitter(seconds * pace)

    def begin_decodes(self, now_s: float, count: int, pace: float) -> None:
        """Begin steps in which all that run decode."""
        self._begin(now_s, count, pace, only_decode=True)
        self.due_s = now_s + self._with_jitter(self._decode_s(count))

    def end(self) -> None:
        """Note that none is under way."""
        self.due_s = _IDLE_S

    def cut(self, now_s: float) -> bool:
        """End a stretch of decoding with the step that is under way. Return whether it ends earlier for that."""
        if self.due_s < 0.0 or not self.only_decode:
            return False
        count = max(1, math.ceil(self._within(now_s) - _EARLY))
        if count >= self.count:
            return False
        self.count = count
        self.due_s = max(now_s, self.began_s + self._decode_s(count))
        return True

    def decodes_done(self, now_s: float) -> int:
        """Return the steps of a stretch of decoding that have ended."""
        if self.due_s < 0.0 or not self.only_decode:
            return 0
        return min(int(self._within(now_s) + _EARLY), self.count)

    def gaps(self, now_s: float) -> tuple[float, float]:
        """Return the seconds of the first step, and by how much each further one is longer, when all of them end."""
        if self.count == 1:
            return now_s - self.began_s, 0.0
        return self._decode_s(1), self._time.kv_token_s * self._batch.decodes.num_jobs * self._pace

    def _begin(self, now_s: float, count: int, pace: float, *, only_decode: bool) -> None:
        self.began_s, self.count, self._pace, self.only_decode = now_s, count, pace, only_decode

    def _with_jitter(self, seconds: float) -> float:
        return seconds if self._jitter is None else max(0.0, seconds + self._jitter.draw())

    def _decode_s(self, steps: int) -> float:
        decodes = self._batch.decodes
        return self._time.decode_s(steps, decodes.num_jobs, decodes.kv_tokens) * self._pace

    def _within(self, now_s: float) -> float:
        decodes = self._batch.decodes
        return self._time.steps_within((now_s - self.began_s) / self._pace, decodes.num_jobs, decodes.kv_tokens)
