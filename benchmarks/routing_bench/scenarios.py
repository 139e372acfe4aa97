"""Situations in which policies go wrong: bursts, hot prompts, replicas that join, are slow or forget, gateways."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from longboat.routing.policies.registry import POLICIES
from longboat.simulator.fleet.fleet import FleetEvent
from longboat.simulator.traces.block_names import chained_names, even_ends
from longboat.simulator.traces.trace_request import TraceRequest
from routing_bench.grid import TRACES, Row, saturation
from routing_bench.kept import Kept
from routing_bench.stand import KV_TOKENS, Figures, Load, infinite_share, load_of, play, trace_in

__all__ = ("ROOMY", "roomy_share", "run_scenarios")

REPLICAS = 8
BURSTS = 16  # times as many seeds of a burst: it is short, and its p99 is the chance of one or two other requests
BLOCK = 512
ROOMY = 20  # times the usual KV cache: a tier in host memory or on disks, where memory allows


def run_scenarios(folder: Path, requests: int, seeds: int, kept: Kept, policies: Sequence[str] = POLICIES) -> list[Row]:
    """Run all policies in all scenarios."""
    path = trace_in(folder, "mooncake")
    rate = 0.8 * saturation(path, REPLICAS, TRACES["mooncake"], requests, kept)
    trace = load_of(path, rate, requests)
    half_s = 0.5 * requests / rate
    plays: dict[str, Callable[[str, int], Figures]] = {
        "burst": lambda policy, seed: play(policy, burst, seed, replicas=REPLICAS),
        "burst at any moment": lambda policy, seed: play(policy, burst_at_any_moment, seed, replicas=REPLICAS),
        "hot prompt": lambda policy, seed: play(policy, hot_prompt, seed, replicas=REPLICAS),
        "cold replica joins": lambda policy, seed: play(policy, trace, seed, replicas=REPLICAS, joins_s=half_s / 2),
        "half speed": _with_event(trace, FleetEvent(at_s=half_s / 2, key="replica-0", kind="slow", slowness=2.0)),
        "evicts everything": _with_event(trace, FleetEvent(at_s=half_s, key="replica-0", kind="clear")),
        "four gateways": lambda policy, seed: play(policy, trace, seed, replicas=REPLICAS, gateways=4),
    }
    rows: list[Row] = []
    for name, make in plays.items():
        for policy in policies:
            figures = tuple(
                kept.get(
                    f"{name} {requests} seed {seed}",
                    policy,
                    lambda policy=policy, seed=seed, make=make: make(policy, seed),
                )
                for seed in range(1, seeds * (BURSTS if "burst" in name else 1) + 1)
            )
            rows.append(Row(name, policy, figures))
    return rows


def roomy_share(folder: Path, requests: int, seeds: int, kept: Kept) -> tuple[float, float]:
    """Return the cached share of our policy at half load where memory allows all, and that of an infinite cache.

    Both are means of the seeds: one run differs from the next by up to a percent.
    """
    path = trace_in(folder, "mooncake")
    rate = 0.5 * saturation(path, REPLICAS, TRACES["mooncake"], requests, kept)
    load = load_of(path, rate, requests)
    runs = [play("cost", load, seed, replicas=REPLICAS, kv_tokens=ROOMY * KV_TOKENS) for seed in range(1, seeds + 1)]
    return (
        fmean(run.cached_share for run in runs),
        fmean(infinite_share(load(seed)) for seed in range(1, seeds + 1)),
    )


def _with_event(load: Load, event: FleetEvent) -> Callable[[str, int], Figures]:
    return lambda policy, seed: play(policy, load, seed, replicas=REPLICAS, events=(event,))


def _request(at_s: float, shared: int, suffix: int, name: int, output: int) -> TraceRequest:
    """Make a request with ``shared`` tokens that all have and a suffix of its own."""
    blocks = [*range(shared // BLOCK), *(name << 20 | part for part in range(-(-suffix // BLOCK)))]
    tokens = shared // BLOCK * BLOCK + suffix
    ends = [*even_ends(shared, BLOCK)[: shared // BLOCK], *(shared + end for end in even_ends(suffix, BLOCK))]
    return TraceRequest(at_s, tokens, output, blocks=chained_names(blocks), ends=ends)


def burst(seed: int, offset_s: float = 0.0) -> Iterator[TraceRequest]:
    """300 requests with one new prefix of 8,192 tokens within 100 ms, upon a light load of others.

    offset_s: by which the light load comes later; with 0, one of its requests comes at the burst's very beginning
    """
    draw = random.Random(seed)
    times = sorted(10.0 + draw.random() * 0.1 for _ in range(300))
    others = (_request(at / 4 + offset_s, 0, draw.randrange(500, 3000), 1000 + at, 150) for at in range(80))
    ours = (_request(at_s, 8192, 128, 2000 + number, 64) for number, at_s in enumerate(times))
    yield from sorted([*others, *ours], key=lambda request: request.at_s)


def burst_at_any_moment(seed: int) -> Iterator[TraceRequest]:
    """Make the burst with the light load at another moment for each seed."""
    return burst(seed, random.Random(~seed).random() / 4)


def hot_prompt(seed: int) -> Iterator[TraceRequest]:
    """4,000 requests that all share 6,144 tokens, 160 each second."""
    draw = random.Random(seed)
    at_s = 0.0
    for number in range(4000):
        at_s += draw.expovariate(160.0)
        yield _request(at_s, 6144, draw.randrange(100, 900), 1000 + number, draw.randrange(50, 250))
