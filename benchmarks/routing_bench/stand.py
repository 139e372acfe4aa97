"""One run of the benchmark of routing: a fleet, a load, a policy, and the figures of the requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from longboat.routing.policies.registry import policy_of
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.fleet.fleet import Fleet, FleetEvent, Replica
from longboat.simulator.fleet.simulation import simulate
from longboat.simulator.results.result import quantile
from longboat.simulator.traces.formats import reader_for
from longboat.simulator.traces.shaping import shaped
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("KV_TOKENS", "SEEDED_SPEED", "Figures", "infinite_share", "load_of", "play", "trace_in")

# Llama-3.1-8B in bfloat16 on one H100 with 80 GB: 16 GB of weights at 2.7 TB/s and a millisecond of overhead a step;
# 16 GFLOP a prompt token at 530 TFLOP/s; 524 kFLOP a pair of tokens at 400 TFLOP/s; 131 kB of KV cache a token.
TIME = StepTime(base_s=7e-3, prompt_token_s=3e-5, prompt_pair_s=1.3e-9, sequence_s=2e-5, kv_token_s=4.9e-8)
KV_TOKENS = 410_000  # what the weights and activations leave of 80 GB
BLOCK_TOKENS = 16
SEEDED_SPEED = 0.15  # steps of each replica take up to this part more or less, by the seed
JITTER = 2.0  # requests come up to this number of mean gaps later, by the seed

Load = Callable[[int], Iterable[TraceRequest]]
"""Makes the requests for a seed."""


@dataclass(frozen=True)
class Figures:
    """What the requests of one run saw, in milliseconds."""

    mean: float
    p50: float
    p99: float
    itl: float
    cached_share: float
    requests: int


def play(
    policy: str, load: Load, seed: int, *, replicas: int, gateways: int = 1, kv_tokens: int = KV_TOKENS,
    events: Sequence[FleetEvent] = (), joins_s: float = 0.0, spread: float = SEEDED_SPEED,
) -> Figures:  # fmt: skip
    """Play a load. joins_s: when the last replica joins"""
    draw = random.Random(seed)
    limits = EngineLimits(kv_blocks=kv_tokens // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS)
    specs = tuple(
        Replica(
            key=f"replica-{at}",
            time=TIME,
            limits=limits,
            slowness=draw.uniform(1 - spread, 1 + spread),
            joins_s=joins_s if at == replicas - 1 else 0.0,
        )
        for at in range(replicas)
    )
    fleet = Fleet(replicas=specs, gateways=gateways, events=tuple(events))
    result = simulate(fleet, load(seed), lambda: policy_of(policy), seed=seed)
    return Figures(
        mean=1e3 * result.mean_ttft_s,
        p50=1e3 * quantile(result.ttft_s, 0.5),
        p99=1e3 * quantile(result.ttft_s, 0.99),
        itl=1e3 * result.itl_s.mean,
        cached_share=result.cached_share,
        requests=result.requests,
    )


def trace_in(folder: Path, word: str) -> Path:
    """Return the trace in a folder whose name contains a word."""
    found = sorted(path for path in folder.iterdir() if word in path.name.lower())
    if not found:
        raise SystemExit(f"{folder} has no trace whose name contains {word!r}")
    return found[0]


def load_of(path: Path, rate: float, requests: int) -> Load:
    """Make the load of a trace that is played at a mean rate, in requests a second."""
    with path.open() as file:
        reader = reader_for(file.readline(), path.name)

    def read(salt: int) -> Iterator[TraceRequest]:
        with path.open() as file:
            yield from reader(file, path.name, salt)

    span_s = max(request.at_s for request in shaped(read, requests=requests))
    scale = rate * span_s / requests
    return lambda seed: shaped(read, rate_scale=scale, requests=requests, jitter_s=JITTER / rate, seed=seed)


def infinite_share(requests: Iterable[TraceRequest]) -> float:
    """Return the part of the prompts' tokens that one cache without end would have."""
    seen: set[bytes] = set()
    tokens = cached = 0
    for request in requests:
        names = [request.blocks[at : at + 8] for at in range(0, len(request.blocks), 8)]
        depth = next((depth for depth, name in enumerate(names) if name not in seen), len(names))
        seen.update(names)
        tokens += request.prompt_tokens
        cached += min(request.ends[depth - 1], request.prompt_tokens - 1) if depth else 0
    return cached / max(1, tokens)


def figures_document(figures: Figures) -> dict[str, float]:
    """Return the figures as a document."""
    return asdict(figures)
