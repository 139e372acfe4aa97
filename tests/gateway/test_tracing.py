"""Traces: whose decision counts, what the engine is told, and what a collector receives."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from gateway_lab import RawClient, settled
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recent import record

from longboat.gateway.records.recent import Attempt
from longboat.gateway.records.spans import FinishedSpan, Span, parse_traceparent, passed_on
from longboat.gateway.records.trace_export import encoded
from longboat.gateway.records.tracing import Tracer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01".encode()
UNSAMPLED = f"00-{TRACE}-{PARENT}-00".encode()
DEADLINE_S = 20.0


class Collected:
    """An export that keeps what it gets."""

    def __init__(self, *, works: bool = True) -> None:
        self.finished: list[FinishedSpan] = []
        self.works = works
        self.go_on = threading.Event()
        self.go_on.set()

    def export(self, finished: Sequence[FinishedSpan]) -> str:
        self.go_on.wait(DEADLINE_S)
        self.finished.extend(finished)
        return "" if self.works else "it is tired"

    def shutdown(self) -> None:
        self.go_on.set()


def tracer(export: Collected, **options: Any) -> Tracer:
    return Tracer("http://nowhere:4318", export=export, **options)


@pytest.mark.parametrize("value", [SAMPLED, b" " + SAMPLED + b" ", b"cc" + SAMPLED[2:] + b"-what-comes"])
def test_traceparent_is_read(value: bytes) -> None:
    parent = parse_traceparent(value)
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}", parent.sampled) == (TRACE, PARENT, True)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        SAMPLED.upper(),
        SAMPLED + b"-more",
        b"ff" + SAMPLED[2:],
        SAMPLED[:-2] + b"0x",
        SAMPLED.replace(TRACE.encode(), b"0" * 32),
        SAMPLED.replace(PARENT.encode(), b"0" * 16),
        SAMPLED.replace(b"4bf9", b"4bf"),
        b"00-" + b"+" * 32 + b"-" + PARENT.encode() + b"-01",
        "00-٤bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01".encode(),
    ],
)
def test_nonsense_begins_a_trace_anew(value: bytes) -> None:
    assert parse_traceparent(value) is None
    span = tracer(Collected()).start(value)
    assert span.parent_id == 0 and f"{span.trace_id:032x}" != TRACE


def test_clients_decision_is_respected() -> None:
    never, always = tracer(Collected(), sample_ratio=0.0), tracer(Collected(), sample_ratio=1.0)
    assert never.start(SAMPLED).sampled and not always.start(UNSAMPLED).sampled
    assert always.start(None).sampled and not never.start(None).sampled


def test_ratio_is_about_what_was_asked_for() -> None:
    some = tracer(Collected(), sample_ratio=0.25)
    assert 800 < sum(some.start(None).sampled for _ in range(4000)) < 1200


def test_engine_is_told_of_the_trace_and_of_each_attempt() -> None:
    span = tracer(Collected()).start(SAMPLED, b"vendor=1")
    lines = [span.attempt().decode().split("\r\n") for _ in range(2)]
    ids = [line[0].removeprefix("traceparent: ").split("-") for line in lines]
    assert [i[1] for i in ids] == [TRACE, TRACE] and [i[3] for i in ids] == ["01", "01"]
    assert len({PARENT, f"{span.span_id:016x}", ids[0][2], ids[1][2]}) == 4
    assert lines[0][1:] == ["tracestate: vendor=1", ""]


def test_engine_is_told_that_a_request_is_not_traced() -> None:
    line = tracer(Collected(), sample_ratio=0.0).start(None).attempt()
    assert line.endswith(b"-00\r\n") and parse_traceparent(line[len("traceparent: ") : -2]) is not None


def test_endless_tracestate_is_not_passed_on() -> None:
    assert b"tracestate" not in tracer(Collected()).start(SAMPLED, b"a=" + b"x" * 600).attempt()


def test_headers_go_on_as_they_came_without_a_tracer() -> None:
    assert passed_on({}) == b""
    given = {b"traceparent": SAMPLED, b"tracestate": b"v=1", b"host": b"x"}
    assert passed_on(given) == b"traceparent: %b\r\ntracestate: v=1\r\n" % SAMPLED


def test_only_sampled_requests_are_exported() -> None:
    export = Collected()
    some = tracer(export)
    for traceparent in (SAMPLED, UNSAMPLED):
        some.finish(some.start(traceparent), record())
    some.close(DEADLINE_S)
    assert len(export.finished) == 1 and (some.num_exported, some.num_dropped) == (1, 0)


def test_collector_that_hangs_costs_bounded_memory_and_holds_nobody_up() -> None:
    export = Collected()
    export.go_on.clear()
    some = tracer(export)
    one = record()
    for _ in range(20_000):
        some.finish(some.start(None), one)
    assert some.num_dropped >= 20_000 - 8192 - 512
    some.close(0.2)


def test_spans_that_nobody_takes_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    some = tracer(Collected(works=False))
    for _ in range(3):
        some.finish(some.start(None), record())
    some.close(DEADLINE_S)
    assert (some.num_exported, some.num_dropped) == (0, 3)
    assert caplog.text.count("does not accept traces (it is tired)") == 1


def test_tracing_needs_no_opentelemetry() -> None:
    """Its packages take a quarter of a second to load, and 16 MiB."""
    program = (
        "import sys; sys.modules['opentelemetry'] = None; from longboat.gateway.records.tracing import Tracer;"
        "Tracer('http://127.0.0.1:4318').close()"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


# a real collector's protocol


class Collector(HTTPServer):
    """Takes OTLP over HTTP, decodes it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []  # of its next answers; then 200
        self.arrived = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["content-length"]))
        assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.server.headers.append(dict(self.headers))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("content-length", "0")
        self.send_header("location", "/elsewhere")
        self.end_headers()
        self.server.arrived.set()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_collector_receives_the_request_and_its_attempts(collector: Collector) -> None:
    from longboat.gateway.records.trace_export import OtlpExport

    url = f"http://127.0.0.1:{collector.server_port}"
    real = Tracer(url, export=OtlpExport(url, {"longboat.node": "n1"}))
    span = real.start(SAMPLED, b"vendor=1")
    attempts = (Attempt("r0", 0.1, "connection refused", 0.2), Attempt("r1", 0.2))
    engine_ids = [span.attempt().split(b"-")[2].decode() for _ in attempts]
    real.finish(span, record(attempts=attempts))
    assert collector.arrived.wait(DEADLINE_S)
    real.close()
    (resource_spans,) = collector.requests[0].resource_spans
    resource = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
    assert (resource["service.name"], resource["longboat.node"]) == ("longboat-gateway", "n1")
    request, first, second = resource_spans.scope_spans[0].spans
    assert {s.trace_id.hex() for s in (request, first, second)} == {TRACE}
    assert (request.parent_span_id.hex(), request.name, request.kind) == (PARENT, "POST /v1/chat/completions", 2)
    assert [s.parent_span_id for s in (first, second)] == [request.span_id] * 2
    assert [s.span_id.hex() for s in (first, second)] == engine_ids
    assert (first.status.code, first.status.message, second.status.code) == (2, "connection refused", 0)
    assert (request.end_time_unix_nano - request.start_time_unix_nano) / 1e9 == pytest.approx(2.0)
    assert (first.end_time_unix_nano, second.end_time_unix_nano) == (1000_200_000_000, 1002_000_000_000)
    facts = {a.key: a.value for a in request.attributes}
    assert facts["gen_ai.usage.input_tokens"].int_value == 7 and facts["longboat.tenant"].string_value == "a"
    assert [e.name for e in request.events] == ["routed", "first_byte"]
    assert request.trace_state == "vendor=1"


def test_failed_request_is_an_error_and_a_clients_mistake_is_none(collector: Collector) -> None:
    from longboat.gateway.records.trace_export import OtlpExport

    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    real = Tracer(url, export=OtlpExport(url, {}))
    for status, outcome, code in ((502, "engine_error", "engine_lost"), (404, "client_error", "")):
        real.finish(real.start(None), record(status=status, outcome=outcome, code=code, attempts=()))
    real.close(DEADLINE_S)
    spans = [s for r in collector.requests for s in r.resource_spans[0].scope_spans[0].spans]
    assert [s.status.code for s in spans] == [2, 0]
    assert [s.parent_span_id for s in spans] == [b"", b""]


@pytest.mark.parametrize(("statuses", "exported"), [([503, 429], 1), ([503] * 3, 0), ([400], 0)])
def test_collector_that_is_busy_is_asked_again(collector: Collector, statuses: list[int], exported: int) -> None:
    collector.statuses += statuses
    real = Tracer(f"http://127.0.0.1:{collector.server_port}")
    real.finish(real.start(None), record())
    deadline_s = time.monotonic() + DEADLINE_S
    while real.num_exported + real.num_dropped == 0 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    real.close(DEADLINE_S)
    assert (real.num_exported, real.num_dropped) == (exported, 1 - exported)
    assert len(collector.requests) == len(statuses) + exported


@pytest.mark.parametrize(("status", "why"), [(401, "it answers 401"), (0, "Connection refused")])
def test_why_a_collector_takes_no_spans_is_told(
    collector: Collector, caplog: pytest.LogCaptureFixture, status: int, why: str
) -> None:
    collector.statuses.append(status)
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces" if status else "http://127.0.0.1:1/v1/traces?key=secret"
    real = Tracer(url)
    real.finish(real.start(None), record())
    real.close(DEADLINE_S)
    assert f"{url.partition('?')[0]} does not accept traces ({why})" in caplog.text


def test_a_redirect_takes_neither_spans_nor_headers_elsewhere(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    followed = []
    monkeypatch.setattr(_Handler, "do_GET", lambda self: followed.append(dict(self.headers)), raising=False)
    collector.statuses.append(302)
    real = Tracer(f"http://127.0.0.1:{collector.server_port}")
    real.finish(real.start(None), record())
    real.close(DEADLINE_S)
    assert (real.num_exported, real.num_dropped, followed) == (0, 1, [])


def test_spans_are_named_by_method_and_route(collector: Collector) -> None:
    real = Tracer(f"http://127.0.0.1:{collector.server_port}")
    paths = {
        "/v1/responses/resp_1": "GET /v1/responses/{id}",
        "/v1/responses/resp_1/cancel": "GET /v1/responses/{id}/cancel",
        "/v1/responses": "GET /v1/responses",
        "/tokenizer_info": "GET /tokenizer_info",
    }
    for path in paths:
        span = real.start(None)
        span.method = "GET"
        real.finish(span, record(path=path, attempts=()))
    real.close(DEADLINE_S)
    spans = [s for r in collector.requests for s in r.resource_spans[0].scope_spans[0].spans]
    methods = {a.value.string_value for s in spans for a in s.attributes if a.key == "http.request.method"}
    assert [s.name for s in spans] == list(paths.values()) and methods == {"GET"}


async def test_a_request_without_a_body_is_traced_by_its_method(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(await make_upstream())
    collected = Collected()
    tracer = gateway.state.accounting.tracer = Tracer("", export=collected)
    client = await RawClient.to(gateway)
    assert (await client.get("/tokenizer_info")).status == 200
    settled(gateway)
    tracer.close(DEADLINE_S)
    assert [item.span.method for item in collected.finished] == ["GET"]


def test_collector_gets_the_headers_of_the_environment(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Key=a%20b, x-other = c")
    real = Tracer(f"http://127.0.0.1:{collector.server_port}")
    real.finish(real.start(None), record())
    real.close(DEADLINE_S)
    headers = {name.lower(): value for name, value in collector.headers[0].items()}
    assert (headers["x-key"], headers["x-other"]) == ("a b", "c")


TEXTS = st.text(max_size=200)
COUNTS = st.none() | st.integers(-1, 2**62)


@settings(deadline=None)
@given(TEXTS, st.none() | TEXTS, COUNTS, st.integers(100, 599), st.lists(TEXTS, max_size=3), st.booleans())
def test_encoded_spans_are_decoded_as_they_were(
    path: str, model: str | None, tokens: int | None, status: int, replicas: list[str], has_parent: bool
) -> None:
    trace = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    span = Span(parse_traceparent(SAMPLED) if has_parent else None, b"", sampled=True)
    ended = record(
        path=path, model=model, prompt_tokens=tokens, status=status,
        attempts=tuple(Attempt(replica, 0.1 * at) for at, replica in enumerate(replicas)),
    )  # fmt: skip
    for _ in replicas:
        span.attempt()
    decoded = trace.ExportTraceServiceRequest.FromString(encoded([FinishedSpan(span, ended)] * 2, {"a": path}))
    (resource,) = decoded.resource_spans
    assert resource.resource.attributes[0].value.string_value == utf8(path)
    spans = resource.scope_spans[0].spans
    assert len(spans) == 2 * (1 + len(replicas))
    facts = {one.key: one.value for one in spans[0].attributes}
    assert (facts["url.path"].string_value, facts["http.response.status_code"].int_value) == (utf8(path), status)
    assert ("gen_ai.request.model" in facts) == (model is not None)
    assert tokens is None or facts["gen_ai.usage.input_tokens"].int_value == tokens
    assert spans[0].name == f"POST {utf8(path)}" and spans[0].flags == (0x301 if has_parent else 0x101)
    assert [one.attributes[0].value.string_value for one in spans[1 : 1 + len(replicas)]] == [utf8(r) for r in replicas]
    assert all(one.parent_span_id == spans[0].span_id for one in spans[1 : 1 + len(replicas)])


def utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
