"""How far predictions are from measurements, by group and in total, with and without having seen the group."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median

from longboat.core.errors import UserInputError
from longboat.planner.predict.calibration.calibrate import fit_constants, fit_groups, ratios_of
from longboat.planner.predict.calibration.host_fit import fit_hosts
from longboat.planner.predict.calibration.sample import Sample
from longboat.planner.predict.calibration.unseen import spread_of_parts, unseen_parts
from longboat.planner.predict.constants import Calibration, Spread

__all__ = (
    "Errors",
    "Evaluation",
    "calibrate",
    "errors_by_group",
    "evaluate",
    "evaluate_folds",
    "folds_of",
    "group_name",
    "held_out_ratios",
    "total_errors",
)

Ratio = tuple[float, float]
MIN_GROUPS_FOR_SPREAD = 4
LOW, HIGH = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors as fractions of the measured value: |predicted / measured - 1|.

    itl_bias, ttft_bias: median of predicted / measured
    """

    group: str
    num_rows: int
    itl_median_abs_error: float
    ttft_median_abs_error: float
    itl_bias: float
    ttft_bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Errors in total, by group, and of each half where halves were predicted from each other."""

    total: Errors
    groups: tuple[Errors, ...]
    folds: tuple[Errors, ...] = ()


def evaluate(samples: Sequence[Sample], calibration: Calibration) -> Evaluation:
    """Return errors of predictions with ``calibration``, with the factors of groups that it measured."""
    pairs = list(zip(samples, ratios_of(samples, calibration, groups=True), strict=True))
    return Evaluation(total=_total("all rows", pairs), groups=tuple(errors_by_group(pairs)))


def evaluate_folds(samples: Sequence[Sample], base: Calibration, salt: str = "") -> Evaluation:
    """Return errors where each half of the groups is predicted by constants fitted to the other half, from ``base``.

    salt: another one divides the groups in another way
    """
    halves = folds_of(samples, salt)
    if not all(halves):
        raise UserInputError("one group cannot be divided in two halves", hint="give rows of two groups at least")
    parts = [held_out_ratios(samples, base, [_inside(half)]) for half in halves]
    pairs = [pair for part in parts for pair in part]
    folds = tuple(_total(f"half {number}, from the other", part) for number, part in enumerate(parts, start=1))
    return Evaluation(total=_total("all rows", pairs), groups=tuple(errors_by_group(pairs)), folds=folds)


def _total(name: str, pairs: Sequence[tuple[Sample, Ratio]]) -> Errors:
    return total_errors(name, [ratio for _, ratio in pairs])


def group_name(sample: Sample) -> str:
    """Return model, hardware and engine as the file writes them, between bars."""
    return "|".join(sample.row.group)


def folds_of(samples: Iterable[Sample], salt: str = "") -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all groups in two halves, by the SHA-256 of salt and name: the smaller hashes first."""
    names = sorted(
        {group_name(sample) for sample in samples}, key=lambda name: hashlib.sha256((salt + name).encode()).hexdigest()
    )
    half = len(names) // 2
    return frozenset(names[:half]), frozenset(names[half:])


def held_out_ratios(
    samples: Sequence[Sample],
    base: Calibration,
    parts: Iterable[Callable[[Sample], bool]],
    learn: Callable[[Sequence[Sample], Calibration], Calibration] = fit_constants,
) -> list[tuple[Sample, Ratio]]:
    """Return measured / predicted of each part, predicted by constants that are fitted to all others."""
    found: list[tuple[Sample, Ratio]] = []
    for inside in parts:
        tested = [sample for sample in samples if inside(sample)]
        fitted = learn([sample for sample in samples if not inside(sample)], base)
        found += zip(tested, ratios_of(tested, fitted, groups=False), strict=True)
    return found


def total_errors(name: str, ratios: Sequence[Ratio]) -> Errors:
    """Return errors of one group or of all."""
    itl, ttft = ([1.0 / ratio for ratio in column] for column in zip(*ratios, strict=True))
    return Errors(
        group=name,
        num_rows=len(ratios),
        itl_median_abs_error=median(abs(ratio - 1.0) for ratio in itl),
        ttft_median_abs_error=median(abs(ratio - 1.0) for ratio in ttft),
        itl_bias=median(itl),
        ttft_bias=median(ttft),
    )


def errors_by_group(pairs: Iterable[tuple[Sample, Ratio]]) -> list[Errors]:
    """Return errors of each group, by name."""
    by_group: dict[str, list[Ratio]] = defaultdict(list)
    for sample, ratio in pairs:
        by_group[group_name(sample)].append(ratio)
    return [total_errors(name, ratios) for name, ratios in sorted(by_group.items())]


def calibrate(samples: Sequence[Sample], base: Calibration, *, here: bool, source: str, date: str) -> Calibration:
    """Return ``base`` fitted to the samples: constants, factors of groups, intervals where there are enough groups.

    Rows that were measured here speak for their machines alone: constants that all share stay as they are.
    """
    fitted = fit_groups(samples, fit_hosts(samples, base) if here else fit_constants(samples, base), here=here)
    fitted = replace(fitted, source=source, date=date)
    halves = folds_of(samples)
    if sum(map(len, halves)) < MIN_GROUPS_FOR_SPREAD:
        return fitted
    parts = {} if here else unseen_parts(samples, base)
    if len(parts) >= MIN_GROUPS_FOR_SPREAD:
        itl, ttft = spread_of_parts(parts, 0), spread_of_parts(parts, 1)
    else:
        learn = fit_hosts if here else fit_constants
        itl, ttft = _spreads([r for _, r in held_out_ratios(samples, base, [_inside(half) for half in halves], learn)])
    seen_itl, seen_ttft = _spreads(ratios_of(samples, fitted, groups=True))
    return replace(
        fitted, itl_spread=itl, ttft_spread=ttft, measured_itl_spread=seen_itl, measured_ttft_spread=seen_ttft
    )


def _inside(names: frozenset[str]) -> Callable[[Sample], bool]:
    return lambda sample: group_name(sample) in names


def _spreads(ratios: Sequence[Ratio]) -> tuple[Spread, Spread]:
    itl, ttft = (_spread(column) for column in zip(*ratios, strict=True))
    return itl, ttft


def _spread(ratios: Sequence[float]) -> Spread:
    """Return the middle 80 % of the ratios; always with the prediction inside."""
    logs = sorted(log(ratio) for ratio in ratios)
    low, high = logs[int(LOW * (len(logs) - 1))], logs[int(HIGH * (len(logs) - 1))]
    return Spread(low=min(1.0, exp(low)), high=max(1.0, exp(high)))
