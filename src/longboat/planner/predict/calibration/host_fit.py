"""Learning how one's own machines differ from what the constants say, from few rows.

All decode terms of a machine move by one factor first, all of its prompts by another: the middle of what the rows say.
Then each term apart, as far as rows tell them apart: Gauss-Newton steps on the errors of log times, with a loss that
rows which are far off do not rule, held near the first factors as by a prior that allows a factor of two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from statistics import median

from longboat.planner.predict.calibration.linear import solve_positive
from longboat.planner.predict.calibration.sample import Sample
from longboat.planner.predict.calibration.sensitivity import residual_of
from longboat.planner.predict.constants import Calibration, Factors, host_name
from longboat.planner.predict.serving import times_of
from longboat.planner.predict.terms import DECODE, LOAD, PREFILL

__all__ = ("fit_hosts",)

SWEEPS, MAX_STEP, SMALL_STEP = 30, 0.5, 1e-4
ITL_NOISE, TTFT_NOISE = 0.05, 0.2
# A term may be off by this logarithm as likely as rows are off by their noise.
PRIOR = 0.7
SHARED_PRIOR = 0.1
NAMES = tuple(term.name for term in (*DECODE, *PREFILL, *LOAD))
# Terms of waiting are the engine's, not the machine's.
HELD = {"interference": SHARED_PRIOR, "wait": SHARED_PRIOR}
# Rows of one rank say nothing about links: what those need moves by rows that cross one.
DECODE_NAMES = frozenset(term.name for term in DECODE if "_link_" not in term.name)
PREFILL_NAMES = frozenset(term.name for term in PREFILL if "_link_" not in term.name)


def fit_hosts(samples: Sequence[Sample], base: Calibration) -> Calibration:
    """Return ``base`` with factors for each machine and engine of the samples; everything else stays as it is."""
    by_host: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_host[host_name(sample.machine, sample.engine.name)].append(sample)
    hosts = {**base.hosts, **{name: _host(members, base) for name, members in by_host.items()}}
    return replace(base, hosts=hosts, num_rows=base.num_rows + len(samples))


def _host(samples: Sequence[Sample], base: Calibration) -> Factors:
    known = base.hosts.get(host_name(samples[0].machine, samples[0].engine.name), {})
    logs = {name: log(known.get(name, 1.0)) for name in NAMES}
    start = {name: value + shift for (name, value), shift in zip(logs.items(), _shifts(samples, base), strict=True)}
    found = dict(start)
    for _ in range(SWEEPS):
        steps = _steps(samples, base, found, start)
        for name, step in zip(NAMES, steps, strict=True):
            found[name] += max(-MAX_STEP, min(MAX_STEP, step))
        if max(map(abs, steps)) < SMALL_STEP:
            break
    return {name: exp(value) for name, value in found.items()}


def _shifts(samples: Sequence[Sample], base: Calibration) -> list[float]:
    """Return for each term the median logarithm of measured / predicted: of ITL, or of TTFT.

    Rows that cross no link are asked alone where there are any.
    """
    pairs, alone = [], [sample for sample in samples if sample.row.tensor * sample.row.pipeline == 1]
    for sample in alone or samples:
        times = times_of(sample.features, sample.engine, sample.load, _constants(sample, base, {}))
        pairs.append((log(sample.row.itl_s / times.itl_s), log(sample.row.ttft_s / times.ttft_s)))
    itl, ttft = (median(column) for column in zip(*pairs, strict=True))
    return [itl if name in DECODE_NAMES else ttft if name in PREFILL_NAMES else 0.0 for name in NAMES]


def _constants(sample: Sample, base: Calibration, logs: Mapping[str, float]) -> dict[str, float]:
    """Return the constants. logs: of the host's factors, which replace those that it has."""
    constants = base.constants(engine=sample.engine.name, kernel=sample.kernel, machine="" if logs else sample.machine)
    return {name: value * exp(logs.get(name, 0.0)) for name, value in constants.items()}


def _steps(
    samples: Sequence[Sample], base: Calibration, found: Mapping[str, float], start: Mapping[str, float]
) -> list[float]:
    held = [1.0 / HELD.get(name, PRIOR) ** 2 for name in NAMES]
    matrix = [[held[i] if i == j else 0.0 for j in range(len(NAMES))] for i in range(len(NAMES))]
    right = [-hold * (found[name] - start[name]) for hold, name in zip(held, NAMES, strict=True)]
    for sample in samples:
        residual = residual_of(sample, _constants(sample, base, found))
        _add(matrix, right, residual.itl, residual.itl_slope, ITL_NOISE)
        _add(matrix, right, residual.ttft, residual.ttft_slope, TTFT_NOISE)
    return solve_positive(matrix, right)


def _add(matrix: list[list[float]], right: list[float], error: float, slope: Mapping[str, float], noise: float) -> None:
    weight = 1.0 / (noise**2 + error**2)
    slopes = [slope.get(name, 0.0) for name in NAMES]
    for i, left in enumerate(slopes):
        if left:
            right[i] -= weight * left * error
            for j, other in enumerate(slopes):
                matrix[i][j] += weight * left * other
