"""A roofline with three constants: the baseline beside which the time model is held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from statistics import median

from longboat.planner.predict.calibration.sample import Sample

__all__ = ("roofline_ratios",)

# Inverse shares of the bandwidth and of the peak, and seconds of a layer: tried values, of which the best are taken.
READ, MULTIPLY, LAYER_S = (1.2, 1.5, 2.0, 3.0), (1.3, 1.8, 2.5, 4.0), (0.0, 3e-5, 6e-5, 1e-4, 1.5e-4)
WAVES = 10.0


@dataclass(frozen=True, slots=True)
class _Roof:
    """Sums of one row."""

    read_s: float
    multiply_s: float
    layers: float
    prompt_s: float
    running: float
    output_tokens: float
    itl_s: float
    ttft_s: float

    def ratios(self, read: float, multiply: float, layer_s: float) -> tuple[float, float]:
        """Return measured / predicted ITL and TTFT."""
        step_s = max(read * self.read_s, multiply * self.multiply_s) + layer_s * self.layers
        prompt_s = multiply * self.prompt_s + layer_s * self.layers
        itl_s = step_s + (self.running - 1.0) * prompt_s / self.output_tokens
        ttft_s = step_s + prompt_s * (1.0 + self.running / (2.0 * WAVES))
        return self.itl_s / itl_s, self.ttft_s / ttft_s


def roofline_ratios(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return measured / predicted of each row, by constants fitted to other models on other machines."""
    roofs = [(sample, _roof(sample)) for sample in samples]
    known: dict[tuple[int, str], tuple[float, float, float]] = {}
    found = []
    for sample, roof in roofs:
        key = sample.num_params, sample.machine
        if key not in known:
            known[key] = _fitted(
                [one for other, one in roofs if other.num_params != key[0] and other.machine != key[1]]
            )
        found.append(roof.ratios(*known[key]))
    return found


def _roof(sample: Sample) -> _Roof:
    decode, prompt = sample.features.decode, sample.features.prompt
    return _Roof(
        _sum(decode, "decode_read"),
        _sum(decode, "decode_multiply") + decode.get("decode_attend", 0.0),
        decode.get("decode_layer", 0.0),
        _sum(prompt, "prefill_multiply") + prompt.get("prefill_attend", 0.0),
        sample.features.running,
        sample.load.mean_output_tokens,
        sample.row.itl_s,
        sample.row.ttft_s,
    )


def _sum(quantities: Mapping[str, float], start: str) -> float:
    return sum(value for name, value in quantities.items() if name.startswith(start))


def _fitted(roofs: Sequence[_Roof]) -> tuple[float, float, float]:
    """Return the constants with the least median errors of ITL and TTFT together."""
    return min(product(READ, MULTIPLY, LAYER_S), key=lambda constants: _error(roofs, constants))


def _error(roofs: Sequence[_Roof], constants: tuple[float, float, float]) -> float:
    pairs = [roof.ratios(*constants) for roof in roofs]
    return sum(median(abs(log(ratio)) for ratio in column) for column in zip(*pairs, strict=True))
