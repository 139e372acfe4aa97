"""What will come: several simple forecasts of the arrivals, each with an interval from its own past errors.

A forecast is of the highest level within the horizon, as replicas must be there for that. The forecast whose upper
bound cost least of late is used; where the trend or the season was wrong, that is the newest level by itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from statistics import NormalDist

__all__ = ("BIN_S", "Forecast", "Forecaster")

BIN_S = 5.0
"""Seconds of one bin of arrivals."""
_WINDOW, _LONGEST_WINDOW = 6, 24  # bins of the level: more of them where little comes
_ENOUGH = 200.0  # that should come within the window, so that chance plays a small part
_CHANCE = 3.0  # standard deviations beyond which a change has a cause
_SURGE_BINS, _BEFORE = (2, 3, 4), (6, 12)  # newest bins that may be a surge, and the least and most bins before them
_UNEVEN_FADE, _UNEVEN_ENOUGH = 0.998, 12  # weight of older bins in how uneven arrivals are, and bins until it counts
_SHORT = {"10 minutes": 120, "15 minutes": 180, "20 minutes": 240, "half hour": 360, "hour": 720}  # bins
_SEASONS_S = {"day": 86_400.0, "week": 7 * 86_400.0}
_COARSE_S = 300.0
_KEPT_BINS = 1500
_KEPT_ERRORS = 1024  # of one forecast
_FADE = 0.995  # weight of older losses, for each bin
_MOST_RATIO = 6.0
_PEAK_ROOM = 1.05  # no bound is above the highest level that was seen, times this
_CLOCK_ROOM = 1.15  # what came a while before, scaled to the present level, leads no further above the highest level
_YOUNG_ROOM, _YOUNG = 0.2, 240  # more of it at first, and the bins until it is gone: a short time's peak says little
_PRIOR_SPREADS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # errors that are assumed of two minutes or more
_TINY = 1e-9
_FIRST_CHANCE = 2.0  # standard deviations that are left out of what the first seconds brought


class Forecast:
    """An upper bound of the level within the horizon."""

    __slots__ = ("expected", "name", "upper")

    def __init__(self, name: str, expected: float, upper: float) -> None:
        self.name = name  # of the way: level, trend, hour, day …
        self.expected = expected
        self.upper = upper


def _window(mean: float) -> int:
    """Return how many bins a level has, so that enough comes within them."""
    return min(_LONGEST_WINDOW, max(_WINDOW, math.ceil(_ENOUGH / max(_TINY, mean) / BIN_S)))


class _Unevenness:
    """How uneven arrivals are: the variance of what comes in a time over its mean, 1 where each comes by chance.

    It is found from the differences of neighbouring bins, as a slow change of the rate has another cause.
    """

    def __init__(self) -> None:
        self._squares = self._sums = 0.0
        self._bins = 0

    def add(self, before: float, value: float) -> None:
        """Note two neighbouring bins. A jump of the rate counts no more than a change that chance may still bring."""
        most = _CHANCE**2 * self.factor * (value + before)
        self._squares = self._squares * _UNEVEN_FADE + min((value - before) ** 2 * BIN_S, most)
        self._sums = self._sums * _UNEVEN_FADE + value + before
        self._bins += 1

    @property
    def factor(self) -> float:
        """Return the variance over the mean; 1 at least."""
        return max(1.0, self._squares / max(_TINY, self._sums)) if self._bins >= _UNEVEN_ENOUGH else 1.0


def _crest(levels: list[float], uneven: float) -> float:
    """Return the highest of some levels, less what chance adds to the highest of several windows."""
    mean = sum(levels) / len(levels)
    window = _window(mean / uneven)
    windows = max(1.0, len(levels) / window)
    deviations = NormalDist().inv_cdf((windows - 0.375) / (windows + 0.25))  # of the highest, as Blom estimates it
    return max(mean, max(levels) - deviations * math.sqrt(uneven * mean / (window * BIN_S)))


class _Way:
    """One way to forecast, with the ratios of what came to what it said."""

    def __init__(self, name: str, forecast: Callable[[], float | None], prior: list[float]) -> None:
        self.name = name
        self.forecast = forecast
        self.loss = 0.0
        self.weight = 0.0  # of the losses so far
        self._ratios: deque[float] = deque(prior)  # oldest first
        self._sorted = sorted(prior)

    def upper(self, expected: float, share: float) -> float:
        """Return the level that this share of what came stayed below."""
        at = min(len(self._sorted) - 1, int(share * len(self._sorted)))
        return expected * self._sorted[at]

    def learn(self, expected: float, upper: float, came: float, share: float) -> None:
        """Note what came after a forecast: the loss of a bound at this share, and the ratio."""
        over = came - upper
        self.loss = self.loss * _FADE + max(share * over, (share - 1.0) * over)
        self.weight = self.weight * _FADE + 1.0
        ratio = min(_MOST_RATIO, came / max(_TINY, expected))
        self._ratios.append(ratio)
        insort(self._sorted, ratio)
        if len(self._ratios) > _KEPT_ERRORS:
            del self._sorted[bisect_left(self._sorted, self._ratios.popleft())]


class Forecaster:
    """The arrivals of one model, in any unit for each second. Add them as they come; the time never goes back."""

    def __init__(self, *, horizon_s: float, share: float) -> None:
        """horizon_s: how far it looks ahead; share: of the past in which the upper bound would have held"""
        self._share = share
        self._bins: deque[float] = deque(maxlen=_LONGEST_WINDOW)
        self._uneven = _Unevenness()
        self._levels: list[float] = []  # newest last
        self._peak = 0.0
        self._open_sum, self._open_s = 0.0, 0.0
        self._coarse: dict[int, float] = {}  # mean level of each coarse bin, by its number
        self._now_s = 0.0
        self._pending: deque[list[tuple[_Way, float, float]]] = deque()
        self._found: Forecast | None = None
        self.look_ahead(horizon_s)

    def look_ahead(self, horizon_s: float) -> None:
        """Look this far ahead from now on. What came is kept; the errors of another horizon are forgotten."""
        self.horizon_s = horizon_s
        self._horizon = max(1, round(horizon_s / BIN_S))  # bins
        self._pending.clear()
        self._found = None
        prior = [1.0 + spread * min(1.0, horizon_s / 120.0) for spread in _PRIOR_SPREADS]
        self._ways = [
            _Way("level", self._level, prior),
            _Way("trend", self._trend, prior),
            *(_Way(name, self._repeated(period), prior) for name, period in _SHORT.items()),
            *(_Way(name, self._season(season_s), prior) for name, season_s in _SEASONS_S.items()),
        ]

    def add(self, now_s: float, amount: float, seconds: float) -> None:
        """Note what came in the last seconds, which may begin in one bin and end in another."""
        self._now_s = now_s
        rate = amount / max(_TINY, seconds)
        while self._open_s + seconds >= BIN_S - 1e-6:
            missing_s = BIN_S - self._open_s
            self._close((self._open_sum + rate * missing_s) / BIN_S)
            self._open_sum = self._open_s = 0.0
            seconds = max(0.0, seconds - missing_s)
        self._open_sum += rate * seconds
        self._open_s += seconds

    @property
    def level(self) -> float:
        """Mean of the newest bins."""
        return self._level() or 0.0

    @property
    def chance(self) -> float:
        """Return by which part of it chance alone moves the level: one standard deviation."""
        single = self.level / self._uneven.factor  # as if each came by itself
        return 1.0 / math.sqrt(max(1.0, single * _window(single) * BIN_S))

    @property
    def surge(self) -> float:
        """Mean of the newest few bins, where it is above that of the bins before by more than chance; else 0.

        A surge that the newest bin shows to be over is none.
        """
        bins, (least, most) = list(self._bins), _BEFORE
        surges = [0.0]
        for newest in _SURGE_BINS:
            before = bins[-newest - most : -newest]
            if len(before) < least:
                break
            now, then = sum(bins[-newest:]) / newest, sum(before) / len(before)
            variance = self._uneven.factor * max(then, _TINY) / BIN_S * (1.0 / newest + 1.0 / len(before))
            goes_on = bins[-1] > (now + then) / 2.0
            if goes_on and now > then + _CHANCE * math.sqrt(variance):
                surges.append(now)
        return max(surges)

    def forecast(self) -> Forecast:
        """Return the bound of the way that did best of late; it changes as bins fill."""
        if self._found is None:
            self._found = self._best()
        return self._found

    def _best(self) -> Forecast:
        found = []
        for way in self._ways:
            if (expected := way.forecast()) is not None:
                untried = 0.0 if way.weight > 10.0 or way.name == "level" else 1e9
                found.append((way.loss / max(1.0, way.weight) + untried, way, expected))
        if not found:
            return Forecast("level", 0.0, 0.0)
        _, way, expected = min(found, key=lambda one: one[0])
        room = _PEAK_ROOM + _YOUNG_ROOM * max(0.0, 1.0 - len(self._levels) / _YOUNG)
        leads = min(expected, _CLOCK_ROOM * self._peak) if way.name in _SHORT else expected
        upper = min(way.upper(expected, self._share), max(self._peak * room, leads))
        return Forecast(way.name, expected, max(self.level, upper))

    def _close(self, value: float) -> None:
        """Take a bin that is full, judge the forecasts that it ends, and make the next ones."""
        self._found = None
        if self._bins:
            self._uneven.add(self._bins[-1], value)
        self._bins.append(value)
        if len(self._bins) < _WINDOW:
            return
        level = self._level() or 0.0
        self._levels.append(level)
        self._peak = max(_crest(self._levels[-self._horizon :], self._uneven.factor), self._peak * 0.99998)
        if len(self._levels) > 2 * _KEPT_BINS:
            del self._levels[:_KEPT_BINS]
        self._remember(level)
        if len(self._pending) >= self._horizon:
            came = max(self._levels[-self._horizon :])
            for way, expected, upper in self._pending.popleft():
                way.learn(expected, upper, came, self._share)
        forecasts = [(way, way.forecast()) for way in self._ways]
        self._pending.append([(way, one, way.upper(one, self._share)) for way, one in forecasts if one is not None])

    def _level(self) -> float | None:
        if not self._bins:
            came = self._open_sum - _FIRST_CHANCE * math.sqrt(self._open_sum)
            return max(0.0, came) / self._open_s if self._open_s else None
        window = _window(sum(self._bins) / len(self._bins) / self._uneven.factor)
        newest = list(self._bins)[-window:]
        return sum(newest) / len(newest)

    def _trend(self) -> float | None:
        """Continue the line through the levels of two horizons."""
        level, back = self._level(), max(12, 2 * self._horizon)
        if level is None or len(self._levels) <= back + 1:
            return None
        slope = (level - self._levels[-1 - back]) / back
        return max(level, level + slope * self._horizon)

    def _repeated(self, period: int) -> Callable[[], float | None]:
        """Return the way that expects what came one short period before, as load does that comes by the clock."""

        def expected() -> float | None:
            levels = self._levels
            if len(levels) < period + 60 or self._horizon >= period:
                return None
            before, now = sum(levels[-period - 60 : -period]), sum(levels[-60:])
            scale = min(1.5, max(0.7, now / max(_TINY, before)))
            return max(levels[-1], scale * max(levels[-period : len(levels) - period + self._horizon + 2]))

        return expected

    def _remember(self, level: float) -> None:
        number = int(self._now_s // _COARSE_S)
        before = self._coarse.get(number)
        self._coarse[number] = level if before is None else 0.9 * before + 0.1 * level
        self._coarse.pop(number - int(15 * 86_400 / _COARSE_S), None)

    def _season(self, season_s: float) -> Callable[[], float | None]:
        """Return the way that takes the change of one season before: of the same time of that day or week."""

        def expected() -> float | None:
            level = self._level()
            then_s = self._now_s - season_s
            now, back = self._coarse_at(then_s), self._coarse_at(then_s + self._horizon * BIN_S)
            if level is None or now is None or back is None or now <= _TINY:
                return None
            return level * min(_MOST_RATIO, max(1.0, back / now))

        return expected

    def _coarse_at(self, at_s: float) -> float | None:
        """Return the level then, between the middles of two coarse bins."""
        place = at_s / _COARSE_S - 0.5
        number = int(place // 1)
        one, other = self._coarse.get(number), self._coarse.get(number + 1)
        if one is None or other is None:
            return one if other is None else other
        return one + (other - one) * (place - number)
