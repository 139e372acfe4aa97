"""Compares the twin with engines: the same load through a real gateway to real processes, and through the simulation.

``bench_twin.py --part fake`` plays it on fake engines that batch continuously, ``--part vllm`` on a real vLLM with the
built-in model on CPUs. First the terms of a step are measured with a few requests; then the load is played. It prints
quantiles of TTFT and ITL of both, and the ratio of the twin's to the measured one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from twin_stand import Seen, ask, conversations, fake_engines, gateway, play, real_engine

from longboat.routing.policies.registry import policy_of
from longboat.simulator.engine.engine import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.fleet.fleet import Fleet, even_fleet
from longboat.simulator.fleet.simulation import simulate
from longboat.simulator.plan.fit_step_time import fitted
from longboat.simulator.results.result import quantiles
from longboat.simulator.traces.sessions import Sessions
from longboat.simulator.traces.trace_request import TraceRequest

PARTS = (0.5, 0.99)
FAKE_FLAGS = (
    *("--step-ms", "100", "--prompt-token-us", "800", "--sequence-us", "2000", "--block-size", "16"),
    *("--kv-blocks", "8000", "--max-num-batched-tokens", "2048", "--max-num-seqs", "64"),
)
FAKE_LIMITS = EngineLimits(kv_blocks=8000, max_num_seqs=64, max_num_batched_tokens=2048)
VLLM_CACHE_BYTES = 256 << 20
VLLM_CONTEXT = 4096
VLLM_LIMITS = EngineLimits(kv_blocks=VLLM_CACHE_BYTES // (16 * 4 * 2 * 4 * 32 * 4), max_num_batched_tokens=2048)
ROUNDS = 3
OUTPUT = 32


@contextmanager
def engines(part: str, folder: Path) -> Iterator[tuple[list[str], EngineLimits]]:
    """Addresses of the engines under test, and their limits."""
    if part == "fake":
        with fake_engines(2, FAKE_FLAGS) as urls:
            yield urls, FAKE_LIMITS
    else:
        with real_engine(folder, VLLM_CONTEXT, VLLM_CACHE_BYTES) as urls:
            yield urls, VLLM_LIMITS


def load_of(part: str, count: int, seed: int, rate: float) -> list[TraceRequest]:
    """The requests of the run."""
    longest = 3500 if part == "vllm" else 8000
    settings = Sessions(
        rate=rate, systems=3, system=600, turns=4.0, user=120, output=40, think=4.0, block=16, longest=longest
    )
    return conversations(settings, count, seed)


async def calibrate(url: str, seed: int) -> tuple[StepTime, float]:
    """Measure a step's terms from outside. Returns them, and the seconds of a request that no step takes."""
    draw = _fresh(seed)
    decode = [row for count in (1, 4, 16) for row in await _decode_rows(url, count, draw)]
    base_s, sequence_s, kv_token_s = fitted(decode)
    rows = []
    for tokens in (64, 256, 512, 1024, 2000):
        times = [(await ask(url, draw(tokens), 2)).ttft_s for _ in range(ROUNDS)]
        ttft_s = statistics.median(times)
        rows.append(((1.0, float(tokens), tokens * tokens / 2.0), ttft_s, ttft_s))
    first_s, prompt_token_s, prompt_pair_s = fitted(rows)
    time = StepTime(
        base_s=base_s,
        prompt_token_s=max(prompt_token_s, 1e-9),
        prompt_pair_s=prompt_pair_s,
        sequence_s=sequence_s,
        kv_token_s=kv_token_s,
    )
    return time, max(0.0, first_s - base_s)


async def _decode_rows(
    url: str, count: int, draw: Callable[[int], list[int]]
) -> list[tuple[tuple[float, ...], float, float]]:
    """Measure steps of ``count`` sequences with short and with long contexts, by what more tokens take.

    Times between tokens say less: a client or a server that is late passes several on at once.
    """
    rows = []
    for tokens in (64, 1024):
        prompts = [draw(tokens) for _ in range(count)]
        await _wall_s(url, prompts, 2)  # they are cached then
        found = [(await _wall_s(url, prompts, 2 + OUTPUT) - await _wall_s(url, prompts, 2)) for _ in range(ROUNDS)]
        step_s = max(1e-4, statistics.median(found) / OUTPUT)
        rows.append(((1.0, float(count), float(count * (tokens + OUTPUT // 2))), step_s, step_s))
    return rows


async def _wall_s(url: str, prompts: Sequence[Sequence[int]], output_tokens: int) -> float:
    began_s = perf_counter()
    await asyncio.gather(*(ask(url, ids, output_tokens) for ids in prompts))
    return perf_counter() - began_s


def _fresh(seed: int) -> Callable[[int], list[int]]:
    import random

    draw = random.Random(-seed)
    return lambda tokens: [draw.randrange(64, 3700) for _ in range(tokens)]


def twin_of(urls: Sequence[str], limits: EngineLimits, time: StepTime, request_s: float) -> Fleet:
    """The fleet of the run: what a request takes beside its steps counts as the network's."""
    return Fleet(replicas=even_fleet(len(urls), time, limits), network_s=request_s / 2.0, report_s=0.0)


def measured_rows(seen: Sequence[Seen]) -> dict[str, list[float]]:
    """Milliseconds at ``PARTS``."""
    gaps = [gap for one in seen for gap in one.gaps_s]
    return {
        "ttft_ms": [value * 1e3 for value in quantiles([one.ttft_s for one in seen], PARTS)],
        "itl_ms": [value * 1e3 for value in quantiles(gaps, PARTS)],
    }


def run(part: str, count: int, seed: int, rate: float) -> dict[str, object]:
    """Calibrate, play, simulate."""
    requests = load_of(part, count, seed, rate)
    with tempfile.TemporaryDirectory() as folder, engines(part, Path(folder)) as (urls, limits):
        with gateway(urls[:1]) as url:
            time, request_s = asyncio.run(calibrate(url, seed))
        with gateway(urls) as url:
            seen = asyncio.run(play(url, requests))
    fleet = twin_of(urls, limits, time, request_s)
    fleet = replace(fleet, slots=limits.max_num_seqs)
    result = simulate(fleet, iter(requests), lambda: policy_of("least_requests"), seed=seed)
    simulated = {
        "ttft_ms": [value * 1e3 for value in quantiles(result.ttft_s, PARTS)],
        "itl_ms": [result.itl_s.quantile(part_of) * 1e3 for part_of in PARTS],
    }
    measured = measured_rows(seen)
    ratios = {name: [s / m for s, m in zip(simulated[name], measured[name], strict=True)] for name in measured}
    return {
        "part": part,
        "requests": len(seen),
        "step_time": {name: getattr(time, name) for name in time.__dataclass_fields__},
        "request_s": request_s,
        "measured": measured,
        "twin": simulated,
        "twin/measured": ratios,
    }


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("fake", "vllm"), default="fake")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.25, help="conversations that begin each second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = run(options.part, options.requests, options.seed, options.rate)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['part']}: {found['requests']} requests, {found['request_s']:.4f} s of each beside the steps")
    print(f"step: {found['step_time']}")
    for name in ("ttft_ms", "itl_ms"):
        rows = zip(PARTS, found["measured"][name], found["twin"][name], found["twin/measured"][name], strict=True)  # type: ignore[index]
        for part, measured, twin, ratio in rows:
            print(f"{name} p{100 * part:g}: measured {measured:.1f}, twin {twin:.1f}, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
