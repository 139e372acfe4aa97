"""Metrics: what is counted, how labels are bounded, how processes are added up, what a scrape reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from longboat.gateway.records.host_gauges import host_gauges
from longboat.gateway.records.metrics import (
    ITL_BOUNDS_S,
    OTHER,
    OUTCOMES,
    REQUEST_BOUNDS_S,
    LoopLag,
    Metrics,
    Series,
    merge,
)
from longboat.gateway.records.metrics_text import render

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def finished(
    series: Series, outcome: str = "ok", ttft_s: float | None = 0.02, e2e_s: float | None = 1.5, **more: Any
) -> None:
    given = {"queue_s": 0.0, "prompt": 10, "completion": 5, "cached": 4, "retries": 0, **more}
    series.done(outcome, ttft_s, e2e_s, **given)


def samples(snapshot: dict[str, Any]) -> Samples:
    """As Prometheus's own client reads the text."""
    families = text_string_to_metric_families(render(snapshot).decode())
    return {
        (sample.name.removeprefix("longboat_gateway_"), frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_requests_are_counted_by_model_tenant_and_outcome() -> None:
    metrics = Metrics()
    finished(metrics.series("m", "a"))
    finished(metrics.series("m", "a"))
    finished(metrics.series("m", "b"), outcome="client_left", ttft_s=None)
    read = samples(metrics.snapshot())
    assert read["requests_total", labels(model="m", tenant="a", outcome="ok")] == 2
    assert read["requests_total", labels(model="m", tenant="b", outcome="client_left")] == 1
    assert read["prompt_tokens_total", labels(model="m", tenant="a")] == 20
    assert read["generation_tokens_total", labels(model="m", tenant="a")] == 10
    assert read["prompt_tokens_cached_total", labels(model="m", tenant="a")] == 8


def test_series_is_the_same_object_every_time() -> None:
    metrics = Metrics()
    assert metrics.series("m", "a") is metrics.series("m", "a")
    assert metrics.series("m", "a") is not metrics.series("m", "b")


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0011, 0.02, 0.3, 640.0, 9999.0])
def test_histogram_counts_an_observation_at_every_bound_it_does_not_pass(seconds: float) -> None:
    metrics = Metrics()
    finished(metrics.series("m", "a"), ttft_s=seconds, e2e_s=seconds)
    read = samples(metrics.snapshot())
    for bound in REQUEST_BOUNDS_S:
        key = ("time_to_first_token_seconds_bucket", labels(model="m", tenant="a", le=str(bound)))
        assert read[key] == (seconds <= bound)
    assert read["time_to_first_token_seconds_bucket", labels(model="m", tenant="a", le="+Inf")] == 1
    assert read["time_to_first_token_seconds_count", labels(model="m", tenant="a")] == 1
    assert read["e2e_request_latency_seconds_sum", labels(model="m", tenant="a")] == pytest.approx(seconds)


def test_inter_token_latency_is_observed_by_block() -> None:
    series = Metrics().series("m", "a")
    for seconds in (0.004, 0.004, 30.0):
        series.itl.observe(seconds)
    itl = series.snapshot()["itl"]
    assert sum(itl[:-1]) == 3 and itl[len(ITL_BOUNDS_S)] == 1
    assert itl[-1] == pytest.approx(30.008)


def test_request_without_a_byte_is_in_no_latency_but_the_queues() -> None:
    metrics = Metrics()
    finished(metrics.series("m", "a"), outcome="expired", ttft_s=None, e2e_s=None, queue_s=3.0, prompt=None)
    read = samples(metrics.snapshot())
    assert read["queue_time_seconds_count", labels(model="m", tenant="a")] == 1
    assert not any(name.startswith(("time_to_first", "e2e_")) for name, _ in read)


def test_gauges_go_up_and_down() -> None:
    metrics = Metrics()
    series = metrics.series("m", "a")
    series.in_flight += 2
    series.waiting += 1
    before = samples(metrics.snapshot())
    series.waiting -= 1
    series.in_flight -= 1
    series.done("ok", 0.1, 0.2, 0.0, 1, 1, 0, 0)
    after = samples(metrics.snapshot())
    key = labels(model="m", tenant="a")
    assert (before["requests_in_flight", key], after["requests_in_flight", key]) == (2, 1)
    assert (before["requests_waiting", key], after["requests_waiting", key]) == (1, 0)


def test_tenants_and_models_beyond_the_bound_share_a_label() -> None:
    metrics = Metrics(max_label_values=2)
    for tenant in ("a", "b", "c", "d", "a"):
        finished(metrics.series("m", tenant))
    metrics.refused("quota", "e")
    read = samples(metrics.snapshot())
    counts = {dict(key)["tenant"]: value for (name, key), value in read.items() if name == "requests_total"}
    assert counts == {"a": 2, "b": 1, OTHER: 2}
    assert read["refusals_total", labels(code="quota", tenant=OTHER)] == 1


def test_series_are_bounded_however_many_names_come() -> None:
    metrics = Metrics(max_label_values=200)
    for model in range(300):
        for tenant in range(300):
            finished(metrics.series(f"m{model}", f"t{tenant}"))
    snapshot = metrics.snapshot()
    assert len(snapshot["series"]) <= 2000 + 300
    assert sum(item["outcomes"]["ok"] for item in snapshot["series"]) == 90_000


def test_every_outcome_and_refusal_is_told_apart() -> None:
    metrics = Metrics()
    for outcome in OUTCOMES:
        finished(metrics.series("m", "a"), outcome=outcome)
    metrics.refused("invalid_json")
    metrics.fell_back("big", "small")
    metrics.event("redis_unavailable", 3)
    read = samples(metrics.snapshot())
    assert all(read["requests_total", labels(model="m", tenant="a", outcome=outcome)] == 1 for outcome in OUTCOMES)
    assert read["refusals_total", labels(code="invalid_json", tenant="")] == 1
    assert read["fallbacks_total", labels(requested="big", served="small")] == 1
    assert read["events_total", labels(event="redis_unavailable")] == 3


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    name = 'a"b\\c\nd'
    finished(metrics.series("m", name))
    assert samples(metrics.snapshot())["requests_total", labels(model="m", tenant=name, outcome="ok")] == 1


def test_upstreams_and_process_are_shown() -> None:
    upstream = SimpleNamespace(model="m", replica="r0", ready=True, suspect=False, outstanding=3)
    gauges = SimpleNamespace(connections={1, 2}, held_bytes=77)
    read = samples(Metrics(process="worker-1").snapshot([upstream], gauges))
    replica, process = labels(model="m", replica="r0"), labels(process="worker-1")
    assert (read["upstream_ready", replica], read["upstream_suspect", replica]) == (1, 0)
    assert read["upstream_requests_in_flight", replica] == 3
    assert (read["client_connections", process], read["held_body_bytes", process]) == (2, 77)
    assert read["cpu_seconds_total", process] > 0 and read["resident_memory_bytes", process] > 1e6


def test_merge_adds_counts_and_keeps_processes_apart() -> None:
    first, second = Metrics(process="worker-0"), Metrics(process="worker-1")
    finished(first.series("m", "a"))
    finished(second.series("m", "a"))
    finished(second.series("m", "a"), outcome="broken")
    finished(second.series("n", "b"))
    first.refused("quota", "a")
    second.refused("quota", "a")
    for ready, metrics in ((True, first), (False, second)):
        metrics.lag.tick(1.0)
        metrics.lag.tick(1.2)
        assert samples(
            metrics.snapshot([SimpleNamespace(model="m", replica="r", ready=ready, suspect=False, outstanding=2)])
        )
    wires = [json.loads(json.dumps(m.snapshot([_replica()]))) for m in (first, second)]
    read = samples(merge(wires))
    assert read["requests_total", labels(model="m", tenant="a", outcome="ok")] == 2
    assert read["requests_total", labels(model="m", tenant="a", outcome="broken")] == 1
    assert read["e2e_request_latency_seconds_sum", labels(model="m", tenant="a")] == pytest.approx(4.5)
    assert read["refusals_total", labels(code="quota", tenant="a")] == 2
    assert read["upstream_ready", labels(model="m", replica="r0")] == 1
    assert read["upstream_requests_in_flight", labels(model="m", replica="r0")] == 4
    lags = {dict(key)["process"]: v for (name, key), v in read.items() if name == "event_loop_lag_seconds_count"}
    assert lags == {"worker-0": 1, "worker-1": 1}


def test_merge_changes_none_of_its_parts() -> None:
    metrics = Metrics()
    finished(metrics.series("m", "a"))
    snapshot = metrics.snapshot()
    before = json.dumps(snapshot)
    merge([snapshot, snapshot])
    assert json.dumps(snapshot) == before
    assert merge([snapshot]) == snapshot


def test_missing_processes_are_told() -> None:
    read = samples({**Metrics().snapshot(), "missing": ["worker-1"]})
    assert read["processes_missing", frozenset()] == 1


def test_loop_lag_is_how_late_a_tick_comes() -> None:
    lag = LoopLag()
    assert lag.tick(5.0) == pytest.approx(5.1)
    lag.tick(5.1)
    lag.tick(5.5)
    snapshot = lag.snapshot()
    assert sum(snapshot["lag"][:-1]) == 2
    assert snapshot["lag"][-1] == pytest.approx(0.3) and snapshot["lag_max_s"] == pytest.approx(0.3)


def test_longest_lag_is_forgotten_after_a_minute() -> None:
    lag, now_s = LoopLag(), 0.0
    for tick in range(700):
        now_s += 2.0 if tick == 5 else 0.1
        lag.tick(now_s)
        if tick == 200:
            assert lag.snapshot()["lag_max_s"] == pytest.approx(1.9)
    assert lag.snapshot()["lag_max_s"] < 0.01


def _replica() -> SimpleNamespace:
    return SimpleNamespace(model="m", replica="r0", ready=True, suspect=False, outstanding=2)


def test_reference_has_each_metric_and_each_outcome() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    metrics = Metrics()
    finished(metrics.series("m", "a"))
    types = re.findall(
        r"^# TYPE longboat_(?:gateway|scaling|planner|node)_(\w+) (\w+)$", render(metrics.snapshot()).decode(), re.M
    )
    assert types == [(name, kind) for name, kind in types if f"| `{name}` | {kind} |" in page]
    assert len(types) == len(re.findall(r"\| (?:counter|gauge|histogram) \|", page))
    assert all(f"| `{outcome}` |" in page for outcome in OUTCOMES)


def test_node_gauges_come_from_the_machine(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n")
    gauges = host_gauges(str(tmp_path), tmp_path)
    assert (gauges["memory_bytes"], gauges["memory_available_bytes"]) == (2048 * 1024, 1024 * 1024)
    assert 0 < gauges["disk_available_bytes"] <= gauges["disk_bytes"]
    text = render({**Metrics().snapshot(), "node": gauges}).decode()
    assert f"longboat_node_memory_bytes {2048 * 1024}.0\n" in text


def test_a_machine_that_tells_nothing_leaves_gauges_out(tmp_path: Path) -> None:
    assert set(host_gauges(None, tmp_path)) == {"load1", "cpus"}


def test_predicted_and_measured_figures_of_models_are_shown() -> None:
    scaling = {"m": {"predicted_itl_s": 0.02, "itl_s": 0.025}}
    text = render({**Metrics().snapshot(), "scaling": scaling}).decode()
    assert 'longboat_planner_predicted_inter_token_latency_seconds{model="m"} 0.02\n' in text
    assert 'longboat_planner_measured_inter_token_latency_seconds{model="m"} 0.025\n' in text
