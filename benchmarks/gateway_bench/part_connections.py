"""Many connections in one process: idle ones and slow streams, and how late the event loop comes meanwhile."""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from typing import Any

from gateway_bench.figures import Figure
from gateway_bench.longboat_gateway import start_longboat
from gateway_bench.processes import ask
from gateway_bench.stand import Stand, finished, say
from gateway_bench.targets import Running

__all__ = ("lag_quantile", "measure_connections")

IDLE, STREAMS, CHUNKS, ITL_MS = 10_000, 2_000, 40, 240.0
LASTS_S = 20.0
RAMP_S = 4.0
PROBE_RATE, PROBE_S = 100, 12.0
MIB = 1024 * 1024
LIMIT_MIB, LIMIT_LAG_MS = 250.0 * 1e6 / MIB, 50.0
BUCKET = re.compile(r'event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} ([0-9.e+]+)')


def measure_connections(*, quick: bool) -> dict[str, Any]:
    """10,000 idle connections and 2,000 streams of about four chunks a second each."""
    idle, streams = (IDLE // 20, STREAMS // 20) if quick else (IDLE, STREAMS)
    lasts_s = LASTS_S / 4 if quick else LASTS_S
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if idle + 2 * streams + 200 > most:
        print(f"\nconnections: skipped: {idle + 2 * streams + 200} open files are needed, this user may have {most}")
        return {"figures": []}
    with Stand() as stand:
        stand.mock_engines(ttft_ms=50.0, itl_ms=ITL_MS)
        proxy, port, keys = start_longboat(stand.upstreams, stand.folder, capacity=streams)
        running = stand.adopt("longboat", Running(url=f"http://127.0.0.1:{port}", proxy=proxy, keys=keys))
        say(f"connections: opening {idle} idle ones")
        words = ("--clients", streams, "--idle", idle, "--chunks", CHUNKS, "--requests", 10**9, "--max-s", lasts_s)
        load = stand.begin_load(running, *words, "--stagger-s", 2.0, "--warmup", 0, "--sources", 8)
        time.sleep(RAMP_S)
        before = lag_buckets(running.url)
        probe_s = min(PROBE_S, lasts_s)
        probe = ("--get", "--rate", PROBE_RATE, "--requests", int(PROBE_RATE * probe_s), "--warmup", 0)
        probed = finished(stand.begin_load(running, *probe, path="/livez"))
        lag_s = lag_quantile(before, lag_buckets(running.url), 0.99)
        result = finished(load)
    return reported(result, probed, lag_s, idle, streams)


def reported(
    result: dict[str, Any], probed: dict[str, Any], lag_s: float | None, idle: int, streams: int
) -> dict[str, Any]:
    """Print and judge."""
    chunks_per_s = result["events_per_s"]["p50"]
    errors = sum(result["failures"].values()) + result["idle_lost"] + sum(probed["failures"].values())
    probe_ms = {point: 1e3 * value for point, value in probed["total_s"].items() if value is not None}
    print(f"\nconnections: {idle} idle and {streams} streams in one process, {chunks_per_s:.0f} chunks/s")
    print(f"  /livez meanwhile, ms: {', '.join(f'{point} {value:.1f}' for point, value in probe_ms.items())}")
    print(f"  failures: {result['failures']}, idle connections lost: {result['idle_lost']}")
    figures = [
        Figure(name="peak RSS", value=result["rss_peak_bytes"] / MIB, unit="MiB", limit=LIMIT_MIB),
        Figure(name="errors", value=errors, unit="", limit=0),
        Figure(name="/livez p99", value=probe_ms.get("p99", float("nan")), unit="ms", limit=LIMIT_LAG_MS),
    ]
    if lag_s is not None:
        figures.append(Figure(name="event-loop lag p99, at most", value=1e3 * lag_s, unit="ms", limit=LIMIT_LAG_MS))
    return {"load": result, "probe": probed, "chunks_per_s": chunks_per_s, "figures": figures}


def lag_buckets(url: str) -> Counter[float]:
    """The gateway's own histogram, of all its processes: upper bound in seconds → so many or fewer."""
    _, text = ask(f"{url}/metrics", {})
    buckets: Counter[float] = Counter()
    for bound, count in BUCKET.findall(text.decode()):
        buckets[float(bound)] += float(count)  # type: ignore[assignment]
    return buckets


def lag_quantile(before: Counter[float], after: Counter[float], part: float) -> float | None:
    """The bound under which ``part`` of what happened in between lies; None where nothing did."""
    grown = sorted((bound, count - before[bound]) for bound, count in after.items())
    if not grown or grown[-1][1] <= 0:
        return None
    return next(bound for bound, count in grown if count >= part * grown[-1][1])
