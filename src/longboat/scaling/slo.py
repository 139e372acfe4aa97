"""As many replicas as keep the objectives: queueing over what is observed, a forecast, and patience before fewer."""

from __future__ import annotations

import math
from collections import deque
from functools import partial

from longboat.core.scaling import ModelObservation, ScaledModel, SloTarget
from longboat.scaling.correction import Rooms
from longboat.scaling.forecast import Forecaster
from longboat.scaling.rule import Want
from longboat.scaling.time_model import TimeModel

__all__ = ("SloRule",)

_SHARE = 0.95
"""Part of the past in which the bound of the forecast would have held."""
_OTHER_HORIZON = 1.4
"""Ratio from which on another cold start needs forecasts of another horizon."""
_LEAST_PATIENCE_S, _PATIENCE_S = 90.0, 140.0
_CATCH_UP_S = 30.0
_LASTING = 1.0 / 12.0
"""Part of a cold start for which a need must last: a shorter one is over long before the replica is ready."""
_OVER_MEASURED = 1.05
"""There is always room for this many times the measured rate: few late requests lower the forecast's margin only."""


class SloRule:
    """Counts the replicas that keep one model's objectives."""

    def __init__(self, model: ScaledModel, target: SloTarget) -> None:
        self._model, self._target = model, target
        self._cold_s = model.cold_start_s
        self._forecaster = Forecaster(horizon_s=self._cold_s, share=_SHARE)
        self._time = TimeModel(model, target)
        self._room = Rooms()
        self._newest: deque[tuple[float, int]] = deque()  # needs of the last while
        self._needs: deque[tuple[float, int]] = deque()  # falling needs, for the highest of the patience
        self._busy_s = -math.inf  # when there was a request last
        self._short_s = math.inf  # since when more are needed; endless where none is
        self._wanted = math.inf  # count whose delay is over while there is not room for all of it; endless: none
        self._seen = ModelObservation(model=model.name)

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Note arrivals, lengths and latencies."""
        self._seen = seen
        if seen.cold_start_s is not None:
            self._take_cold_start(seen.cold_start_s)
        if seen.arrived or seen.running or seen.waiting or self._busy_s == -math.inf:
            self._busy_s = now_s
        self._time.observe(now_s, seen, self._forecaster.level)
        self._forecaster.add(now_s, float(seen.arrived), seen.seconds)
        for one in seen.latencies:
            if one.late is not None:
                objective = self._target.objective(one.priority)
                self._room.learn(now_s, objective, one.ended, one.late, partial(self._time.hopeless, objective))

    def _take_cold_start(self, cold_s: float) -> None:
        self._cold_s = cold_s
        if not 1.0 / _OTHER_HORIZON < cold_s / self._forecaster.horizon_s < _OTHER_HORIZON:
            self._forecaster.look_ahead(max(1.0, cold_s))

    def want(self, now_s: float, current: int) -> Want:
        """Return the count, which rises at once and falls after a while."""
        if current == 0:
            waiting = self._seen.waiting
            return Want(replicas=min(1, waiting), reason=f"{waiting} requests wait, and there is no replica")
        idle_s = now_s - self._busy_s
        if idle_s >= self._target.downscale_to_zero_delay_s and self._model.min_replicas == 0:
            return Want(replicas=0, reason=f"no request for {idle_s:.0f} s")
        if not self._time.knows_lengths:
            return Want(replicas=max(1, current), reason="no request has ended yet, so lengths are not known")
        return self._steady(now_s, current)

    def hold(self) -> None:
        """Forget since when more are needed."""
        self._short_s = self._wanted = math.inf

    def _steady(self, now_s: float, current: int) -> Want:
        forecast = self._forecaster.forecast()
        behind = self._seen.waiting / max(_CATCH_UP_S, self._cold_s)
        measured, room = max(self._forecaster.level, self._forecaster.surge), self._room.factor
        needed = self._time.needed(max(room * forecast.upper, max(room, _OVER_MEASURED) * measured) + behind)
        foreseen = max(forecast.upper, measured)
        staying = needed if needed >= current else max(needed, self._time.needed(max(1.0, room) * foreseen + behind))
        held = self._held(now_s, staying, current)
        needed = self._lasting(now_s, needed)
        terms = {
            "rate": self._forecaster.level,
            "forecast": forecast.upper,
            "horizon_s": self._cold_s,
            "correction": self._time.factor,
            "room": room,
            "needed": float(needed),
            "held": float(held),
        }
        words = f"{self._forecaster.level:.2f} requests/s, at most {forecast.upper:.2f} within {self._cold_s:.0f} s"
        if needed <= current or self._wanted <= current:  # else there was no room for all: they stay wanted
            self.hold()
        if needed > current:
            self._short_s = min(self._short_s, now_s)
            if now_s < self._short_s + self._target.upscale_delay_s:
                return Want(replicas=current, reason=f"{words}, need {needed} if it stays so", terms=terms)
            self._wanted = needed
            return Want(replicas=needed, reason=f"{words} ({forecast.name}), need {needed}", terms=terms)
        if held < current:
            words = f"{words}: {held} sufficed for {self._patience_s():.0f} s"
            return Want(replicas=held, needed=needed, reason=words, terms=terms)
        return Want(replicas=current, needed=needed, reason=f"{words}, need {needed}", terms=terms)

    def _lasting(self, now_s: float, needed: int) -> int:
        """Return the least need of the last while."""
        self._newest.append((now_s, needed))
        while self._newest[0][0] < now_s - _LASTING * self._cold_s:
            self._newest.popleft()
        return min(one for _, one in self._newest)

    def _held(self, now_s: float, needed: int, current: int) -> int:
        """Return the highest need of the patience; the first count stays that long too.

        needed: for the whole forecast, where the room is less: what leaves cannot come back within a cold start
        """
        if not self._needs:
            self._needs.append((now_s, max(needed, current)))
        while self._needs and self._needs[-1][1] <= needed:
            self._needs.pop()
        self._needs.append((now_s, needed))
        while self._needs[0][0] < now_s - self._patience_s():
            self._needs.popleft()
        return self._needs[0][1]

    def _patience_s(self) -> float:
        """Return how long fewer must suffice: keeping a replica costs no more then than starting it again."""
        given = self._target.downscale_delay_s
        if given is not None:
            return given
        return max(self._cold_s, min(_PATIENCE_S, _LEAST_PATIENCE_S + 2.0 * self._cold_s))
