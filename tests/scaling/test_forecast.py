"""Forecasts: steady load, growth, the clock's seasons, and what happens where one was wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from longboat.scaling.forecast import BIN_S, Forecaster


def played(
    rate_at: Callable[[float], float], until_s: float, *, horizon_s: float = 60.0, seed: int = 1, look_s: float = 1.0
) -> Forecaster:
    """Give a forecaster Poisson arrivals, those of one look at a time."""
    draw = random.Random(seed)
    found = Forecaster(horizon_s=horizon_s, share=0.95)
    for at in range(int(until_s / look_s)):
        mean = rate_at(at * look_s) * look_s
        found.add(at * look_s, max(0.0, draw.gauss(mean, math.sqrt(mean))), look_s)
    return found


def test_steady_load_has_a_bound_a_little_above_it() -> None:
    forecast = played(lambda t: 20.0, 3600.0).forecast()
    assert 18.0 < forecast.expected < 23.0
    assert forecast.expected <= forecast.upper < 25.0


def test_growth_is_carried_on_over_the_horizon() -> None:
    forecast = played(lambda t: 5.0 + t / 60.0, 3600.0, horizon_s=240.0).forecast()
    assert 66.0 < forecast.upper < 85.0


@pytest.mark.parametrize("look_s", [1.0, 1.03, 1.3, 7.0])
def test_load_that_comes_by_the_clock_is_expected_before_it_comes(look_s: float) -> None:
    """However long looks take: a controller decides about once a second."""

    def rate_at(at_s: float) -> float:
        return 30.0 if at_s % 1200.0 >= 600.0 else 5.0

    forecast = played(rate_at, 4 * 1200.0 + 500.0, horizon_s=120.0, look_s=look_s).forecast()
    assert forecast.name in ("20 minutes", "hour")
    assert forecast.upper > 27.0
    quiet = played(rate_at, 4 * 1200.0 + 300.0, horizon_s=120.0, look_s=look_s).forecast()
    assert quiet.upper < 15.0


def test_season_that_does_not_come_is_given_up() -> None:
    def rate_at(at_s: float) -> float:
        return 30.0 if at_s < 6000.0 and at_s % 1200.0 >= 600.0 else 5.0

    assert played(rate_at, 6000.0 + 3000.0, horizon_s=120.0).forecast().upper < 12.0


def test_before_anything_came_nothing_is_expected() -> None:
    assert Forecaster(horizon_s=60.0, share=0.95).forecast().upper == 0.0


def test_other_horizon_keeps_what_came() -> None:
    found = played(lambda t: 20.0, 1800.0)
    found.look_ahead(240.0)
    assert 18.0 < found.forecast().upper < 30.0


def test_peak_of_a_short_time_bounds_less() -> None:
    """Nothing came that is above the level, so the bound falls from what is assumed of errors to the level."""
    forecaster = Forecaster(horizon_s=240.0, share=0.95)
    uppers = []
    for at in range(3600):
        forecaster.add(float(at), 10.0, 1.0)
        uppers.append(forecaster.forecast().upper)
    assert 11.5 < uppers[120] < 13.0
    assert uppers[-1] == pytest.approx(10.0, rel=0.06)


def test_what_came_by_the_clock_leads_little_above_the_peak() -> None:
    """Ten minutes of 12 and ten of 20 requests, and then 18 where 12 came: scaled, 30 would come next."""

    def rate_at(at_s: float) -> float:
        return 18.0 if at_s >= 7200.0 else 20.0 if at_s % 1200.0 >= 600.0 else 12.0

    forecast = played(rate_at, 7200.0 + 500.0, horizon_s=240.0).forecast()
    assert forecast.name in ("20 minutes", "hour")
    assert forecast.expected > 26.0
    assert 20.0 < forecast.upper < 25.0


def test_chance_moves_the_level_of_many_requests_less() -> None:
    def chance(rate: float) -> float:
        forecaster = Forecaster(horizon_s=30.0, share=0.95)
        for at in range(200):
            forecaster.add(float(at), rate, 1.0)
        return forecaster.chance

    assert chance(10.0) == pytest.approx(300.0**-0.5)  # of half a minute
    assert chance(40.0) == pytest.approx(chance(10.0) / 2.0)
    assert chance(2.0) == pytest.approx(200.0**-0.5)  # a longer window where little comes
    assert Forecaster(horizon_s=30.0, share=0.95).chance == 1.0


def _came(counts: list[float]) -> Forecaster:
    """Give a forecaster what comes in each bin of five seconds."""
    found = Forecaster(horizon_s=30.0, share=0.95)
    for at, count in enumerate(counts):
        found.add(BIN_S * at, count, BIN_S)
    return found


def test_requests_in_groups_leave_more_to_chance() -> None:
    """Groups of nine as often as single requests: nine times the variance, so three times the deviation."""
    draw = random.Random(3)
    singles = [float(sum(draw.random() < 0.01 for _ in range(5000))) for _ in range(600)]
    assert _came(singles).chance == pytest.approx(300.0**-0.5, rel=0.15)
    groups = _came([9.0 * one for one in singles])
    assert groups.level == pytest.approx(90.0, rel=0.2)
    assert groups.chance == pytest.approx(3.0 * (90.0 * 30.0) ** -0.5, rel=0.2)


def test_slow_growth_is_not_taken_for_uneven_arrivals() -> None:
    assert _came([50.0 + at / 2.0 for at in range(600)]).chance == pytest.approx((69.5 * 30.0) ** -0.5, rel=0.02)


def test_jump_of_the_rate_is_not_taken_for_uneven_arrivals() -> None:
    assert _came([20.0] * 30 + [200.0] * 8).chance == pytest.approx((6.0 * 200.0) ** -0.5, rel=0.02)


def test_surge_is_seen_beside_what_came_before_it() -> None:
    """The level holds bins of the surge, so that a surge by a third would hardly stand out from it."""
    calm = [65.0, 60.0, 68.0, 66.0, 62.0, 69.0] * 4
    assert _came([*calm, 85.0, 88.0]).surge == pytest.approx(17.3)
    assert _came([*calm, 70.0, 68.0]).surge == 0.0
    assert _came(calm[:6]).surge == 0.0  # too little came before


def test_groups_are_no_surge() -> None:
    calm = [20.0, 110.0, 65.0, 50.0, 90.0, 55.0] * 8
    assert _came([*calm, 85.0, 88.0]).surge == 0.0


def test_surge_that_is_over_is_none() -> None:
    calm = [65.0, 60.0, 68.0, 66.0, 62.0, 69.0] * 4
    assert _came([*calm, 120.0, 120.0]).surge > 20.0
    assert _came([*calm, 120.0, 120.0, 65.0]).surge == 0.0
