"""`longboat why` without an id: the slow replica and the waiting tenant stand first."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cli.cli_process import Done
from longboat.cli.look.why_slow import medians


def row(replica: str, total_ms: float | None, tenant: str = "acme", **changed: Any) -> dict[str, Any]:
    known = {"id": f"{tenant}-{replica}", "model": "chat", "pool": "chat", "outcome": "ok", "received": 1.0}
    times = {"ttft_ms": 50.0, "queue_ms": 0.0, "total_ms": total_ms, "completion_tokens": 100}
    return {**known, **times, "tenant": tenant, "replica": replica, **changed}


ROWS = [
    row("r0", 2000.0),
    row("r0", 2000.0),
    row("r1", 4000.0),
    row("r0", 62000.0, tenant="flood", queue_ms=60000.0, outcome="engine_lost"),
]
RUNNING = [
    {"model": "chat", "replica": "r0", "tenant": "stream", "requests": 40},
    {"model": "chat", "replica": "r1", "tenant": "stream", "requests": 2},
    {"model": "chat", "replica": "r1", "tenant": "acme", "requests": 1},
]


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        place = urlsplit(self.path)
        tenant = parse_qs(place.query).get("tenant", [None])[0]
        rows = [row for row in ROWS if tenant in (None, row["tenant"])]
        self.send_response(200 if place.path == "/admin/v1/requests" else 404)
        self.end_headers()
        running = [row for row in RUNNING if tenant in (None, row["tenant"])]
        self.wfile.write(json.dumps({"requests": rows, "running": running}).encode())

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_replicas_and_tenants_are_compared_without_their_waits(longboat: Callable[..., Done], url: str) -> None:
    document = json.loads(longboat("why", "--url", url, "--json").stdout)
    replicas = [(entry["name"], entry["requests"], entry["ms_per_token"]) for entry in document["replicas"]]
    assert replicas == [("chat/r1", 1, 40.0), ("chat/r0", 3, 20.0)]
    waits = {entry["name"]: (entry["queue_ms"], entry["failed"]) for entry in document["tenants"]}
    assert waits == {"acme": (0.0, 0), "flood": (60000.0, 1), "stream": (None, 0)}


def test_requests_that_run_are_counted_although_none_ended(longboat: Callable[..., Done], url: str) -> None:
    document = json.loads(longboat("why", "--url", url, "--json").stdout)
    assert {entry["name"]: entry["running"] for entry in document["tenants"]} == {"acme": 1, "flood": 0, "stream": 42}
    assert {entry["name"]: entry["running"] for entry in document["replicas"]} == {"chat/r0": 40, "chat/r1": 3}
    lines = longboat("why", "--tenant", "stream", "--url", url).stdout.splitlines()
    assert [line.split() for line in lines if "stream" in line] == [["stream", "42", "0", "0"]]


def test_one_tenant_is_listed_in_80_columns(
    longboat: Callable[..., Done], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = longboat("why", "--tenant", "acme", "--url", url)
    assert done.stdout.splitlines()[1].split() == ["chat/r1", "1", "1", "0", "0.0", "50.0", "40.0"]
    assert "flood" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_tenant_without_requests_is_said_so(longboat: Callable[..., Done], url: str) -> None:
    assert "no gateway remembers a request of tenant x" in longboat("why", "--tenant", "x", "--url", url).stdout


def test_times_that_no_request_has_are_unknown() -> None:
    (entry,) = medians([row("r0", None, ttft_ms=None, queue_ms=None, ms_per_token=None)], lambda one: one["replica"])
    assert (entry["ttft_ms"], entry["ms_per_token"], entry["requests"]) == (None, None, 1)
