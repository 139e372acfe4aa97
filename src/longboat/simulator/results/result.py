"""What one run of the twin gave."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from longboat.simulator.results.histogram import Histogram

__all__ = ("ReplicaResult", "Result", "quantile", "quantiles")


@dataclass(kw_only=True)
class ReplicaResult:
    """What one replica did."""

    key: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    busy_s: float = 0.0


@dataclass(kw_only=True)
class Result:
    """What the requests of a run saw. The arrays have one value for each request, in the order of first tokens."""

    policy: str
    arrived_s: array[float] = field(default_factory=lambda: array("d"))
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    queue_s: Histogram = field(default_factory=Histogram)  # time in the gateway's queue
    itl_s: Histogram = field(default_factory=Histogram)  # between one token and the next
    e2e_s: Histogram = field(default_factory=Histogram)  # from arrival to the last token
    requests: int = 0  # that ended with all of their output
    rejected: int = 0  # that the gateway's queue refused, or that waited too long in it or for a replica
    too_long: int = 0  # that no replica's cache can hold
    good: int = 0  # that ended within the objectives
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    retries: int = 0
    span_s: float = 0.0  # from the first arrival to the end of the last request
    replicas: list[ReplicaResult] = field(default_factory=list)

    @property
    def cached_share(self) -> float:
        """Return the part of the prompts' tokens that was found in the caches."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def mean_ttft_s(self) -> float:
        return sum(self.ttft_s) / len(self.ttft_s) if self.ttft_s else 0.0


def quantiles(values: Sequence[float], parts: Sequence[float]) -> list[float]:
    """Return quantiles of values, each between the two nearest; 0 without values."""
    if not values:
        return [0.0] * len(parts)
    ordered = sorted(values)
    found = []
    for part in parts:
        place = part * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found.append(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
    return found


def quantile(values: Sequence[float], part: float) -> float:
    """Return one quantile of values; 0 without values."""
    return quantiles(values, (part,))[0]
