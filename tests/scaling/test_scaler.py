"""The scaler with the simple targets: delays, bounds, schedules, orders of people, and what it does unseen."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from longboat.core.scaling import (
    Decision,
    FixedTarget,
    ModelObservation,
    OngoingTarget,
    ScaledModel,
    ScheduleEntry,
)
from longboat.scaling.scaler import Scaler

RAY = OngoingTarget(target_ongoing_requests=2, upscale_delay_s=30, downscale_delay_s=600)
BEGIN_S = 1_800_000_000.0


def scaled(**changes: object) -> ScaledModel:
    values: dict[str, object] = {"name": "m", "target": RAY, "min_replicas": 1, "max_replicas": 10}
    return ScaledModel(**{**values, **changes})  # type: ignore[arg-type]


def play(scaler: Scaler, seconds: int, *, since_s: float = BEGIN_S, **seen: object) -> list[Decision]:
    """Observe the same for each of the seconds. Return each second's decision."""
    decisions = []
    for at in range(seconds):
        scaler.observe(since_s + at, [ModelObservation(model="m", **seen)])  # type: ignore[arg-type]
        decisions += scaler.decide(since_s + at)
    return decisions


def test_more_replicas_come_after_the_delay_and_not_before() -> None:
    decisions = play(Scaler([scaled()]), 40, running=8, ready=1)
    assert [one.replicas for one in decisions[:30]] == [1] * 30
    assert decisions[30].replicas == 4
    assert "8.0 requests are under way" in decisions[30].reason
    assert decisions[30].terms["ongoing_requests"] == 8.0


def test_replicas_without_room_stay_wanted_until_they_have_it_or_the_load_ends() -> None:
    target = OngoingTarget(target_ongoing_requests=2, upscale_delay_s=30, look_back_period_s=1)
    scaler = Scaler([scaled(target=target, takes={"GPU": 1.0})])

    def played(since_s: int, seconds: int, room: float, running: int) -> list[tuple[int, int]]:
        found = []
        for at in range(since_s, since_s + seconds):
            scaler.observe(BEGIN_S + at, [ModelObservation(model="m", running=running, ready=1)])
            (decision,) = scaler.decide(BEGIN_S + at, {"GPU": room})
            found.append((decision.replicas, decision.short))
        return found

    assert played(0, 30, 2.0, 12) == [(1, 0)] * 30
    assert played(30, 70, 2.0, 12) == [(2, 4)] * 70
    assert played(100, 10, 4.0, 12) == [(4, 2)] * 10
    assert played(110, 10, 8.0, 12) == [(6, 0)] * 10
    assert played(120, 31, 8.0, 16) == [(6, 0)] * 30 + [(8, 0)], "more than was wanted has a delay of its own"
    assert played(151, 40, 8.0, 40)[-1] == (8, 2), "the model's maximum is ten"
    assert played(191, 40, 8.0, 4)[2:] == [(8, 0)] * 38


def test_fewer_replicas_wait_longer_and_a_short_lull_changes_nothing() -> None:
    scaler = Scaler([scaled()], counts={"m": 4})
    assert play(scaler, 500, running=2, ready=4)[-1].replicas == 4
    assert play(scaler, 60, since_s=BEGIN_S + 500, running=8, ready=4)[-1].replicas == 4
    # the mean over 30 s falls below 3 replicas' worth a while after the lull began
    decisions = play(scaler, 700, since_s=BEGIN_S + 560, running=2, ready=4)
    changed = [at for at, one in enumerate(decisions) if one.replicas != one.before]
    assert decisions[-1].replicas == 1
    assert 600 <= changed[0] <= 631


def test_first_request_wakes_a_model_at_once() -> None:
    scaler = Scaler([scaled(min_replicas=0, initial_replicas=0)])
    assert play(scaler, 5)[-1].replicas == 0
    (decision,) = play(scaler, 1, since_s=BEGIN_S + 5, waiting=1)
    assert decision.replicas == 1
    assert "requests wait" in decision.reason


def test_last_replica_leaves_after_a_delay_of_its_own() -> None:
    target = OngoingTarget(target_ongoing_requests=2, downscale_delay_s=10, downscale_to_zero_delay_s=100)
    decisions = play(Scaler([scaled(target=target, min_replicas=0)], counts={"m": 3}), 150, ready=3)
    counts = [one.replicas for one in decisions]
    assert counts[10] == 1
    assert counts[100] == 1
    assert counts[-1] == 0


def test_bounds_hold_and_the_reason_names_them() -> None:
    assert "the maximum is reached" in play(Scaler([scaled(max_replicas=3)]), 31, running=80, ready=1)[-1].reason
    assert play(Scaler([scaled(min_replicas=2)]), 1)[-1].replicas == 2


@pytest.mark.parametrize(
    ("bounds", "count", "seen", "told"),
    [
        ({"max_replicas": 3}, 1, {"running": 80}, ": 3 in 30 s, if it stays so"),
        ({"max_replicas": 3}, 3, {"running": 80}, "; the maximum is reached"),
        ({"min_replicas": 2}, 4, {}, ": 2 in 600 s, if it stays so"),
        ({"min_replicas": 2}, 2, {}, "; the minimum is 2"),
        ({"min_replicas": 0}, 4, {}, ": 1 in 600 s, if it stays so"),
        ({"min_replicas": 0}, 1, {}, ": 0 in 600 s, if it stays so"),
    ],
)
def test_a_count_that_is_announced_is_one_that_comes(
    bounds: dict[str, int], count: int, seen: dict[str, int], told: str
) -> None:
    (decision,) = play(Scaler([scaled(**bounds)], counts={"m": count}), 1, ready=count, **seen)
    assert decision.reason.endswith(told)


def test_model_that_is_not_seen_keeps_its_count() -> None:
    scaler = Scaler([scaled()], counts={"m": 4})
    (decision,) = scaler.decide(BEGIN_S)
    assert (decision.replicas, decision.reason) == (4, "the load is not known at present")
    play(scaler, 10, running=8, ready=4)
    (decision,) = scaler.decide(BEGIN_S + 5000)
    assert decision.replicas == 4


def test_person_comes_before_the_load() -> None:
    scaler = Scaler([scaled()])
    assert play(scaler, 60, running=80, asked=2)[-1].replicas == 2
    assert play(scaler, 1, since_s=BEGIN_S + 60, running=80, paused=True)[-1].replicas == 0


def test_changed_file_keeps_the_count_and_takes_the_new_rule() -> None:
    scaler = Scaler([scaled()], counts={"m": 4})
    scaler.replace([scaled(max_replicas=3)])
    (decision,) = play(scaler, 1, running=8, ready=4)
    assert (decision.before, decision.replicas) == (4, 3)


def berlin_s(*moment: int) -> float:
    return datetime(*moment, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()  # type: ignore[arg-type,misc]


WORKDAY = ScheduleEntry(cron="0 8 * * MON-FRI", for_s=36_000, timezone="Europe/Berlin", min_replicas=5)


@pytest.mark.parametrize(
    ("moment", "count"),
    [
        ((2026, 11, 23, 7, 58), 1),
        ((2026, 11, 23, 7, 59), 5),  # a cold start takes 60 s
        ((2026, 11, 23, 8, 0), 5),
        ((2026, 11, 23, 17, 59), 5),
        ((2026, 11, 23, 18, 0), 1),
        ((2026, 11, 22, 12, 0), 1),  # a Sunday
        ((2026, 7, 20, 8, 0), 5),  # summer time
    ],
)
def test_schedule_follows_the_zones_clock_and_leads_by_the_cold_start(moment: tuple[int, ...], count: int) -> None:
    scaler = Scaler([scaled(target=FixedTarget(), schedule=(WORKDAY,))])
    (decision,) = scaler.decide(berlin_s(*moment))
    assert decision.replicas == count
    assert ("schedule" in decision.reason) == (count == 5)


def test_exact_count_of_a_schedule_comes_before_the_load_and_an_end_is_a_moment_of_cron() -> None:
    night = ScheduleEntry(cron="0 22 * * *", until="0 6 * * *", timezone="Europe/Berlin", replicas=2)
    scaler = Scaler([scaled(schedule=(night, WORKDAY))])
    assert play(scaler, 60, since_s=berlin_s(2026, 11, 23, 23, 0), running=80, ready=2)[-1].replicas == 2
    assert play(scaler, 60, since_s=berlin_s(2026, 11, 24, 6, 1), running=80, ready=2)[-1].replicas == 10


def test_one_period_follows_another() -> None:
    scaler = Scaler([scaled(target=FixedTarget(), schedule=(WORKDAY,))])
    counts = [scaler.decide(berlin_s(2026, 11, 23, hour))[0].replicas for hour in (0, 9, 17, 18, 23)]
    counts += [scaler.decide(berlin_s(2026, 11, 24, hour))[0].replicas for hour in (0, 9, 17, 18, 23)]
    assert counts == [1, 5, 5, 1, 1] * 2


def test_period_under_way_holds_for_a_schedule_that_is_read_just_before_the_next() -> None:
    hourly = ScheduleEntry(cron="0 * * * *", for_s=3600, min_replicas=5)
    scaler = Scaler([scaled(target=FixedTarget(), schedule=(hourly,), cold_start_s=0.0)])
    (decision,) = scaler.decide(berlin_s(2026, 11, 23, 7, 59, 30))
    assert decision.replicas == 5


@pytest.mark.parametrize("fold", [0, 1])
def test_period_under_way_holds_in_the_hour_that_the_clock_repeats(fold: int) -> None:
    hourly = ScheduleEntry(cron="0 * * * *", for_s=1200, timezone="Europe/Berlin", min_replicas=5)
    scaler = Scaler([scaled(target=FixedTarget(), schedule=(hourly,), cold_start_s=0.0)])
    begin_s = datetime(2026, 10, 25, 2, 0, fold=fold, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    counts = [scaler.decide(begin_s + minutes * 60)[0].replicas for minutes in (10, 19, 20, 59)]
    assert counts == [5, 5, 1, 1]


def test_exact_count_is_a_minimum_a_cold_start_before_its_time() -> None:
    for replicas, before in ((7, 7), (0, 1)):
        entry = ScheduleEntry(cron="0 8 * * *", for_s=600, timezone="Europe/Berlin", replicas=replicas)
        scaler = Scaler([scaled(target=FixedTarget(), schedule=(entry,), cold_start_s=60.0)])
        moments = [berlin_s(2026, 11, 23, 7, minute) for minute in (58, 59)] + [berlin_s(2026, 11, 23, 8, 0)]
        assert [scaler.decide(moment)[0].replicas for moment in moments] == [1, before, replicas]


def test_the_minimum_of_a_schedule_is_a_need_where_replicas_are_scarce() -> None:
    """The load keeps as many for a while anyway; the schedule has them stay."""
    entry = ScheduleEntry(cron="* * * * *", for_s=3600.0, min_replicas=3)
    models = [
        scaled(schedule=(entry,), priority=0, takes={"slot": 1.0}),
        scaled(name="other", target=replace(RAY, upscale_delay_s=0.0), takes={"slot": 1.0}),
    ]
    scaler = Scaler(models, counts={"m": 3, "other": 1})
    for at in range(5):
        seen = [ModelObservation(model=name, running=count, ready=1) for name, count in (("m", 1), ("other", 20))]
        scaler.observe(BEGIN_S + at, seen)
        assert [one.replicas for one in scaler.decide(BEGIN_S + at, {"slot": 4.0})] == [3, 1]
