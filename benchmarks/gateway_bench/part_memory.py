"""Whether requests leave anything behind: memory after some unique prompts, and after ten times as many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gateway_bench.figures import Figure
from gateway_bench.processes import rss_bytes
from gateway_bench.stand import Stand, say
from gateway_bench.targets import LONGBOAT

__all__ = ("measure_memory",)

FIRST, LAST = 20_000, 200_000
LIMIT = 1.10
MIB = 1024 * 1024
SETTLE_S = 3.0


def measure_memory(*, quick: bool) -> dict[str, Any]:
    """RSS after 20,000 requests with unique prompts and after 200,000."""
    first, last = (FIRST // 20, LAST // 20) if quick else (FIRST, LAST)
    with Stand() as stand:
        stand.mock_engines(ttft_ms=0.0)
        running = stand.start(LONGBOAT)
        if running is None or running.proxy is None:
            return {"figures": []}
        grown: list[dict[int, int]] = []
        failed = 0
        for seed, requests in (("first", first), ("second", last - first)):
            say(f"memory: {requests} requests")
            words = ("--clients", 32, "--prompt-chars", 2000, "--requests", requests, "--max-s", 900)
            failed += sum(stand.load(running, *words, "--seed", seed)["failures"].values())
            time.sleep(SETTLE_S)
            grown.append({pid: rss_bytes([pid]) for pid in running.proxy.pids()})
    before, after = ([rss / MIB for rss in of.values()] for of in grown)
    ratio = max(grown[1][pid] / rss for pid, rss in grown[0].items())
    print(f"\nmemory: RSS {shown(before)} MiB after {first} requests with unique prompts, {shown(after)} after {last}")
    figures = [
        Figure(name=f"RSS after {last} / {first}, worst process", value=ratio, unit="", limit=LIMIT),
        Figure(name="failed requests", value=failed, unit="", limit=0),
    ]
    return {"rss_mib": {str(first): before, str(last): after}, "figures": figures}


def shown(rss_mib: Sequence[float]) -> str:
    """Of each process: the command, and the gateway."""
    return " + ".join(f"{value:.1f}" for value in rss_mib)
