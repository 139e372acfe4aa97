"""How well rows of models and machines are predicted of which calibration saw no row, and intervals from that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import exp, log

from longboat.planner.predict.calibration.calibrate import fit_constants, ratios_of
from longboat.planner.predict.calibration.sample import Sample
from longboat.planner.predict.constants import Calibration, Spread

__all__ = ("INSIDE", "TAILS", "Parts", "coverage", "spread_of_parts", "unseen_parts")

Ratio = tuple[float, float]
Learn = Callable[[Sequence[Sample], Calibration], Calibration]
# Measured / predicted of the rows of each model and machine.
Parts = Mapping[tuple[str, str], Sequence[tuple[Sample, Ratio]]]
# Shares of the ratios that may be outside on each side, and the share of unseen rows that is to be inside.
TAILS = (0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01)
INSIDE = 0.8


def unseen_parts(samples: Sequence[Sample], base: Calibration, learn: Learn = fit_constants) -> Parts:
    """Predict the rows of each model on each machine by constants that are fitted to other models on other machines.

    Parts for which no row is left to fit to are left out.
    """
    places: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        places[sample.model, sample.machine].append(sample)
    found: dict[tuple[str, str], Sequence[tuple[Sample, Ratio]]] = {}
    for (model, machine), rows in sorted(places.items()):
        sizes = {row.num_params for row in rows}
        others = [one for one in samples if one.num_params not in sizes and one.machine != machine]
        if others:
            ratios = ratios_of(rows, learn(others, base), groups=False)
            found[model, machine] = list(zip(rows, ratios, strict=True))
    return found


def spread_of_parts(parts: Parts, which: int) -> Spread:
    """Return the interval for rows of a further model on a further machine. which: 0 for ITL, 1 for TTFT.

    Rows of one part err alike. The tails are therefore chosen so that an interval from all other parts holds 8 of 10
    rows of each.
    """
    tail = min(TAILS, key=lambda tail: abs(coverage(parts, which, tail) - INSIDE))
    return _spread([ratio[which] for rows in parts.values() for _, ratio in rows], tail)


def coverage(parts: Parts, which: int, tail: float) -> float:
    """Return the share of rows that lie in an interval from the rows of all other parts."""
    inside = total = 0
    for name, rows in parts.items():
        others = [ratio[which] for other, pairs in parts.items() if other != name for _, ratio in pairs]
        if others:
            told = _spread(others, tail)
            inside += sum(told.low <= ratio[which] <= told.high for _, ratio in rows)
            total += len(rows)
    return inside / total if total else 0.0


def _spread(ratios: Sequence[float], tail: float) -> Spread:
    """Return the ratios between the tails; always with the prediction inside."""
    logs = sorted(map(log, ratios))
    low, high = logs[int(tail * (len(logs) - 1))], logs[round((1.0 - tail) * (len(logs) - 1))]
    return Spread(low=min(1.0, exp(low)), high=max(1.0, exp(high)))
