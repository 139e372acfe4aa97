"""Reads the Prometheus text format, as far as the gauges and counters of engines need it.

Source: Prometheus text exposition format 0.0.4. A histogram becomes ``_bucket``, ``_sum`` and ``_count`` samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ("KV_USAGE", "REQUESTS", "Sample", "largest_of", "read_samples", "total_of")

REQUESTS = {
    "vllm:num_requests_running": "vllm:num_requests_waiting",
    "sglang:num_running_reqs": "sglang:num_queue_reqs",
    "llamacpp:requests_processing": "llamacpp:requests_deferred",
    "tgi_batch_current_size": "tgi_queue_size",
}
"""The gauges of engines that a gateway meets: requests that run → those that wait in the engine."""

KV_USAGE = ("vllm:kv_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio")
"""The gauges that say which part of its KV cache an engine uses, 0 to 1."""

_LINE = re.compile(r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line: a metric, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_samples(text: str) -> Iterator[Sample]:
    """Yield all samples of ``text``; skip comments and lines that are not samples."""
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None or (value := _number(match["value"])) is None:
            continue
        yield Sample(name=match["name"], labels=_labels(match["labels"] or ""), value=value)


def total_of(samples: Iterable[Sample], name: str) -> float | None:
    """Sum ``name`` over all label sets; None where the engine does not publish it."""
    values = _values(samples, name)
    return sum(values) if values else None


def largest_of(samples: Iterable[Sample], name: str) -> float | None:
    """Return the largest value of ``name`` over its label sets; None where the engine does not publish it."""
    return max(_values(samples, name), default=None)


def _values(samples: Iterable[Sample], name: str) -> list[float]:
    return [sample.value for sample in samples if sample.name == name and math.isfinite(sample.value)]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPED.sub(_unescape, value) for name, value in _LABEL.findall(text)}


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
