"""What a chunk and a request cost in each proxy, and how much later the first chunk comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway_bench.figures import Figure, Ratio, median, ratio
from gateway_bench.longboat_gateway import missing_features
from gateway_bench.processes import rss_bytes
from gateway_bench.stand import Stand, say
from gateway_bench.targets import BARE, DIRECT, LONGBOAT, TRACED, Target

__all__ = ("Scenario", "measure_proxies")

US = 1e6
MS = 1e3
MIB = 1024 * 1024
HEAVY_MAX_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of load. cpu: name of its CPU figure, per ``per`` chunks of a request; empty where none is taken."""

    name: str
    words: tuple[str | float, ...]
    requests: int
    max_s: float = 8.0
    cpu: str = ""
    per: int = 1
    limit: float | None = None
    ttft: str = ""


SCENARIOS = (
    Scenario(
        name="32 clients, 32 chunks at 5 ms, 800 characters",
        words=("--clients", 32, "--chunks", 32, "--prompt-chars", 800, "--stagger-s", 0.17),
        requests=600,
        cpu="chunk_us",
        per=32,
        limit=0.75,
        ttft="ttft",
    ),
    Scenario(
        name="16 clients, one chunk, 2000 characters",
        words=("--clients", 16, "--chunks", 1, "--prompt-chars", 2000, "--stagger-s", 0.01),
        requests=3000,
        cpu="one_chunk_us",
        limit=0.65,
        ttft="one_chunk_ttft",
    ),
    Scenario(
        name="16 clients, not streaming, 2000 characters",
        words=("--clients", 16, "--chunks", 1, "--prompt-chars", 2000, "--stagger-s", 0.01, "--whole"),
        requests=3000,
        cpu="whole_us",
        limit=0.65,
    ),
    Scenario(
        name="100 requests a second, 8 chunks, 800 characters",
        words=("--rate", 100, "--chunks", 8, "--prompt-chars", 800),
        requests=400,
        ttft="steady_ttft",
    ),
)
TTFT_LIMIT = 1.1
TRACED_LIMIT = 0.9
LEAST_MS = 0.1
"""Added times below it count as it: less is not seen beside the engines' own scatter."""
COLUMNS = (
    ("chunk_us", "CPU us/chunk"),
    ("one_chunk_us", "us/one-chunk"),
    ("whole_us", "us/whole"),
    ("ttft_p50_ms", "+TTFT p50"),
    ("ttft_p99_ms", "+TTFT p99"),
    ("steady_ttft_p50_ms", "steady p50"),
    ("steady_ttft_p99_ms", "steady p99"),
    ("one_chunk_ttft_p50_ms", "1-chunk p50"),
    ("rss_mib", "RSS MiB"),
)

Rounds = dict[str, dict[str, list[float]]]
"""Target's name → figure's name → one value a round."""


@dataclass(slots=True)
class Results:
    """All rounds, and what went wrong. missing: features that Longboat should have had on."""

    rounds: Rounds = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missing: list[str] = field(default_factory=list)


def measure_proxies(peers: Sequence[Target], num_rounds: int, heavy_rounds: int, *, quick: bool) -> dict[str, Any]:
    """Print the tables; the same as a document."""
    targets = [DIRECT, BARE, LONGBOAT, TRACED, *peers]
    results = Results()
    with Stand() as stand:
        stand.mock_engines()
        for number in range(num_rounds):
            turn = number % len(targets)
            for target in (*targets[turn:], *targets[:turn]):
                if not target.heavy or number < heavy_rounds:
                    say(f"round {number + 1} of {num_rounds}: {target.name}")
                    one_turn(stand, target, results, quick=quick)
        if own := stand.running.get(LONGBOAT.name):
            results.missing = missing_features(own.url, own.keys[0], stand.upstreams, stand.folder)
    subtract_direct(results.rounds)
    rows = {name: {figure: median(values) for figure, values in of.items()} for name, of in results.rounds.items()}
    figures = judged(results.rounds, rows, peers)
    show(rows, targets, results)
    said = {"failures": results.failures, "missing_features": results.missing}
    return {"rounds": results.rounds, "medians": rows, **said, "figures": figures}


def one_turn(stand: Stand, target: Target, results: Results, *, quick: bool) -> None:
    """All scenarios on one target."""
    running = stand.start(target)
    if running is None:
        return
    own = results.rounds[target.name]
    for scenario in SCENARIOS:
        requests = scenario.requests // 10 if quick else scenario.requests
        max_s = min(scenario.max_s, HEAVY_MAX_S) if target.heavy else scenario.max_s
        result = stand.load(running, *scenario.words, "--requests", requests, "--max-s", max_s)
        results.failures[target.name] += sum(result["failures"].values())
        take(own, scenario, result, has_proxy=running.proxy is not None)
    if running.proxy is not None:
        own["rss_mib"].append(rss_bytes(running.proxy.pids()) / MIB)
    if target.heavy:
        stand.stop(target.name)


def take(own: dict[str, list[float]], scenario: Scenario, result: Mapping[str, Any], *, has_proxy: bool) -> None:
    """Put one load's figures to the others of its target."""
    num = result["requests"]
    if has_proxy and scenario.cpu:
        own[scenario.cpu].append(US * result["cpu_s"] / (num * scenario.per) if num else float("nan"))
    for point in ("p50", "p99") if scenario.ttft else ():
        own[f"{scenario.ttft}_{point}_ms"].append(MS * result["ttft_s"][point] if num else float("nan"))


def subtract_direct(rounds: Rounds) -> None:
    """Times to the first chunk become what the proxy adds to them, in each round."""
    direct = rounds[DIRECT.name]
    for name, own in rounds.items():
        if name != DIRECT.name:
            for figure in [figure for figure in own if "ttft" in figure]:
                pairs = zip(own[figure], direct[figure], strict=False)
                own[figure] = [max(mine - base, LEAST_MS) for mine, base in pairs]


def judged(rounds: Rounds, rows: Mapping[str, Mapping[str, float]], peers: Sequence[Target]) -> list[Figure]:
    """Return Longboat's ratios to the best of the Rust routers, figure by figure."""
    rust = [peer.name for peer in peers if peer.rust and peer.name in rows]
    figures = []
    limits = {scenario.cpu: scenario.limit for scenario in SCENARIOS if scenario.cpu}
    ttft = {
        "ttft_p50_ms": TTFT_LIMIT,
        "ttft_p99_ms": TTFT_LIMIT,
        "steady_ttft_p50_ms": None,
        "steady_ttft_p99_ms": None,
    }
    judged = [(LONGBOAT.name, name, limit) for name, limit in {**limits, **ttft}.items()]
    judged += [(TRACED.name, name, TRACED_LIMIT) for name in limits]
    for own, name, limit in judged:
        if not rust or own not in rows:
            continue
        best = min(rust, key=lambda peer: rows[peer].get(name, float("inf")))
        found = ratio(rounds[own][name], rounds[best][name])
        if found is not None:
            figures.append(as_figure(f"{own} {name}", best, found, limit))
    return figures


def as_figure(name: str, best: str, found: Ratio, limit: float | None) -> Figure:
    """CPU is judged by the median, time to the first chunk by the upper end of its interval."""
    is_time = "ttft" in name
    title = f"{name}, ratio to {best}" + (" (upper end)" if is_time else "")
    value = found.high if is_time else found.middle
    return Figure(name=title, value=value, unit="", limit=limit, interval=(found.low, found.high))


def show(rows: Mapping[str, Mapping[str, float]], targets: Sequence[Target], results: Results) -> None:
    """One row for each target; times are milliseconds, and for `direct` not added but whole."""
    print("\nproxies: medians of the rounds; CPU of all its processes; +TTFT in ms, added to direct (whole for direct)")
    print(f"  {'':14}" + "".join(f"{title:>14}" for _, title in COLUMNS) + f"{'failed':>8}")
    for target in targets:
        if target.name in rows:
            cells = (rows[target.name].get(name) for name, _ in COLUMNS)
            line = "".join(f"{'-' if cell is None else format(cell, '.2f'):>14}" for cell in cells)
            print(f"  {target.name:14}{line}{results.failures[target.name]:>8}")
    if results.missing:
        print(f"  NOT ON in longboat: {', '.join(results.missing)}; its figures are for less than all features")
