"""A snapshot of metrics in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from longboat.core.external import NANOS
from longboat.gateway.records.metrics import ITL_BOUNDS_S, LAG_BOUNDS_S, REQUEST_BOUNDS_S

__all__ = ("CONTENT_TYPE", "render")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


_HISTOGRAMS = (
    ("ttft", "time_to_first_token_seconds", "From the request's first byte to the answer's first byte."),
    ("itl", "inter_token_latency_seconds", "Between two blocks of one stream, as they came from the engine."),
    ("e2e", "e2e_request_latency_seconds", "From the request's first byte to the answer's last byte."),
    ("queue", "queue_time_seconds", "How long a request waited in the gateway for room on a replica."),
)
_RESUME_TIMES = (
    ("gap", "resume_gap_seconds", "How long a client got nothing of an answer that its engine had left."),
    ("detection", "resume_detection_seconds", "How long an engine was silent before it was left."),
)
_SERIES_COUNTERS = (
    ("prompt_tokens", "prompt_tokens_total", "Prompt tokens, as engines reported them."),
    ("completion_tokens", "generation_tokens_total", "Generated tokens, as engines reported them."),
    ("cached_tokens", "prompt_tokens_cached_total", "Prompt tokens that engines took from their prefix caches."),
    ("expected_tokens", "prefix_expected_tokens_total", "Cached tokens that choices of replicas expected."),
    ("held_tokens", "prefix_held_tokens_total", "Cached tokens that engines found for these requests."),
    ("found_tokens", "prefix_found_tokens_total", "Cached tokens that were expected and found."),
    ("retries", "retries_total", "Attempts after the first one of a request."),
)
_SERIES_GAUGES = (
    ("in_flight", "requests_in_flight", "Requests that were begun and are not answered in full."),
    ("waiting", "requests_waiting", "Those of them that wait for room."),
)
_PROCESS = (
    ("cpu_s", "counter", "cpu_seconds_total", "CPU time, user and system, of a gateway process."),
    ("rss_bytes", "gauge", "resident_memory_bytes", "Resident memory of a gateway process."),
    ("connections", "gauge", "client_connections", "Open connections of clients."),
    ("held_bytes", "gauge", "held_body_bytes", "Request bodies in memory."),
    ("lag_max_s", "gauge", "event_loop_lag_max_seconds", "The longest lag of the last 30 to 60 seconds."),
)


def render(snapshot: Mapping[str, Any]) -> bytes:
    """The answer to a scrape. snapshot: from ``Metrics.snapshot`` or ``merge``."""
    lines: list[str] = []
    for family in (_of_series, _of_latencies, _of_refusals, _of_upstreams, _of_processes):
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
    yield from _family("requests_total", "counter", "Requests that ended, by how they ended.", outcomes)
    for field, name, text in _SERIES_COUNTERS:
        yield from _family(name, "counter", text, ((labels, item[field]) for labels, item in series))
    for field, name, text in _SERIES_GAUGES:
        yield from _family(name, "gauge", text, ((labels, item[field]) for labels, item in series))


def _of_latencies(snapshot: Mapping[str, Any]) -> Iterator[str]:
    series = [(_labels(model=item["model"], tenant=item["tenant"]), item) for item in snapshot["series"]]
    for field, name, text in _HISTOGRAMS:
        bounds = ITL_BOUNDS_S if field == "itl" else REQUEST_BOUNDS_S
        yield from _histogram_family(name, text, bounds, ((labels, item[field]) for labels, item in series))


def _of_refusals(snapshot: Mapping[str, Any]) -> Iterator[str]:
    refusals = ((_labels(code=code, tenant=tenant), count) for code, tenant, count in snapshot["refusals"])
    yield from _family("refusals_total", "counter", "Error responses of the gateway itself.", refusals)
    fallbacks = ((_labels(requested=asked, served=served), count) for asked, served, count in snapshot["fallbacks"])
    yield from _family("fallbacks_total", "counter", "Requests that another model served.", fallbacks)
    external = ((_labels(endpoint=where, outcome=how), count) for where, how, count in snapshot["external"])
    yield from _family("external_requests_total", "counter", "Requests that external addresses ended.", external)
    costs = ((_labels(model=name, currency=unit), nanos / NANOS) for name, unit, nanos in snapshot["costs"])
    yield from _family("external_cost_total", "counter", "Money that external models cost.", costs)
    resumes = ((_labels(reason=why, result=result), count) for why, result, count in snapshot.get("resumes", ()))
    yield from _family("resumes_total", "counter", "Responses that lost their engine, by result.", resumes)
    for field, name, text in _RESUME_TIMES:
        counts = snapshot.get("resume_times", {}).get(field)
        yield from _histogram_family(name, text, REQUEST_BOUNDS_S, [("", counts)] if counts else [])
    events = ((_labels(event=name), count) for name, count in snapshot["events"].items())
    yield from _family("events_total", "counter", "Rare events that matter to an operator.", events)


def _of_upstreams(snapshot: Mapping[str, Any]) -> Iterator[str]:
    rows = [(_labels(model=u["model"], replica=u["replica"]), u) for u in snapshot["upstreams"]]
    ready = ((labels, int(row["ready"] > 0)) for labels, row in rows)
    yield from _family("upstream_ready", "gauge", "1 while a replica takes requests.", ready)
    suspect = ((labels, row["suspect"]) for labels, row in rows)
    yield from _family("upstream_suspect", "gauge", "Gateway processes that could not connect to it lately.", suspect)
    busy = ((labels, row["outstanding"]) for labels, row in rows)
    yield from _family("upstream_requests_in_flight", "gauge", "Requests of this node at a replica.", busy)


def _of_processes(snapshot: Mapping[str, Any]) -> Iterator[str]:
    rows = [(_labels(process=item["process"]), item) for item in snapshot["processes"]]
    for field, kind, name, text in _PROCESS:
        yield from _family(name, kind, text, ((labels, item[field]) for labels, item in rows if field in item))
    lags = ((labels, item["lag"]) for labels, item in rows if "lag" in item)
    yield from _histogram_family("event_loop_lag_seconds", "Delay of the event loop.", LAG_BOUNDS_S, lags)
    missing = [("", len(snapshot.get("missing", ())))]
    yield from _family("processes_missing", "gauge", "Processes of this node that did not reply in time.", missing)


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in samples:
        yield f"longboat_gateway_{name}{{{labels}}} {value}" if labels else f"longboat_gateway_{name} {value}"


def _histogram_family(
    name: str, text: str, bounds: tuple[float, ...], samples: Iterable[tuple[str, list[float]]]
) -> Iterator[str]:
    """Write histograms, without those that counted nothing."""
    yield from _head(name, "histogram", text)
    metric = f"longboat_gateway_{name}"
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


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP longboat_gateway_{name} {text}"
    yield f"# TYPE longboat_gateway_{name} {kind}"


def _labels(**values: str) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
