"""``longboat why`` before one gateway: what a tenant gets, and ids that clients choose freely."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest

from cli.cli_process import Done

Longboat = Callable[..., Done]
ROW = {"replica": "r0", "chosen": True, "queue_s": 0.5}
NUMBERS = {"ttft_ms": 1.0, "prompt_tokens": 7, "cached_tokens": 0}


class Gateway(http.server.HTTPServer):
    """Knows one request, whatever its id is."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.candidates = [ROW, {**ROW, "replica": "r1", "chosen": False}]
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def document(self, request_id: str) -> dict[str, Any]:
        choice = {"policy": "cost", "replica": "r0", "why": "it costs least", "candidates": self.candidates}
        choice |= {"compared": 3, "expected": NUMBERS, "happened": NUMBERS}
        routing = {"chosen": "tiny", "reason": "name", "choice": choice}
        told = {"id": request_id, "path": "/v1/chat/completions", "pool": "tiny", "outcome": "completed"}
        return {**told, "received": 1.0, "replica": "r0", "routing": routing, "events": []}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        body = json.dumps(self.server.document(unquote(self.path.rpartition("/")[2]))).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    server = Gateway()
    yield server
    server.shutdown()
    server.server_close()


def ask(longboat: Longboat, gateway: Gateway, request_id: str) -> Done:
    return longboat("why", "--url", f"http://127.0.0.1:{gateway.server_port}", "--", request_id)


def test_the_replicas_that_were_compared_are_shown(longboat: Longboat, gateway: Gateway) -> None:
    done = ask(longboat, gateway, "abc")
    assert done.returncode == 0
    assert "> r0" in done.stdout and "r1" in done.stdout and "1 more were compared" in done.stdout


def test_a_tenant_that_gets_no_load_of_replicas_sees_the_rest(longboat: Longboat, gateway: Gateway) -> None:
    gateway.candidates = []
    done = ask(longboat, gateway, "abc")
    assert done.returncode == 0, done.stderr
    assert "replica: r0, it costs least" in done.stdout and "EXPECTED" in done.stdout
    assert "more were compared" not in done.stdout


@pytest.mark.parametrize("request_id", [".", "..", "a/b", "a?b=c", "a#b", "a%2Fb", "e\N{COMBINING ACUTE ACCENT}"])
def test_an_id_is_one_segment_of_the_path(longboat: Longboat, gateway: Gateway, request_id: str) -> None:
    done = ask(longboat, gateway, request_id)
    assert done.returncode == 0, done.stderr
    (path,) = gateway.paths
    place, _, segment = path.rpartition("/")
    assert (place, unquote(segment)) == ("/admin/v1/requests", request_id)


@pytest.mark.parametrize("key", ["lb-\N{LATIN SMALL LETTER E WITH ACUTE}", "lb-a\nb"])
def test_a_key_that_no_header_can_carry_is_refused(
    longboat: Longboat, gateway: Gateway, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGBOAT_API_KEY", key)
    done = ask(longboat, gateway, "abc")
    assert done.returncode == 2
    assert "LONGBOAT_API_KEY has characters that an HTTP header cannot carry" in done.stderr
    assert "lb-" not in done.stderr
