"""Tests that the fake engine's responses break in the ways in which engines break."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from engines.fake_process import FakeProcess, fake_engine

_TEXT: dict[str, Any] = {"model": "m", "prompt": "who rows", "stream": True, "max_tokens": 24}


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeProcess]:
    with fake_engine("--itl-ms", "2") as started:
        yield started


def _order(engine: FakeProcess, kind: str, **fields: int) -> None:
    assert httpx.post(f"{engine.url}/fault", json={"kind": kind, **fields}, timeout=5).status_code == 200
    time.sleep(0.1)


def _raw_answer(engine: FakeProcess, path: str = "/v1/completions", document: Any = None) -> bytes:
    """Return everything that comes until the engine closes the connection."""
    body = orjson.dumps(document or _TEXT)
    host, port = engine.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
        data = b""
        while piece := connection.recv(65536):
            data += piece
            if data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                break
    return data


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("break", b"\n\n\r\n"),
        ("truncate", b'"del'),
        ("garbage", b"~no chunk at all~\r\n\r\n"),
        ("nonsense", b"[{]}\n\n\r\n0\r\n\r\n"),
        ("report", b"data: [DONE]\n\n\r\n0\r\n\r\n"),
    ],
)
def test_answer_breaks_after_its_tokens_and_the_next_one_is_whole(engine: FakeProcess, kind: str, end: bytes) -> None:
    _order(engine, kind, after_tokens=5)
    data = _raw_answer(engine)
    assert data.count(b'"text":') == 5
    assert data.endswith(end)
    assert _raw_answer(engine).count(b'"text":') == 24


def test_reported_error_has_the_shape_of_its_api(engine: FakeProcess) -> None:
    _order(engine, "report", after_tokens=2)
    assert b'data: {"error":{"message":"EngineCore' in _raw_answer(engine)
    _order(engine, "report", after_tokens=2)
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 9}
    assert b'event: error\ndata: {"type":"error"' in _raw_answer(engine, "/v1/messages", chat)


def test_error_answers_as_many_requests_as_ordered(engine: FakeProcess) -> None:
    _order(engine, "error", times=2)
    statuses = [httpx.post(f"{engine.url}/v1/completions", json=_TEXT).status_code for _ in range(3)]
    assert statuses == [500, 500, 200]


def test_stalled_answer_stops_and_others_go_on(engine: FakeProcess) -> None:
    _order(engine, "stall", after_tokens=3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{engine.url}/v1/completions", json=_TEXT, timeout=0.7)
    assert httpx.post(f"{engine.url}/v1/completions", json=_TEXT).status_code == 200


def test_poison_kills_the_engine_that_admits_it() -> None:
    with fake_engine("--poison", "curare") as engine:
        assert httpx.post(f"{engine.url}/v1/completions", json=_TEXT).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{engine.url}/v1/completions", json={**_TEXT, "prompt": "some curare please"})
        assert engine.process.wait(10) == -signal.SIGKILL


def test_fault_that_makes_no_sense_is_refused(engine: FakeProcess) -> None:
    for fault in ({"kind": "melt"}, {"kind": "stall", "times": 0}, {"kind": "die", "when": 1}):
        assert httpx.post(f"{engine.url}/fault", json=fault).status_code == 400
