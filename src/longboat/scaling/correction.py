"""What is learnt from measurements: how far the time model is off, and how much room the load needs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from longboat.core.scaling import Objective

__all__ = ("Correction", "Room", "Rooms")

_HALF_LIFE = 240.0  # observations with latencies
_ENOUGH = 60.0  # observations that are trusted: the first ones are of replicas that fill
_LEAST, _MOST = 0.4, 4.0
_STEP = 1.03  # changes below this are not worth a new model

# Of the room:
_WINDOW_S = 900.0
_STEP_S = 30.0
_MIN_ENDED = 300
_FEW, _MANY = 0.3, 0.7  # parts of the requests that may be late
_LESS, _MORE = 0.99, 1.03
_TIGHTEST, _FIRST, _WIDEST = 0.85, 1.1, 1.15
_CHANCE = 3.0  # standard deviations beyond which an objective was missed, and not by chance
_REMEMBERED_S = 1800.0  # since the objective was missed last
_IN_VAIN = 0.8  # part of the requests that may be late, at most, for those that no replica helps


class Correction:
    """A factor on all seconds of the time model: above 1 where replicas are slower than was foreseen."""

    def __init__(self) -> None:
        self.factor = 1.0  # in use
        self._mean = 0.0  # of the logarithms of what was measured over what was foreseen
        self._weight = 0.0

    def learn(self, measured_s: float, foreseen_s: float) -> bool:
        """Note measured seconds, and what the uncorrected model says of it. Return whether the factor changed."""
        if measured_s <= 0.0 or foreseen_s <= 0.0 or math.isinf(foreseen_s):
            return False
        kept = 0.5 ** (1.0 / _HALF_LIFE)
        self._weight = self._weight * kept + 1.0
        self._mean += (math.log(measured_s / foreseen_s) - self._mean) / self._weight
        trust = min(1.0, self._weight / _ENOUGH)
        factor = min(_MOST, max(_LEAST, math.exp(self._mean * trust)))
        if 1.0 / _STEP < factor / self.factor < _STEP:
            return False
        self.factor = factor
        return True


class Room:
    """The load for which there is room, over the bound of the forecast: more of it where requests were late.

    A factor with which the objective was missed is remembered, and not tried again for a while: the load that missed
    it comes back.
    """

    def __init__(self) -> None:
        self.factor = _FIRST
        self._least, self._least_until_s = _TIGHTEST, 0.0
        self._missed = False
        self._seen: deque[tuple[float, int, int]] = deque()  # times, ended and late requests
        self._ended = self._late = 0
        self._next_s = 0.0

    @property
    def heard_s(self) -> float:
        """Return when requests ended last."""
        return self._seen[-1][0]

    def learn(self, now_s: float, ended: int, late: int, allowed: float, hopeless: Callable[[], float]) -> None:
        """Note requests that ended, and how many of them were late.

        allowed: part that may be late; hopeless: returns the part that more replicas would not help, and that says
        nothing about the room
        """
        self._seen.append((now_s, ended, late))
        self._ended += ended
        self._late += late
        while self._seen[0][0] < now_s - _WINDOW_S:
            _, old, old_late = self._seen.popleft()
            self._ended -= old
            self._late -= old_late
        if now_s < self._next_s or self._ended < _MIN_ENDED:
            return
        self._next_s = now_s + _STEP_S
        least = self._least_factor(now_s, allowed)
        self.factor = min(_WIDEST, max(least, self.factor * self._step(allowed, hopeless())))

    def _step(self, allowed: float, hopeless: float) -> float:
        """Return what the factor is multiplied by. Late requests that chance explains ask for no more room."""
        in_vain = min(hopeless, _IN_VAIN * allowed)
        late, least_late = (
            (count / self._ended - in_vain) / (allowed - in_vain)
            for count in (self._late, self._late - math.sqrt(self._late))
        )
        return _LESS if late < _FEW else _MORE if least_late > _MANY else 1.0

    def _least_factor(self, now_s: float, allowed: float) -> float:
        """Return the least factor: half-way to the widest from that with which the objective was missed of late."""
        if now_s >= self._least_until_s:
            self._least = _TIGHTEST
        may_be = allowed * self._ended
        missed = self._late > may_be + _CHANCE * math.sqrt(may_be)
        if missed and not self._missed:
            self._least = max(self._least, (self.factor + _WIDEST) / 2.0)
        if missed:
            self._least_until_s = now_s + _REMEMBERED_S
        self._missed = missed
        return self._least


class Rooms:
    """One room for each objective of a model. The one that needs most decides: a replica serves all classes."""

    def __init__(self) -> None:
        self._rooms: dict[Objective, Room] = {}

    @property
    def factor(self) -> float:
        return max((room.factor for room in self._rooms.values()), default=_FIRST)

    def learn(self, now_s: float, objective: Objective, ended: int, late: int, hopeless: Callable[[], float]) -> None:
        """Note requests of an objective, and forget the objectives of which no request has ended for long."""
        allowed = 1.0 - objective.percentile / 100.0
        self._rooms.setdefault(objective, Room()).learn(now_s, ended, late, allowed, hopeless)
        self._rooms = {known: room for known, room in self._rooms.items() if room.heard_s >= now_s - _REMEMBERED_S}
