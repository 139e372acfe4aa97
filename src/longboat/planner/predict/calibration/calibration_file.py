"""A calibration as a TOML file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec

from longboat.core.errors import UserInputError
from longboat.planner.predict.constants import Calibration, Measured, Spread
from longboat.planner.predict.terms import DEFAULTS

__all__ = ("built_in_calibration", "read_calibration", "write_calibration")

FORMAT = 1
HEAD = """\
# Constants of Longboat's time model: factors on its defaults (planner/predict/terms.py). Written by
# `longboat plan calibrate`; docs/concepts/prediction.md explains it.
"""
Interval = tuple[float, float]


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured group; fields as in ``Measured``."""

    model: str
    machine: str
    engine: str
    itl_factor: float
    ttft_factor: float
    num_rows: int
    here: bool = False


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. Intervals: lowest and highest measured / predicted of 8 in 10 rows."""

    format: int
    source: str
    date: str
    num_rows: int
    machines: tuple[str, ...] = ()
    itl_interval: Interval
    ttft_interval: Interval
    measured_itl_interval: Interval
    measured_ttft_interval: Interval
    common: dict[str, float] = {}
    engines: dict[str, dict[str, float]] = {}
    kernels: dict[str, dict[str, float]] = {}
    hosts: dict[str, dict[str, float]] = {}
    group: tuple[Group, ...] = ()


@cache
def built_in_calibration() -> Calibration:
    """Return what comes with Longboat: fitted to published measurements."""
    file = resources.files("longboat.planner.predict") / "data" / "calibration.toml"
    return read_calibration(file.read_text(encoding="utf-8"), "the built-in calibration")


def read_calibration(text: str, origin: str) -> Calibration:
    """Read a calibration. Raises UserInputError where the text is none; ``origin`` names it in the message."""
    hint = "write it with `longboat plan calibrate FILE`"
    try:
        document = msgspec.toml.decode(text, type=CalibrationFile)
    except ValueError as error:
        raise UserInputError(f"{origin} is not a calibration: {error}", hint=hint) from None
    if document.format != FORMAT:
        raise UserInputError(f"{origin} has the format {document.format}, and this version reads {FORMAT}", hint=hint)
    return Calibration(
        common=_checked(document.common, origin),
        engines={name: _checked(factors, origin) for name, factors in document.engines.items()},
        kernels={name: _checked(factors, origin) for name, factors in document.kernels.items()},
        hosts={name: _checked(factors, origin) for name, factors in document.hosts.items()},
        machines=document.machines,
        groups={(group.model, group.machine, group.engine): _measured(group) for group in document.group},
        itl_spread=_spread(document.itl_interval),
        ttft_spread=_spread(document.ttft_interval),
        measured_itl_spread=_spread(document.measured_itl_interval),
        measured_ttft_spread=_spread(document.measured_ttft_interval),
        num_rows=document.num_rows,
        source=document.source,
        date=document.date,
    )


def write_calibration(calibration: Calibration) -> str:
    """Return the file's text; numbers with four digits."""
    return HEAD + "\n".join(_lines(calibration)) + "\n"


def _checked(factors: Mapping[str, float], origin: str) -> dict[str, float]:
    for name, factor in factors.items():
        if name not in DEFAULTS or factor <= 0.0:
            raise UserInputError(
                f"{origin}: {name} = {factor} is not a factor of a term", hint=f"terms: {', '.join(DEFAULTS)}"
            )
    return dict(factors)


def _measured(group: Group) -> Measured:
    return Measured(
        itl_factor=group.itl_factor, ttft_factor=group.ttft_factor, num_rows=group.num_rows, here=group.here
    )


def _spread(interval: Interval) -> Spread:
    return Spread(low=interval[0], high=interval[1])


def _lines(calibration: Calibration) -> Iterator[str]:
    yield f"format = {FORMAT}"
    yield f"source = {_quoted(calibration.source)}"
    yield f"date = {_quoted(calibration.date)}"
    yield f"num_rows = {calibration.num_rows}"
    yield f"machines = [{', '.join(map(_quoted, calibration.machines))}]"
    for name, spread in (
        ("itl_interval", calibration.itl_spread),
        ("ttft_interval", calibration.ttft_spread),
        ("measured_itl_interval", calibration.measured_itl_spread),
        ("measured_ttft_interval", calibration.measured_ttft_spread),
    ):
        yield f"{name} = [{_number(spread.low)}, {_number(spread.high)}]"
    yield from _table("common", calibration.common)
    for name, factors in sorted(calibration.engines.items()):
        yield from _table(f"engines.{_quoted(name)}", factors)
    for name, factors in sorted(calibration.kernels.items()):
        yield from _table(f"kernels.{_quoted(name)}", factors)
    for name, factors in sorted(calibration.hosts.items()):
        yield from _table(f"hosts.{_quoted(name)}", factors)
    for key, group in sorted(calibration.groups.items()):
        yield from _group(key, group)


def _table(name: str, factors: Mapping[str, float]) -> Iterator[str]:
    """Return only what differs from 1 by more than is worth a line."""
    yield f"\n[{name}]"
    yield from (f"{term} = {_number(factor)}" for term, factor in factors.items() if abs(factor - 1.0) >= 0.001)


def _group(key: tuple[str, str, str], group: Measured) -> Iterator[str]:
    yield "\n[[group]]"
    yield from (f"{name} = {_quoted(value)}" for name, value in zip(("model", "machine", "engine"), key, strict=True))
    yield f"itl_factor = {_number(group.itl_factor)}"
    yield f"ttft_factor = {_number(group.ttft_factor)}"
    yield f"num_rows = {group.num_rows}"
    if group.here:
        yield "here = true"


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
