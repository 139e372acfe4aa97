"""Learning the constants from measured rows.

Each constant is a default times factors: one common, one of the engine, one of the kind of kernels. Their logarithms
are found by Gauss-Newton steps, level after level, on the errors of log times with a loss that rows which are far off
do not rule, and held near zero by a penalty: what rows do not tell stays as it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median

from longboat.planner.predict.calibration.linear import solve_positive
from longboat.planner.predict.calibration.sample import Sample
from longboat.planner.predict.calibration.sensitivity import residual_of
from longboat.planner.predict.constants import Calibration, Measured
from longboat.planner.predict.serving import times_of
from longboat.planner.predict.terms import DECODE, PREFILL, TERMS, Term

__all__ = ("fit_constants", "fit_groups", "ratios_of", "sample_weights")

STIFFNESS = {term.name: term.stiffness for term in TERMS}
SWEEPS = 12
MAX_STEP, DAMPING, SMALL_STEP = 0.5, 0.8, 0.01
# Errors much larger than these count less and less (Cauchy's loss): what repeats of one measurement differ by, twice.
ITL_NOISE, TTFT_NOISE = 0.1, 0.25
ITL_WEIGHT, TTFT_WEIGHT = 0.1, 0.125
PENALTY = 0.05
# The penalty is that of at least this number of rows, so that few rows move little.
MIN_ROWS = 200.0
# A group's factor is held near 1 as if by this number of rows.
GROUP_PRIOR_ROWS = 2.0

Level = Callable[[Sample], str]
Factors = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class _Level:
    name: str
    key: Level
    stiffness: float
    terms: tuple[Term, ...] = TERMS


# How an engine schedules does not depend on its kernels: those have factors for the terms of a pass alone.
LEVELS = (
    _Level("common", lambda sample: "", 0.3),
    _Level("engines", lambda sample: sample.engine.name, 1.0),
    _Level("kernels", lambda sample: sample.kernel, 3.0, (*DECODE, *PREFILL)),
)


def fit_constants(samples: Sequence[Sample], base: Calibration) -> Calibration:
    """Return ``base`` with factors that suit the samples better; groups and intervals are left as they are."""
    if not samples:
        return base
    weights = sample_weights(samples)
    learned: dict[str, Factors] = {level.name: defaultdict(lambda: defaultdict(float)) for level in LEVELS}
    penalty = PENALTY * max(MIN_ROWS, len(samples))
    for _ in range(SWEEPS):
        moved = max(_sweep(level, samples, weights, base, learned, penalty) for level in LEVELS)
        if moved < SMALL_STEP:
            break
    return replace(
        base,
        common=_merged({"": base.common}, learned["common"])[""],
        engines=_merged(base.engines, learned["engines"]),
        kernels=_merged(base.kernels, learned["kernels"]),
        machines=tuple(sorted({*base.machines, *(sample.machine for sample in samples)})),
        num_rows=base.num_rows + len(samples),
    )


def sample_weights(samples: Sequence[Sample]) -> list[float]:
    """Weigh samples: a repeated one counts once, a group as the square root of its rows. The mean is 1."""
    same = Counter(_measurement(sample) for sample in samples)
    single = [1.0 / same[_measurement(sample)] for sample in samples]
    of_group: dict[tuple[str, str, str], float] = defaultdict(float)
    for sample, weight in zip(samples, single, strict=True):
        of_group[sample.row.group] += weight
    weights = [weight / of_group[sample.row.group] ** 0.5 for sample, weight in zip(samples, single, strict=True)]
    scale = len(weights) / sum(weights)
    return [weight * scale for weight in weights]


def fit_groups(samples: Sequence[Sample], calibration: Calibration, *, here: bool) -> Calibration:
    """Return ``calibration`` with a factor for each group of the samples, by the median of what the model leaves."""
    ratios: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample, ratio in zip(samples, ratios_of(samples, calibration, groups=False), strict=True):
        ratios[sample.key].append(ratio)
    groups = dict(calibration.groups)
    for key, pairs in ratios.items():
        trust = len(pairs) / (len(pairs) + GROUP_PRIOR_ROWS)
        itl, ttft = (median(log(ratio) for ratio in column) for column in zip(*pairs, strict=True))
        groups[key] = Measured(
            itl_factor=exp(trust * itl), ttft_factor=exp(trust * ttft), num_rows=len(pairs), here=here
        )
    return replace(calibration, groups=groups)


def ratios_of(samples: Iterable[Sample], calibration: Calibration, *, groups: bool) -> list[tuple[float, float]]:
    """Return measured / predicted of ITL and TTFT of each sample. groups: with the factors of measured groups."""
    found = []
    for sample in samples:
        constants = calibration.constants(engine=sample.engine.name, kernel=sample.kernel, machine=sample.machine)
        times = times_of(sample.features, sample.engine, sample.load, constants)
        group = calibration.groups.get(sample.key) if groups else None
        itl_s, ttft_s = times.scaled(group.itl_factor, group.ttft_factor) if group else (times.itl_s, times.ttft_s)
        found.append((sample.row.itl_s / itl_s, sample.row.ttft_s / ttft_s))
    return found


def _measurement(sample: Sample) -> tuple[object, ...]:
    row = sample.row
    return row.hardware, row.tensor, row.concurrency, row.prompt_tokens, round(row.itl_s, 5), round(row.ttft_s, 3)


def _sweep(
    level: _Level,
    samples: Sequence[Sample],
    weights: Sequence[float],
    base: Calibration,
    learned: dict[str, Factors],
    penalty: float,
) -> float:
    """Move the factors of one level once, and return the largest step."""
    blocks: dict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        blocks[level.key(sample)].append(index)
    moved = 0.0
    for key, members in blocks.items():
        found = learned[level.name][key]
        system = _System(level.terms, found, penalty * level.stiffness)
        for index in members:
            system.add(samples[index], weights[index], _constants(samples[index], base, learned))
        for name, step in system.steps().items():
            found[name] += step
            moved = max(moved, abs(step))
    return moved


def _constants(sample: Sample, base: Calibration, learned: dict[str, Factors]) -> dict[str, float]:
    constants = dict(base.constants(engine=sample.engine.name, kernel=sample.kernel))
    for level in LEVELS:
        for name, value in learned[level.name][level.key(sample)].items():
            constants[name] *= exp(value)
    return constants


class _System:
    """The normal equations of one block: penalised least squares, reweighted by the errors."""

    def __init__(self, terms: Sequence[Term], current: Mapping[str, float], penalty: float) -> None:
        self.names = [term.name for term in terms]
        self.places = {name: place for place, name in enumerate(self.names)}
        held = [penalty * STIFFNESS[name] for name in self.names]
        self.matrix = [[held[i] if i == j else 0.0 for j in range(len(held))] for i in range(len(held))]
        self.right = [-hold * current.get(name, 0.0) for hold, name in zip(held, self.names, strict=True)]

    def add(self, sample: Sample, weight: float, constants: Mapping[str, float]) -> None:
        residual = residual_of(sample, constants)
        self._add(residual.itl, residual.itl_slope, weight * ITL_WEIGHT / (ITL_NOISE**2 + residual.itl**2))
        self._add(residual.ttft, residual.ttft_slope, weight * TTFT_WEIGHT / (TTFT_NOISE**2 + residual.ttft**2))

    def _add(self, error: float, slope: Mapping[str, float], weight: float) -> None:
        terms = [(self.places[name], value) for name, value in slope.items() if value and name in self.places]
        for i, left in terms:
            row, scaled = self.matrix[i], weight * left
            self.right[i] -= scaled * error
            for j, right in terms:
                row[j] += scaled * right

    def steps(self) -> dict[str, float]:
        found = solve_positive(self.matrix, self.right)
        clipped = (max(-MAX_STEP, min(MAX_STEP, step)) * DAMPING for step in found)
        return dict(zip(self.names, clipped, strict=True))


def _merged(base: Mapping[str, Mapping[str, float]], learned: Factors) -> dict[str, dict[str, float]]:
    merged = {key: dict(factors) for key, factors in base.items()}
    for key, logs in learned.items():
        factors = merged.setdefault(key, {})
        for name, value in logs.items():
            factors[name] = factors.get(name, 1.0) * exp(value)
    return merged
