"""A tenant who floods, and another who stays inside its share: how much later that one's first chunk comes."""

from __future__ import annotations

import time
from typing import Any

from gateway_bench.figures import Figure, median, ratio
from gateway_bench.longboat_gateway import start_longboat
from gateway_bench.stand import Stand, finished, say
from gateway_bench.targets import Running

__all__ = ("measure_fairness",)

FLOOD, FLOOD_CHUNKS = 1000, 64
QUIET_RATE, QUIET_REQUESTS, QUIET_CHUNKS = 25, 400, 32
SLOTS = 16
LIMIT = 1.20
ENGINE = ("--ttft-ms", "20", "--itl-ms", "10", "--max-num-seqs", str(SLOTS))
HEAD_START_S = 0.5


def measure_fairness(num_rounds: int, *, quick: bool) -> dict[str, Any]:
    """p99 of the time to the first chunk, with and without the flood, in turns."""
    flood, quiet = (FLOOD // 5, QUIET_REQUESTS // 5) if quick else (FLOOD, QUIET_REQUESTS)
    alone_ms: list[float] = []
    beside_ms: list[float] = []
    failures = 0
    with Stand() as stand:
        stand.fake_engines(*ENGINE)
        proxy, port, keys = start_longboat(stand.upstreams, stand.folder, capacity=SLOTS)
        running = stand.adopt("longboat", Running(url=f"http://127.0.0.1:{port}", proxy=proxy, keys=keys))
        quiet_words = ("--rate", QUIET_RATE, "--requests", quiet, "--chunks", QUIET_CHUNKS, "--prompt-chars", 400)
        flood_words = ("--clients", flood, "--requests", flood, "--chunks", FLOOD_CHUNKS, "--prompt-chars", 400)
        stand.load(running, "--clients", 4, "--requests", 40, keys=keys[:1])
        for number in range(num_rounds):
            say(f"fairness, round {number + 1} of {num_rounds}")
            alone = stand.load(running, *quiet_words, keys=keys[:1])
            flooding = stand.begin_load(running, *flood_words, "--warmup", 0, keys=keys[1:2])
            time.sleep(HEAD_START_S)
            beside = stand.load(running, *quiet_words, keys=keys[:1])
            flooded = finished(flooding)
            alone_ms.append(1e3 * alone["ttft_s"]["p99"])
            beside_ms.append(1e3 * beside["ttft_s"]["p99"])
            failures += sum(sum(run["failures"].values()) for run in (alone, beside, flooded))
    return reported(alone_ms, beside_ms, failures, flood)


def reported(alone_ms: list[float], beside_ms: list[float], failures: int, flood: int) -> dict[str, Any]:
    """Print and judge."""
    print(f"\nfairness: TTFT p99 of a tenant with {QUIET_RATE} requests a second, ms, medians of the rounds")
    print(f"  alone {median(alone_ms):.1f}, beside another's flood of {flood} requests {median(beside_ms):.1f}")
    found = ratio(beside_ms, alone_ms)
    figures = [Figure(name="failed requests", value=failures, unit="", limit=0)]
    if found is not None:
        interval = (found.low, found.high)
        figures.append(
            Figure(name="p99 beside a flood / alone", value=found.middle, unit="", limit=LIMIT, interval=interval)
        )
    return {"alone_ms": alone_ms, "beside_ms": beside_ms, "figures": figures}
