"""A snapshot of metrics in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from longboat.core.external import NANOS
from longboat.core.metric_list import GATEWAY, METRICS, NODE, PLANNER, SCALING
from longboat.gateway.records.metrics import ITL_BOUNDS_S, LAG_BOUNDS_S, REQUEST_BOUNDS_S

__all__ = ("CONTENT_TYPE", "render")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HEADS: Final = {m.name: (f"# HELP {m.name} {m.text}", f"# TYPE {m.name} {m.kind}") for m in METRICS}

# Field of a snapshot → name of its metric.
_HISTOGRAMS: Final = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "e2e": "e2e_request_latency_seconds",
    "queue": "queue_time_seconds",
}
_RESUME_TIMES: Final = {
    "gap": "resume_gap_seconds",
    "detection": "resume_detection_seconds",
    "pause": "preempted_seconds",
}
_OF_SERIES: Final = {
    "prompt_tokens": "prompt_tokens_total",
    "completion_tokens": "generation_tokens_total",
    "cached_tokens": "prompt_tokens_cached_total",
    "expected_tokens": "prefix_expected_tokens_total",
    "held_tokens": "prefix_held_tokens_total",
    "found_tokens": "prefix_found_tokens_total",
    "retries": "retries_total",
    "preemptions": "preemptions_total",
    "preemptions_denied": "preemptions_denied_total",
    "in_flight": "requests_in_flight",
    "waiting": "requests_waiting",
    "preempted": "preempted_streams",
}
_OF_PROCESS: Final = {
    "cpu_s": "cpu_seconds_total",
    "rss_bytes": "resident_memory_bytes",
    "connections": "client_connections",
    "held_bytes": "held_body_bytes",
    "lag_max_s": "event_loop_lag_max_seconds",
}
_OF_SCALING: Final = {
    "wanted": "replicas_wanted",
    "minimum": "replicas_min",
    "maximum": "replicas_max",
    "by_hand": "by_hand",
    "paused": "paused",
    "unplaced": "replicas_unplaced",
    "cold_start_s": "cold_start_seconds",
    "raised": "raised_total",
    "lowered": "lowered_total",
}

# Alerts ask how much these grew, and what begins with 1 did not grow: so they begin with 0.
_LOST: Final = ("lost", "heartbeat", "silent", "moved", "report", "ended", "nonsense", "differs", "refused")
_RARE_EVENTS: Final = ("poison_request",)

_OF_PLANNER: Final = {
    "predicted_itl_s": "predicted_inter_token_latency_seconds",
    "itl_s": "measured_inter_token_latency_seconds",
    "predicted_ttft_s": "predicted_time_to_first_token_seconds",
    "ttft_s": "measured_time_to_first_token_seconds",
    "predicted_rank_bytes": "predicted_rank_bytes",
    "rank_bytes": "measured_rank_bytes",
    "predicted_kv_blocks": "predicted_kv_blocks",
    "kv_blocks": "measured_kv_blocks",
}
_OF_NODE: Final = (
    "load1", "cpus", "memory_bytes", "memory_available_bytes", "disk_bytes", "disk_available_bytes",
)  # fmt: skip


def render(snapshot: Mapping[str, Any]) -> bytes:
    """Write the answer to a scrape. snapshot: from ``Metrics.snapshot`` or ``merge``."""
    lines: list[str] = []
    for family in (_of_series, _of_latencies, _of_refusals, _of_upstreams, _of_scaling, _of_node, _of_processes):
        lines.extend(family(snapshot))
    lines.append("")
    return "\n".join(lines).encode()


def _of_series(snapshot: Mapping[str, Any]) -> Iterator[str]:
    series = [(_labels(model=item["model"], tenant=item["tenant"]), item) for item in snapshot["series"]]
    outcomes = (
        (f'{labels},outcome="{_escaped(outcome)}"', count)
        for labels, item in series
        for outcome, count in item["outcomes"].items()
    )
    yield from _family("requests_total", outcomes)
    for field, name in _OF_SERIES.items():
        yield from _family(name, ((labels, item[field]) for labels, item in series))


def _of_latencies(snapshot: Mapping[str, Any]) -> Iterator[str]:
    series = [(_labels(model=item["model"], tenant=item["tenant"]), item) for item in snapshot["series"]]
    for field, name in _HISTOGRAMS.items():
        bounds = ITL_BOUNDS_S if field == "itl" else REQUEST_BOUNDS_S
        yield from _histogram_family(name, bounds, ((labels, item[field]) for labels, item in series))


def _of_refusals(snapshot: Mapping[str, Any]) -> Iterator[str]:
    refusals = ((_labels(code=code, tenant=tenant), count) for code, tenant, count in snapshot["refusals"])
    yield from _family("refusals_total", refusals)
    fallbacks = ((_labels(requested=asked, served=served), count) for asked, served, count in snapshot["fallbacks"])
    yield from _family("fallbacks_total", fallbacks)
    external = ((_labels(endpoint=where, outcome=how), count) for where, how, count in snapshot["external"])
    yield from _family("external_requests_total", external)
    costs = ((_labels(model=name, currency=unit), nanos / NANOS) for name, unit, nanos in snapshot["costs"])
    yield from _family("external_cost_total", costs)
    charges = ((_labels(tenant=name, currency=unit), nanos / NANOS) for name, unit, nanos in snapshot["charges"])
    yield from _family("tenant_cost_total", charges)
    lost = {(why, "failed"): 0 for why in _LOST} | {(why, how): n for why, how, n in snapshot.get("resumes", ())}
    resumes = ((_labels(reason=why, result=result), count) for (why, result), count in lost.items())
    yield from _family("resumes_total", resumes)
    for field, name in _RESUME_TIMES.items():
        counts = snapshot.get("resume_times", {}).get(field)
        yield from _histogram_family(name, REQUEST_BOUNDS_S, [("", counts)] if counts else [])
    counted = {name: 0 for name in _RARE_EVENTS} | snapshot["events"]
    events = ((_labels(event=name), count) for name, count in counted.items())
    yield from _family("events_total", events)


def _of_upstreams(snapshot: Mapping[str, Any]) -> Iterator[str]:
    rows = [(_labels(model=u["model"], replica=u["replica"]), u) for u in snapshot["upstreams"]]
    ready = ((labels, int(row["ready"] > 0)) for labels, row in rows)
    yield from _family("upstream_ready", ready)
    suspect = ((labels, row["suspect"]) for labels, row in rows)
    yield from _family("upstream_suspect", suspect)
    busy = ((labels, row["outstanding"]) for labels, row in rows)
    yield from _family("upstream_requests_in_flight", busy)


def _of_scaling(snapshot: Mapping[str, Any]) -> Iterator[str]:
    rows = [(_labels(model=model), row) for model, row in snapshot.get("scaling", {}).items()]
    for field, name in _OF_SCALING.items():
        yield from _family(name, ((labels, row[field]) for labels, row in rows if field in row), SCALING)
    for field, name in _OF_PLANNER.items():
        yield from _family(name, ((labels, row[field]) for labels, row in rows if field in row), PLANNER)


def _of_node(snapshot: Mapping[str, Any]) -> Iterator[str]:
    node = snapshot.get("node", {})
    for name in _OF_NODE:
        yield from _family(name, [("", node[name])] if name in node else [], NODE)


def _of_processes(snapshot: Mapping[str, Any]) -> Iterator[str]:
    rows = [(_labels(process=item["process"]), item) for item in snapshot["processes"]]
    for field, name in _OF_PROCESS.items():
        yield from _family(name, ((labels, item[field]) for labels, item in rows if field in item))
    lags = ((labels, item["lag"]) for labels, item in rows if "lag" in item)
    yield from _histogram_family("event_loop_lag_seconds", LAG_BOUNDS_S, lags)
    missing = [("", len(snapshot.get("missing", ())))]
    yield from _family("processes_missing", missing)


def _family(name: str, samples: Iterable[tuple[str, float]], prefix: str = GATEWAY) -> Iterator[str]:
    metric = prefix + name
    yield from _HEADS[metric]
    for labels, value in samples:
        yield f"{metric}{{{labels}}} {value}" if labels else f"{metric} {value}"


def _histogram_family(
    name: str, bounds: tuple[float, ...], samples: Iterable[tuple[str, list[float]]]
) -> Iterator[str]:
    """Write histograms, without those that counted nothing."""
    metric = GATEWAY + name
    yield from _HEADS[metric]
    buckets = [f'le="{bound}"}}' for bound in (*bounds, "+Inf")]
    for labels, counts in samples:
        total: float = 0
        if not any(counts):
            continue
        start = f"{metric}_bucket{{{labels}," if labels else f"{metric}_bucket{{"
        for bucket, count in zip(buckets, counts, strict=False):  # the last count is the sum
            total += count
            yield f"{start}{bucket} {total}"
        of = f"{{{labels}}}" if labels else ""
        yield f"{metric}_sum{of} {counts[-1]}"
        yield f"{metric}_count{of} {total}"


def _labels(**values: str) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
