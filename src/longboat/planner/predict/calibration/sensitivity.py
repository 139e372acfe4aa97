"""How the two predicted times of a sample change with the logarithm of each constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from longboat.planner.predict.calibration.sample import Sample
from longboat.planner.predict.queueing import interference_share, polled_steps
from longboat.planner.predict.serving import times_of

__all__ = ("Residual", "residual_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """itl, ttft: log(predicted / measured); itl_slope, ttft_slope: their derivatives by the log of each constant."""

    itl: float
    ttft: float
    itl_slope: Mapping[str, float]
    ttft_slope: Mapping[str, float]


def residual_of(sample: Sample, constants: Mapping[str, float]) -> Residual:
    """Slopes leave out that the waiting of the first token depends on how busy the engine is."""
    features, load = sample.features, sample.load
    times = times_of(features, sample.engine, load, constants)
    share = interference_share(sample.engine, load, running=features.running)
    met = constants["interference"] * share * features.prompt_busy
    held_s, lives = times.waiting * load.mean_output_tokens, 1.0 + times.waiting
    first_steps = constants["first_steps"] + polled_steps(sample.engine, load, running=features.running)
    waited_s = times.ttft_s - times.queue_s - constants["floor"] - first_steps * times.step_s
    passes = waited_s / times.prefill_s
    itl: dict[str, float] = {}
    ttft: dict[str, float] = {}
    for name, quantity in features.decode.items():
        itl[name] = constants[name] * quantity
        ttft[name] = (lives * first_steps + held_s) * itl[name]
    for name, quantity in features.prompt.items():
        part_s = constants[name] * quantity
        itl[name] = met * part_s
        ttft[name] = (lives * passes + held_s * met) * part_s
    itl["interference"] = times.itl_s - times.step_s
    ttft["interference"] = held_s * itl["interference"]
    ttft["floor"] = lives * constants["floor"]
    ttft["wait"] = lives * waited_s
    ttft["first_steps"] = lives * constants["first_steps"] * times.step_s
    return Residual(
        itl=log(times.itl_s / sample.row.itl_s),
        ttft=log(times.ttft_s / sample.row.ttft_s),
        itl_slope={name: value / times.itl_s for name, value in itl.items()},
        ttft_slope={name: value / times.ttft_s for name, value in ttft.items()},
    )
