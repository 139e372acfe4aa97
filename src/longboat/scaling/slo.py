"""As many replicas as keep the objectives: queueing over what is observed, a forecast, and patience before fewer."""

from __future__ import annotations

import math
from functools import partial

from longboat.core.scaling import ModelObservation, ScaledModel, SloTarget
from longboat.scaling.correction import Rooms
from longboat.scaling.forecast import Forecaster
from longboat.scaling.needs import Needs
from longboat.scaling.rule import Want
from longboat.scaling.time_model import TimeModel

__all__ = ("SloRule",)

_SHARE = 0.95
"""Part of the past in which the bound of the forecast would have held."""
_LEAST_COLD_S = 1.0
_OTHER_HORIZON = 1.4
"""Ratio from which on another cold start needs forecasts of another horizon."""
_LEAST_PATIENCE_S, _PATIENCE_S, _NEAR_PATIENCE_S = 90.0, 140.0, 300.0
_CATCH_UP_S = 30.0
_OVER_MEASURED = 1.05
"""There is always room for this many times the measured rate: few late requests lower the forecast's margin only."""


class SloRule:
    """Counts the replicas that keep one model's objectives."""

    def __init__(self, model: ScaledModel, target: SloTarget) -> None:
        self._model, self._target = model, target
        self._cold_s = max(_LEAST_COLD_S, model.cold_start_s)
        self._forecaster = Forecaster(horizon_s=self._cold_s, share=_SHARE)
        self._time = TimeModel(model, target)
        self._room = Rooms()
        self._needs: Needs | None = None  # none before the first count
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
            if one.late is not None and (objective := self._target.objective(one.priority)) is not None:
                judged = one.ended if one.judged is None else one.judged
                self._room.learn(now_s, objective, judged, one.late, partial(self._time.hopeless, objective))

    def _take_cold_start(self, cold_s: float) -> None:
        self._cold_s = max(_LEAST_COLD_S, cold_s)
        if not 1.0 / _OTHER_HORIZON < self._cold_s / self._forecaster.horizon_s < _OTHER_HORIZON:
            self._forecaster.look_ahead(self._cold_s)

    def want(self, now_s: float, current: int) -> Want:
        """Return the count, which rises at once and falls after a while."""
        if current == 0:
            waiting = self._seen.waiting
            return Want(replicas=min(1, waiting), reason=f"{waiting} requests wait, and there is no replica")
        idle_s = now_s - self._busy_s
        if idle_s >= self._target.downscale_to_zero_delay_s and self._model.min_replicas == 0:
            return Want(replicas=0, reason=f"no request for {idle_s:.0f} s")
        if not self._time.knows_lengths:
            return Want(replicas=max(1, current), reason="too few requests have ended to know their lengths")
        return self._steady(now_s, current)

    def hold(self) -> None:
        """Forget since when more are needed and fewer suffice."""
        self._short_s = self._wanted = math.inf
        self._needs = None

    def _steady(self, now_s: float, current: int) -> Want:
        forecast = self._forecaster.forecast()
        behind = self._seen.waiting / max(_CATCH_UP_S, self._cold_s)
        measured, room = max(self._forecaster.level, self._forecaster.surge), self._room.factor
        heavier = self._time.heavier  # the room is for longer prompts too, so the two are not multiplied whole
        ahead, now = max(room, heavier * min(room, _OVER_MEASURED)), max(room, heavier * _OVER_MEASURED)
        load = max(ahead * forecast.upper, now * measured) + heavier * behind
        staying = max(load, max(1.0, room) * max(forecast.upper, measured) + behind)  # what leaves cannot come back
        if self._needs is None:
            self._needs = Needs(now_s, current)
        need, near = self._time.needed, 1.0 + self._forecaster.chance
        held = self._needs.falling(now_s, need(staying), need(near * staying), *self._patience_s())
        few_are_late = room <= 1.0
        needed = self._needs.rising(now_s, need(load / near if few_are_late else load), need(load), self._cold_s)
        within_s = self._forecaster.horizon_s
        terms = {
            "rate": self._forecaster.level,
            "forecast": forecast.upper,
            "horizon_s": within_s,
            "correction": self._time.factor,
            "room": room,
            "needed": float(needed),
            "held": float(held),
        }
        words = f"{self._forecaster.level:.2f} requests/s, at most {forecast.upper:.2f} within {within_s:.0f} s"
        if needed <= current or self._wanted <= current:  # else there was no room for all: they stay wanted
            self._short_s = self._wanted = math.inf
        if needed > current:
            self._short_s = min(self._short_s, now_s)
            if now_s < self._short_s + self._target.upscale_delay_s:
                return Want(replicas=current, reason=f"{words}, need {needed} if it stays so", terms=terms)
            self._wanted = needed
            return Want(replicas=needed, reason=f"{words} ({forecast.name}), need {needed}", terms=terms)
        if held < current:
            words = f"{words}: {held} sufficed for {self._patience_s()[0]:.0f} s"
            return Want(replicas=held, needed=needed, reason=words, terms=terms)
        return Want(replicas=current, needed=needed, reason=f"{words}, need {needed}", terms=terms)

    def _patience_s(self) -> tuple[float, float]:
        """Return how long fewer must suffice, and how long where the load is near the edge.

        Keeping a replica costs about as much in that time as starting it again.
        """
        given = self._target.downscale_delay_s
        if given is not None:
            return given, given
        return (
            max(self._cold_s, min(_PATIENCE_S, _LEAST_PATIENCE_S + 2.0 * self._cold_s)),
            max(self._cold_s, _NEAR_PATIENCE_S),
        )
