"""A running gateway as an operator sees it: one request in its metrics, log, timeline and trace; no prompt in any."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import DEADLINE_S, STREAM_HEAD, Seen, chunk, event
from gateway_lab import EVEN, RawClient, endpoint, eventually, table
from prometheus_client.parser import text_string_to_metric_families
from test_gateway_process import ASK, Running, Start, start
from test_tracing import PARENT, SAMPLED, TRACE, UNSAMPLED, Collector, collector
from test_workers import fresh, get

from longboat.core.policy import Policy

__all__ = ("collector", "start")  # the fixtures

USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}}\n\n'
STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}


async def two_tokens(seen: Seen) -> None:
    blocks = (event("a secret"), event("answer"), USAGE + b"data: [DONE]\n\n")
    await seen.send(STREAM_HEAD)
    for block in blocks:
        await seen.send(chunk(block))
        await asyncio.sleep(0.02)
    await seen.send(b"0\r\n\r\n")


async def ask(running: Running, request_id: str, headers: str = "", **changes: Any) -> int:
    client = await RawClient.to(running.port)
    response = await client.post({**STREAM, **changes}, headers=f"x-request-id: {request_id}\r\n{headers}")
    client.abort()
    return response.status


async def samples(running: Running) -> dict[str, float]:
    """Sums over all labels."""
    text = (await fresh(running, get("/metrics"))).body.decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("longboat_gateway_")
            sums[name] = sums.get(name, 0.0) + sample.value
    return sums


async def test_one_request_is_seen_alike_everywhere(start: Start, make_upstream: Any, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    running = await start(access_log=str(log))
    await running.control.put_table("e", table(endpoint(await make_upstream(two_tokens), "r7")))
    assert await ask(running, "one") == 200
    assert await ask(running, "two", model="nope") == 404
    read = await samples(running)
    assert (read["requests_total"], read["prompt_tokens_total"], read["generation_tokens_total"]) == (1, 11, 2)
    assert read["time_to_first_token_seconds_count"] == read["e2e_request_latency_seconds_count"] == 1
    assert read["inter_token_latency_seconds_count"] >= 1 and read["requests_in_flight"] == 0
    assert (read["refusals_total"], read["upstream_ready"]) == (1, 1)
    timeline = (await fresh(running, get("/admin/v1/requests/one"))).json()
    assert (timeline["replica"], timeline["status"], timeline["outcome"]) == ("r7", 200, "ok")
    assert [e["event"] for e in timeline["events"]] == ["received", "routed", "sent", "first_byte", "ended"]
    assert (timeline["prompt_tokens"], timeline["completion_tokens"]) == (11, 2)
    await running.control.stop()
    assert await running.ended() == 0
    one, two = map(json.loads, log.read_text().splitlines())
    same = ("id", "tenant", "model", "replica", "status", "outcome", "prompt_tokens", "completion_tokens", "retries")
    assert {name: one[name] for name in same} == {name: timeline[name] for name in same}
    assert (two["id"], two["status"], two["error"]) == ("two", 404, "model_not_found")
    for text in (log.read_text(), json.dumps(timeline)):
        assert "private" not in text and "secret" not in text


@pytest.mark.parametrize("path", ["/metrics", "/admin/v1/state", "/admin/v1/requests", "/admin/v1/requests/none"])
async def test_head_has_no_body_and_the_connection_goes_on(path: str, start: Start) -> None:
    running = await start()
    client = await RawClient.to(running.port)
    client.send(get(path, method="HEAD") + get("/livez"))
    status, headers = await client.head()
    assert status in (200, 404) and int(headers["content-length"]) > 0
    assert (await client.read_some()).startswith(b"HTTP/1.1 200 OK\r\n")  # of the second request, no body before it
    client.abort()


async def test_loop_lag_is_measured(start: Start) -> None:
    running = await start()
    async with asyncio.timeout(DEADLINE_S):
        while (await samples(running)).get("event_loop_lag_seconds_count", 0) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_retried_request_tells_why(start: Start, make_upstream: Any) -> None:
    running = await start(policy=Policy(routing=EVEN))
    good = await make_upstream(two_tokens)
    bad = endpoint("http://127.0.0.1:1", "r0")
    await running.control.put_table("e", table(bad, endpoint(good, "r1")))
    for number in range(2):  # equals take turns: one of the two begins at the bad one
        assert await ask(running, f"id-{number}") == 200
    rows = (await fresh(running, get("/admin/v1/requests"))).json()["requests"]
    (retried,) = [row for row in rows if row["retries"]]
    timeline = (await fresh(running, get(f"/admin/v1/requests/{retried['id']}"))).json()
    failed = [e for e in timeline["events"] if e["event"] == "attempt_failed"]
    assert failed[0]["replica"] == "r0" and failed[0]["reason"] and timeline["replica"] == "r1"
    assert (await samples(running))["retries_total"] == 1


async def test_log_of_several_processes_is_rotated(start: Start, make_upstream: Any, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    running = await start(processes=2, access_log=str(log), access_log_max_bytes=4096, access_log_keep=100)
    await running.control.put_table("e", table(endpoint(await make_upstream())))
    for number in range(60):
        assert await ask(running, f"id-{number}") == 200
        await asyncio.sleep(0.02 if number % 10 else 0.3)  # the log is written four times a second
    await running.control.stop()
    assert await running.ended() == 0
    files = list(tmp_path.glob("access.log*"))
    ids = [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]
    assert len(files) > 1 and sorted(ids) == sorted(f"id-{number}" for number in range(60))


async def test_trace_goes_through_gateway_and_engine(start: Start, make_upstream: Any, collector: Collector) -> None:
    upstream = await make_upstream(two_tokens)
    running = await start(tracing_endpoint=f"http://127.0.0.1:{collector.server_port}", node="n1")
    await running.control.put_table("e", table(endpoint(upstream, "r7")))
    assert await ask(running, "one", f"traceparent: {SAMPLED.decode()}\r\ntracestate: vendor=1\r\n") == 200
    assert await ask(running, "two", f"traceparent: {UNSAMPLED.decode()}\r\n") == 200
    told = [seen.header("traceparent").split("-") for seen in upstream.seen]
    assert [(t[1], t[3]) for t in told] == [(TRACE, "01"), (TRACE, "00")]
    assert PARENT not in {t[2] for t in told} and upstream.seen[0].header("tracestate") == "vendor=1"
    await running.control.stop()
    assert await running.ended() == 0
    await eventually(collector.arrived.is_set, "spans arrived")
    spans = [s for r in collector.requests for s in r.resource_spans[0].scope_spans[0].spans]
    assert [s.kind for s in spans] == [2, 3] and spans[1].span_id.hex() == told[0][2]
    assert spans[1].parent_span_id == spans[0].span_id and spans[0].parent_span_id.hex() == PARENT
    assert not any(b"secret" in s.SerializeToString() or b"private" in s.SerializeToString() for s in spans)


async def test_client_s_trace_is_passed_on_without_a_tracer(start: Start, make_upstream: Any) -> None:
    upstream = await make_upstream(two_tokens)
    running = await start()
    await running.control.put_table("e", table(endpoint(upstream)))
    await ask(running, "one", f"traceparent: {SAMPLED.decode()}\r\ntracestate: vendor=1\r\n")
    assert upstream.seen[0].header("traceparent") == SAMPLED.decode()
    assert upstream.seen[0].header("tracestate") == "vendor=1"


async def test_collector_that_is_away_costs_no_request(start: Start, make_upstream: Any) -> None:
    running = await start(tracing_endpoint="http://127.0.0.1:1")
    await running.control.put_table("e", table(endpoint(await make_upstream(two_tokens))))
    for number in range(5):
        assert await ask(running, f"id-{number}") == 200
    await running.control.stop()
    assert await running.ended() == 0
