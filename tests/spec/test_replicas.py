"""``replicas:`` as a mapping: what it means to the scaler, and which values are refused with which hint."""

from __future__ import annotations

import pytest

from longboat.core.errors import UserInputError
from longboat.core.scaling import FixedTarget, Objective, OngoingTarget, ScheduleEntry, SloTarget
from longboat.engines.registry import splits_of
from longboat.spec.diff import diff
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.scaling import scaled_models
from longboat.spec.types.fleet import Fleet
from longboat.spec.wanted import spec_with_numbers, wanted_model


def fleet(replicas: str) -> Fleet:
    return load_fleet(f"models: [{{source: builtin:tiny, replicas: {replicas}}}]", "fleet.yaml")


def test_number_is_a_count_that_no_load_changes() -> None:
    (model,) = scaled_models(fleet("3"))
    assert model.target == FixedTarget()
    assert (model.min_replicas, model.max_replicas, model.initial_replicas) == (3, 3, 3)


def test_ray_serves_form_has_ray_serves_delays() -> None:
    (model,) = scaled_models(fleet("{min: 0, max: 8, target_ongoing_requests: 16}"))
    assert model.target == OngoingTarget(
        target_ongoing_requests=16, upscale_delay_s=30, downscale_delay_s=600, downscale_to_zero_delay_s=600
    )
    assert (model.min_replicas, model.max_replicas, model.initial_replicas) == (0, 8, 1)
    (model,) = scaled_models(fleet("{max: 8, target_ongoing_requests: 16, look_back_period_s: 5}"))
    assert isinstance(model.target, OngoingTarget) and model.target.look_back_period_s == 5.0


def test_objectives_are_one_for_all_or_one_for_each_class() -> None:
    (model,) = scaled_models(fleet("{max: 8, slo: {ttft_ms: 1000}}"))
    assert model.target == SloTarget(objectives=(Objective(ttft_ms=1000.0),))
    (model,) = scaled_models(fleet("{max: 8, slo: [{priority: 0, ttft_ms: 300}, {itl_ms: 50, percentile: 95}]}"))
    assert isinstance(model.target, SloTarget)
    assert model.target.objectives == (
        Objective(priority=0, ttft_ms=300.0),
        Objective(itl_ms=50.0, percentile=95.0),
    )


def test_schedule_is_read_with_its_durations() -> None:
    (model,) = scaled_models(fleet("{max: 8, schedule: {cron: '0 8 * * MON-FRI', for: 1.5h, min: 4}}"))
    assert model.schedule == (ScheduleEntry(cron="0 8 * * MON-FRI", for_s=5400.0, min_replicas=4),)
    assert model.target == FixedTarget()


@pytest.mark.parametrize(
    "replicas",
    [
        "{min: 0, max: 8, target_ongoing_requests: 16, initial: 0, look_back_period_s: 5}",
        "{max: 8, slo: [{priority: 0, ttft_ms: 300}, {itl_ms: 50}], priority: 0, weight: 2.5}",
        "{max: 8, schedule: [{cron: 0 8 * * 1, until: 0 9 * * 1, replicas: 4, timezone: Asia/Tokyo}]}",
    ],
)
def test_mapping_is_written_as_it_is_read(replicas: str) -> None:
    read = fleet(replicas)
    assert load_fleet(dump_fleet(read), "again") == read


def test_planner_places_the_initial_count_and_the_mapping_stays() -> None:
    (model,) = fleet("{min: 2, max: 8, initial: 3, slo: {ttft_ms: 1000}}").models
    wanted = wanted_model(model, splits_of)
    assert (wanted.replicas, model.num_replicas, model.max_replicas) == (3, 3, 8)
    assert model.is_decided
    assert spec_with_numbers(model, wanted) == model


def test_change_of_the_mapping_replaces_no_replica() -> None:
    old, new = fleet("{max: 8, slo: {ttft_ms: 1000}}"), fleet("{max: 9, slo: {ttft_ms: 1000}}")
    (change,) = diff(old, new).changed
    assert change.only_replicas
    assert [str(one) for one in change.changes] == ["replicas.max: 8 -> 9"]
    (change,) = diff(fleet("3"), new).changed
    assert change.only_replicas


# value, place below replicas, words in the message, words in the hint
MISTAKES = {
    "min above max": (
        "{min: 3, max: 2, target_ongoing_requests: 2}", ".max", "max: 2 is below min: 3", "write max: 3",
    ),
    "initial outside": (
        "{max: 8, initial: 9, slo: {ttft_ms: 1}}", ".initial", "not between min: 1 and max: 8", "write initial: 8",
    ),
    "no max": ("{min: 1, target_ongoing_requests: 2}", ".max", "max is missing", "write max: 8"),
    "no reason to change": ("{max: 8}", "", "nothing decides when", "slo: {ttft_ms: 1000}"),
    "an average of nothing": (
        "{max: 8, look_back_period_s: 5, slo: {ttft_ms: 1}}", "", "the only average",
        "leave look_back_period_s out",
    ),
    "two reasons": ("{max: 8, target_ongoing_requests: 2, slo: {ttft_ms: 1}}", ".slo", "both given", "one of the two"),
    "objective without a limit": ("{max: 8, slo: {percentile: 99}}", ".slo.itl_ms", "limits nothing", "ttft_ms: 1000"),
    "percentile of all": ("{max: 8, slo: {ttft_ms: 9, percentile: 100}}", ".slo.percentile", "limit, 99.9", "99.9"),
    "two objectives of a class": (
        "{max: 8, slo: [{ttft_ms: 1}, {ttft_ms: 2}]}", ".slo", "two objectives with no priority", "each class",
    ),
    "other tool's word": (
        "{max: 2, min_replicas: 1, slo: {ttft_ms: 1}}", ".min_replicas", "no field 'min_replicas'", "write min",
    ),
    "four fields": (
        "{max: 8, schedule: {cron: 0 8 * *, for: 8h, min: 4}}", ".schedule.cron", "has 4 fields", "five fields",
    ),
    "hour 25": (
        "{max: 8, schedule: [{cron: 0 25 * * *, for: 8h, min: 4}]}", ".schedule[0].cron", "bad hour", "MON-FRI",
    ),
    "day that never occurs": (
        "{max: 8, schedule: [{cron: 0 8 30 2 *, for: 8h, min: 4}]}", ".schedule[0].cron", "cannot be read", "MON-FRI",
    ),
    "no unit": (
        "{max: 8, schedule: [{cron: 0 8 * * *, for: '8', min: 4}]}", ".schedule[0].for", "not a duration", "30m",
    ),
    "too long": (
        "{max: 8, schedule: [{cron: 0 8 * * *, for: 90d, min: 4}]}", ".schedule[0].for", "between 1s and 31d", "8h",
    ),
    "no end": ("{max: 8, schedule: [{cron: 0 8 * * *, min: 4}]}", ".schedule[0].until", "never end", "for: 10h"),
    "two ends": (
        "{max: 8, schedule: [{cron: 0 8 * * *, for: 1h, until: 0 9 * * *, min: 4}]}", ".schedule[0].until", "are both",
        "one of the two",
    ),
    "no count": ("{max: 8, schedule: {cron: 0 8 * * *, for: 8h}}", ".schedule.replicas", "neither", "min: 4"),
    "no replica for a while": (
        "{max: 8, schedule: {cron: 0 8 * * *, for: 8h, replicas: 0}}", ".schedule.replicas", "without any", "min: 0",
    ),
    "count above max": (
        "{max: 8, schedule: [{cron: 0 8 * * *, for: 8h, min: 9}]}", ".schedule", "wants 9 replicas", "write max: 9",
    ),
    "time zone": (
        "{max: 8, schedule: [{cron: 0 8 * * *, for: 8h, min: 4, timezone: Europe/Berln}]}", ".schedule[0].timezone",
        "no time zone", "Europe/Berlin",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("replicas", "where", "what", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_refused_with_its_place_and_a_way_out(replicas: str, where: str, what: str, hint: str) -> None:
    with pytest.raises(UserInputError) as caught:
        fleet(replicas)
    (problem,) = caught.value.problems
    assert problem.where == f"models[0].replicas{where}"
    assert what in problem.what
    assert hint in problem.hint
