"""The loads that fleets are scaled for: traces, and shapes with the lengths of Azure's requests."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from longboat.core.scaling import Objective
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.traces.azure import read_azure
from longboat.simulator.traces.mooncake import read_mooncake
from longboat.simulator.traces.shaping import shaped
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("SHAPES", "Load", "Rate", "drawn", "loads_of", "read_lengths", "read_uncached")

AZURE = "AzureLLMInferenceTrace_2023_conv.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl"


@dataclass(frozen=True)
class Load:
    """Requests, and the replicas that are to serve them."""

    name: str
    requests: list[TraceRequest]
    time: StepTime
    limits: EngineLimits
    objective: Objective
    begin_s: float = 1_800_000_000.0  # Unix seconds of its first moment
    tick_s: float = 1.0  # between two decisions


# A replica for Azure's requests: about 25 ms a token, and 5,000 prompt tokens a second.
SMALL = StepTime(base_s=0.02, prompt_token_s=2e-4, sequence_s=5e-4, kv_token_s=2e-7)
SMALL_LIMITS = EngineLimits(kv_blocks=8000, max_num_seqs=64, max_num_batched_tokens=2048, prefix_caching=False)
SMALL_OBJECTIVE = Objective(ttft_ms=2000.0, itl_ms=100.0)
# Ten times as slow, so that days have fewer requests; decisions come each 5 s there.
SLOW = StepTime(base_s=0.2, prompt_token_s=2e-3, sequence_s=5e-3, kv_token_s=2e-6)
SLOW_OBJECTIVE = Objective(ttft_ms=20_000.0, itl_ms=1000.0)
# A replica for Mooncake's, whose prompts are ten times as long: 33,000 prompt tokens a second.
LARGE = StepTime(base_s=0.02, prompt_token_s=3e-5, prompt_pair_s=2e-10, sequence_s=4e-4, kv_token_s=3e-8)
LARGE_LIMITS = EngineLimits(kv_blocks=60_000, max_num_seqs=64, max_num_batched_tokens=2048, prefix_caching=False)
LARGE_OBJECTIVE = Objective(ttft_ms=5000.0, itl_ms=150.0)


SHAPES = ("square", "ramp", "spike", "flapping", "flood", "season", "wrong")


def loads_of(folder: Path, *, quick: bool, only: Collection[str] = ()) -> Iterator[Load]:
    """Yield the loads: two traces at several rates, then shapes. only: their names; empty: all"""
    span_s = 1800.0 if quick else 3400.0
    for rate in (1.0, 8.0) if quick else (0.6, 3.0, 10.0):
        if not only or f"azure x{rate:g}" in only:
            yield _azure(folder, rate, span_s)
    for rate in (1.0,) if quick else (0.8, 3.0, 8.0):
        if not only or f"mooncake x{rate:g}" in only:
            yield _mooncake(folder, rate, span_s)
    lengths = [(one.prompt_tokens, one.output_tokens) for one in read_lengths(folder / AZURE)]
    for name, (rate_at, shape_s) in _shapes(quick=quick).items():
        if not only or name in only:
            yield _shaped(name, lengths, rate_at, shape_s)


def _azure(folder: Path, rate: float, span_s: float) -> Load:
    found = shaped(
        lambda salt: iter(read_lengths(folder / AZURE)), rate_scale=rate, requests=round(5.53 * rate * span_s)
    )
    return Load(f"azure x{rate:g}", list(found), SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)


def _mooncake(folder: Path, rate: float, span_s: float) -> Load:
    kept = shaped(
        lambda salt: iter(read_uncached(folder / MOONCAKE)), rate_scale=rate, requests=round(3.4 * rate * span_s)
    )
    return Load(f"mooncake x{rate:g}", list(kept), LARGE, LARGE_LIMITS, LARGE_OBJECTIVE)


def read_lengths(path: Path) -> list[TraceRequest]:
    """Return the requests of Azure's trace."""
    with path.open() as lines:
        return list(read_azure(lines, path.name))


def read_uncached(path: Path) -> list[TraceRequest]:
    """Return the requests with the part of each prompt that no earlier one shared, as if caches were endless."""
    known: set[bytes] = set()
    found = []
    with path.open() as lines:
        for one in read_mooncake(lines, path.name):
            names = [one.blocks[at : at + 8] for at in range(0, len(one.blocks), 8)]
            hits = next((at for at, name in enumerate(names) if name not in known), len(names))
            known.update(names)
            tokens = max(64, one.prompt_tokens - hits * 512)
            found.append(TraceRequest(one.at_s, tokens, one.output_tokens))
    return found


Rate = Callable[[float], float]


def _shapes(*, quick: bool) -> dict[str, tuple[Rate, float]]:
    """Return requests per second over time by name, and how long each goes on."""
    hour, day = 3600.0, 86_400.0
    flat = 4.85  # the edge between three and four replicas
    found: dict[str, tuple[Rate, float]] = {
        "square": (lambda t: 20.0 if t % 1200.0 >= 600.0 else 4.0, 2 * hour),
        "ramp": (lambda t: 3.0 + 17.0 * min(1.0, t / (1.5 * hour)), 2 * hour),
        "spike": (lambda t: 30.0 if 1800.0 <= t < 2100.0 else 5.0, 1.2 * hour),
        "flapping": (lambda t: flat * (1.15 if t % 120.0 >= 60.0 else 0.85), 2 * hour),
        "flood": (lambda t: 6.0 + (24.0 if 1200.0 <= t < 3000.0 else 0.0), 1.5 * hour),
    }
    if not quick:
        found["season"] = (lambda t: 0.1 + 0.9 * _day(t), 3 * day)
        found["wrong"] = (lambda t: 0.1 + 0.9 * (_day(t) if t < 2 * day else _day(t + day / 2)), 3 * day)
    return found


def _day(at_s: float) -> float:
    return max(0.0, -math.cos(2 * math.pi * at_s / 86_400.0)) ** 1.5


def drawn(seed: str, lengths: list[tuple[int, int]], rate_at: Rate, span_s: float) -> list[TraceRequest]:
    """Return requests of an uneven Poisson process."""
    draw = random.Random(seed)
    most = max(rate_at(float(at)) for at in range(0, int(span_s), 5))
    found, at_s = [], 0.0
    while (at_s := at_s + draw.expovariate(most)) < span_s:
        if draw.random() * most < rate_at(at_s):
            prompt, output = lengths[draw.randrange(len(lengths))]
            found.append(TraceRequest(at_s, prompt, output))
    return found


def _shaped(name: str, lengths: list[tuple[int, int]], rate_at: Rate, span_s: float) -> Load:
    """Return requests with lengths of the trace; those of days for slow engines."""
    found = drawn(name, lengths, rate_at, span_s)
    if span_s > 86_400.0:
        return Load(name, found, SLOW, SMALL_LIMITS, SLOW_OBJECTIVE, tick_s=5.0)
    return Load(name, found, SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)
