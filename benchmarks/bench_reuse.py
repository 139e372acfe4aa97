"""Conversations on several real vLLM engines, routed by cost and in turn: what caches save, and what was foreseen.

The engines serve the built-in model on processors. For each policy they start again and get the same conversations with
shared system prompts through a real gateway. Printed: the share of prompt tokens that engines found cached, the share
that the index expected, TTFT, the ratio of both policies, and the ratio that the twin predicts for the same requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_twin import sample, solved, twin_of
from twin_compare import beside, show_quantiles
from twin_stand import MODEL, RealEngine, Seen, add_engine_options, conversations, gateway, play

from longboat.simulator.traces.sessions import Sessions
from longboat.simulator.traces.trace_request import TraceRequest

POLICIES = ("round_robin", "cost")
FEED_WAIT_S = 3.0
KEY = "engine-key"
MEAN_TURNS = 4.520811664  # the load of the published results, to the request


def load_of(count: int, seed: int, rate: float) -> list[TraceRequest]:
    """Conversations of several turns, with shared system prompts."""
    settings = Sessions(
        rate=rate, systems=4, system=1200, turns=MEAN_TURNS, user=150, output=24, think=3.0, block=16, longest=3600
    )
    return conversations(settings, count, seed)


def hits_of(url: str) -> dict[str, int]:
    """The sums of all replicas: prompt tokens, cached ones, expected ones."""
    with urllib.request.urlopen(f"{url}/admin/v1/routes", timeout=10) as answer:  # noqa: S310
        rows = json.loads(answer.read())["routes"]
    return {name: sum(row["hits"][name] for row in rows) for name in rows[0]["hits"]}


def cached_share(urls: Sequence[str]) -> float:
    """The part of the prompts' tokens that engines found in their caches, by their own counters."""
    queries = hits = 0.0
    for url in urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310
            for line in answer.read().decode().splitlines():
                if line.startswith("vllm:prefix_cache_queries_total{"):
                    queries += float(line.rsplit(" ", 1)[1])
                elif line.startswith("vllm:prefix_cache_hits_total{"):
                    hits += float(line.rsplit(" ", 1)[1])
    return hits / max(1.0, queries)


def measured(
    real: RealEngine, policy: str, count: int, requests: Sequence[TraceRequest]
) -> tuple[list[Seen], dict[str, int], float]:
    """Play the requests on fresh engines by one policy. The last: the cached part by the engines' own counters."""
    with (
        tempfile.TemporaryDirectory() as folder,
        real.running(Path(folder), count, KEY) as (urls, _),
        gateway(urls, policy=policy, api_key=KEY) as url,
    ):
        time.sleep(FEED_WAIT_S)
        seen = asyncio.run(play(url, requests))
        time.sleep(1.0)
        return seen, hits_of(url), cached_share(urls)


def run(real: RealEngine, count: int, num_requests: int, seed: int, rate: float) -> dict[str, Any]:
    """Calibrate once, then measure and simulate each policy."""
    requests = load_of(num_requests, seed, rate)
    with (
        tempfile.TemporaryDirectory() as folder,
        real.running(Path(folder), count, KEY) as (urls, limits),
        gateway(urls[:1], api_key=KEY) as url,
        gateway(urls, api_key=KEY) as every,
    ):
        found = solved(asyncio.run(sample(url, seed, every, count)), count)
    rows: dict[str, Any] = {}
    fleet = twin_of(count, limits, found)
    for policy in POLICIES:
        seen, hits, cached = measured(real, policy, count, requests)
        rows[policy] = {
            "model": MODEL,
            "cached_share": cached,
            "expected_share": hits["expected_tokens"] / max(1, hits["prompt_tokens"]),
            "right_share_of_expected": hits["right_tokens"] / max(1, hits["expected_tokens"]),
            **beside(fleet, requests, seen, seed, policy),
        }
    first, ours = (rows[policy]["ttft_mean_ms"] for policy in POLICIES)
    ratio, foreseen = (ours[name] / first[name] for name in ("measured", "twin"))
    return {
        "replicas": count,
        "measured": asdict(found),
        "policies": rows,
        "ratio": ratio,
        "twin_ratio": foreseen,
        "off": ratio / foreseen - 1.0,
    }


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rate", type=float, default=0.3, help="conversations that begin each second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worst", type=int, default=0, help="print as many requests that waited longest")
    parser.add_argument("--json", action="store_true")
    add_engine_options(parser)
    options = parser.parse_args()
    found = run(RealEngine.told(options), options.replicas, options.requests, options.seed, options.rate)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for policy, row in found["policies"].items():
        print(
            f"{policy}: cached {row['cached_share']:.1%} (twin {row['twin_cached_share']:.1%}), "
            f"expected {row['expected_share']:.1%} ({row['right_share_of_expected']:.1%} of it found), "
            f"TTFT mean {row['ttft_mean_ms']['measured']:.0f} ms (twin {row['ttft_mean_ms']['twin']:.0f})"
        )
        show_quantiles(row, options.worst)
    print(
        f"cost / round_robin: {found['ratio']:.2f}; by the twin {found['twin_ratio']:.2f}; off by {found['off']:+.0%}"
    )


if __name__ == "__main__":
    main()
