"""The fleet file's ``replicas:`` where load, objectives or the time of day decide the count."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from longboat.spec.types.section import Section, mistake, with_agreement

__all__ = ("MAX_REPLICAS", "ObjectiveSpec", "ReplicasSpec", "ScheduleSpec", "duration_s")

MAX_REPLICAS: Final = 1000
MAX_DELAY_S: Final = 86_400.0
MAX_DURATION_S: Final = 31 * 86_400.0
MAX_PRIORITY: Final = 9

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smhd])")

Count = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
Delay = Annotated[float, Field(ge=0, le=MAX_DELAY_S)]


def duration_s(text: str) -> float:
    """Return the seconds of a duration with its unit (``90s``, ``30m``, ``8h``, ``2d``), or raise ValueError."""
    if (match := _DURATION.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not a duration with a unit")
    seconds = float(match[1]) * _UNITS[match[2]]
    if not 1.0 <= seconds <= MAX_DURATION_S:
        raise ValueError(f"{text!r} is not between 1s and 31d")
    return seconds


def _duration(value: str) -> str:
    try:
        duration_s(value)
    except ValueError as error:
        raise mistake(str(error), "write it like 30m or 8h (s, m, h, d)") from None
    return value


def _cron(value: str) -> str:
    hint = 'write five fields, minute hour day month weekday: "0 8 * * MON-FRI"'
    if len(value.split()) != 5:
        raise mistake(f"{value!r} has {len(value.split())} fields, and a cron line has 5", hint)
    try:
        moments = CronSim(value, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise mistake(f"{value!r} cannot be read: {str(error)[:1].lower()}{str(error)[1:]}", hint) from None
    if next(moments, None) is None:
        raise mistake(f"{value!r} never occurs", hint)
    return value


def _timezone(value: str) -> str:
    if value not in (known := available_timezones()):
        close = difflib.get_close_matches(value, sorted(known), n=1, cutoff=0.5)
        raise mistake(f"there is no time zone {value!r}", f"write {close[0] if close else 'Europe/Berlin, or UTC'}")
    return value


def _one_end(value: str | None, info: ValidationInfo) -> str | None:
    if "duration" in info.data and (value is None) == (info.data["duration"] is None):
        what = (
            "for and until are both given" if value is not None else "neither for nor until: the entry would never end"
        )
        raise mistake(what, 'write one of the two: for: 10h, or until: "0 18 * * MON-FRI"')
    return value


def _one_count(value: int | None, info: ValidationInfo) -> int | None:
    if "min" in info.data and (value is None) == (info.data["min"] is None):
        what = "min and replicas are both given" if value is not None else "neither min nor replicas"
        raise mistake(what, "write one of the two: min: 4 (the load may ask for more), or replicas: 4 (exactly)")
    if value == 0:
        hint = "write min: 0 beside max: so that the model sleeps without requests, or use longboat pause"
        raise mistake("replicas: 0 would leave requests without any replica", hint)
    return value


class ScheduleSpec(Section):
    """A time for which a person knows the load."""

    cron: Annotated[str, AfterValidator(_cron)]
    """When it begins, in cron's five fields: "0 8 * * MON-FRI"."""
    duration: Annotated[Annotated[str, AfterValidator(_duration)] | None, Field(alias="for")] = None
    """How long it lasts, with its unit: 90s, 30m, 10h, 2d."""
    until: Annotated[Annotated[str, AfterValidator(_cron)] | None, AfterValidator(_one_end)] = Field(
        default=None, validate_default=True
    )
    """When it ends, as cron's five fields; for and until exclude each other."""
    timezone: Annotated[str, AfterValidator(_timezone)] = "UTC"
    """The time zone of both, by its name in the IANA database."""
    min: Count | None = None
    """Replicas at least; the load may ask for more."""
    replicas: Annotated[Count | None, AfterValidator(_one_count)] = Field(default=None, validate_default=True)
    """Replicas exactly, whatever the load; min and replicas exclude each other."""


def _some_limit(value: float | None, info: ValidationInfo) -> float | None:
    if value is None and "ttft_ms" in info.data and info.data["ttft_ms"] is None:
        raise mistake("the objective limits nothing", "write ttft_ms: 1000, itl_ms: 50, or both")
    return value


class ObjectiveSpec(Section):
    """What requests must keep."""

    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] | None = None
    """The class of tenants that it is for, 0 goes first; null is for every class without an objective of its own."""
    ttft_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    """Limit for the time to the first token with the wait in the gateway, in milliseconds; null means no limit."""
    itl_ms: Annotated[Annotated[float, Field(gt=0, le=3_600_000)] | None, AfterValidator(_some_limit)] = Field(
        default=None, validate_default=True
    )
    """Limit for the mean time between a response's tokens, in milliseconds; null means no limit."""
    percentile: float = Field(default=99.0, ge=50, le=99.9)
    """Percentage of requests that must keep both."""


def _not_below_min(value: int, info: ValidationInfo) -> int:
    if value < (least := info.data.get("min", 0)):
        raise mistake(f"max: {value} is below min: {least}", f"write max: {least} or more, or min: {value}")
    return value


def _between(value: int | None, info: ValidationInfo) -> int | None:
    least, most = info.data.get("min", 0), info.data.get("max", MAX_REPLICAS)
    if value is not None and not least <= value <= most:
        nearest = min(max(value, least), most)
        raise mistake(f"initial: {value} is not between min: {least} and max: {most}", f"write initial: {nearest}")
    return value


def _different_classes(value: tuple[ObjectiveSpec, ...], info: ValidationInfo) -> tuple[ObjectiveSpec, ...]:
    if info.data.get("target_ongoing_requests") is not None:
        raise mistake(
            "target_ongoing_requests and slo are both given: only one of them can decide the count",
            "write one of the two",
        )
    classes = [entry.priority for entry in value]
    if (twice := next((one for one in classes if classes.count(one) > 1), -1)) != -1:
        which = "no priority" if twice is None else f"priority: {twice}"
        raise mistake(f"two objectives with {which}", "write one objective for each class")
    return value


def _within_max(value: tuple[ScheduleSpec, ...], info: ValidationInfo) -> tuple[ScheduleSpec, ...]:
    most = info.data.get("max", MAX_REPLICAS)
    wanted = [entry.replicas if entry.replicas is not None else entry.min or 0 for entry in value]
    if (count := max(wanted, default=0)) > most:
        entry = value[wanted.index(count)]
        raise mistake(f"{entry.cron!r} wants {count} replicas, max is {most}", f"write max: {count}")
    return value


def _undecided(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    """Yield what is missing for a count that follows something."""
    target = values.get("target_ongoing_requests")
    if target is None and values.get("slo") is None and not values.get("schedule"):
        hint = "write slo: {ttft_ms: 1000}, target_ongoing_requests: 16, or schedule: [...]"
        yield mistake("nothing decides when there are more or fewer replicas", hint)
    elif values.get("look_back_period_s") is not None and target is None:
        yield mistake(
            "look_back_period_s needs target_ongoing_requests, the only average",
            "leave look_back_period_s out, or write target_ongoing_requests: 16",
        )


class ReplicasSpec(Section):
    """A count of replicas that follows the load, the objectives or the time of day."""

    min: Count = 1
    """Replicas at least; 0 lets the model leave the accelerators while it has no requests."""
    max: Annotated[Annotated[int, Field(ge=1, le=MAX_REPLICAS)], AfterValidator(_not_below_min)]
    """Replicas at most."""
    initial: Annotated[Count | None, AfterValidator(_between)] = None
    """Replicas when the fleet comes up; null is min, and 1 where that is 0, so that up shows that the model works."""
    target_ongoing_requests: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Running and waiting requests for each replica, as Ray Serve has it; it and slo exclude each other."""
    look_back_period_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Seconds over which requests are averaged for target_ongoing_requests; null is 30."""
    slo: Annotated[tuple[ObjectiveSpec, ...], AfterValidator(_different_classes)] | None = Field(
        default=None, min_length=1, max_length=MAX_PRIORITY + 2
    )
    """What requests must keep, one entry for each class of tenants, or just one mapping for all."""
    upscale_delay_s: Delay | None = None
    """Seconds for which more must be wanted; null is 30 with target_ongoing_requests, and 0 with slo."""
    downscale_delay_s: Delay | None = None
    """Seconds for which fewer must suffice; null is 600, and with slo what a cold start is worth."""
    downscale_to_zero_delay_s: Delay | None = None
    """Seconds without a request until the last replica leaves; null is 600."""
    schedule: Annotated[tuple[ScheduleSpec, ...], AfterValidator(_within_max)] = Field(default=(), max_length=100)
    """Times for which a person knows the load."""
    priority: int = Field(default=1, ge=0, le=MAX_PRIORITY)
    """Rank of its objectives where models share accelerators; 0 goes first."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """Share of what is scarce, among models of one priority."""

    @model_validator(mode="wrap")
    @classmethod
    def _decided_by_something(cls, values: Any, handler: ModelWrapValidatorHandler[ReplicasSpec]) -> ReplicasSpec:
        return with_agreement(values, handler, cls, _undecided)

    @property
    def first(self) -> int:
        """Replicas when the fleet comes up."""
        return self.initial if self.initial is not None else max(self.min, 1)
