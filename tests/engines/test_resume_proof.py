"""Tests of an engine's proof of resuming, at each level, and where the engine cannot be reached."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from engines.fake_process import fake_engine
from free_ports import free_port
from longboat.core.states import ResumeLevel
from longboat.engines.resume_proof import ResumeProof, prove
from longboat.gateway.http.message import ask

KEY = "s3cret"


def proof_of(*flags: str, key: str = KEY) -> ResumeProof:
    with fake_engine(*flags, key=KEY) as engine:
        return asyncio.run(prove(partial(ask, engine.url, api_key=key), "m", timeout_s=20.0))


def test_engine_that_carries_proves_each_kind_of_answer() -> None:
    proof = proof_of()
    assert proof.level == ResumeLevel.CARRIED
    assert [case.name for case in proof.cases] == ["carried greedy", "carried seeded", "carried grammar"]
    assert all(case.passed for case in proof.cases)
    assert proof.detail == ""


def test_engine_that_only_replays_proves_that_and_says_what_it_lacks() -> None:
    proof = proof_of("--resume", "replay")
    assert proof.level == ResumeLevel.REPLAY
    assert {case.name.split()[0] for case in proof.cases} == {"replay"}


@pytest.mark.parametrize(("flags", "key"), [(("--resume", "none"), KEY), ((), "another")], ids=["none", "wrong-key"])
def test_engine_that_cannot_be_asked_has_no_level_and_a_reason(flags: tuple[str, ...], key: str) -> None:
    proof = proof_of(*flags, key=key)
    assert proof.level == ResumeLevel.NONE


def test_engine_that_is_not_there_proves_nothing() -> None:
    proof = asyncio.run(prove(partial(ask, f"http://127.0.0.1:{free_port()}", api_key=KEY), "m", timeout_s=5.0))
    assert proof.level == ResumeLevel.NONE
    assert "failed during its proof" in proof.detail


def test_engine_that_is_too_slow_proves_nothing_in_time() -> None:
    with fake_engine("--ttft-ms", "5000", key=KEY) as engine:
        proof = asyncio.run(prove(partial(ask, engine.url, api_key=KEY), "m", timeout_s=0.5))
    assert proof.level == ResumeLevel.NONE
    assert "within 0.5 s" in proof.detail or "broke off" in proof.detail


class _Forgetful(BaseHTTPRequestHandler):
    """An engine that claims to carry and replay, but continues wrongly in one of both ways."""

    wrong_mode = "carried"

    def do_GET(self) -> None:
        self._send(b'{"carried": true, "replay": true, "detail": ""}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        carried = json.loads(body[: int(self.headers.get("x-longboat-carry") or 0)] or b"{}")
        tokens = [1, 2, 3, 4, 5, 6]
        if carried.get("mode") == self.wrong_mode:
            tokens = [*carried["prior"][0], 9, 9, 9]
        events = [f': ids 0 {token}\ndata: {{"choices":[{{"index":0,"text":"t{token}"}}]}}\n\n' for token in tokens]
        self._send("".join(events).encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


def test_engine_that_carries_wrongly_is_believed_only_what_it_proved() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Forgetful)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        proof = asyncio.run(
            prove(partial(ask, f"http://127.0.0.1:{server.server_port}", api_key=KEY), "m", timeout_s=20.0)
        )
    finally:
        server.shutdown()
        server.server_close()
    assert proof.level == ResumeLevel.REPLAY
    assert "carried greedy: the tokens differ from position 3 on" in proof.detail
    assert {case.name: case.passed for case in proof.cases}["replay seeded"]


@dataclass
class _Answer:
    body: bytes
    status: int = 200


async def test_a_token_that_python_takes_for_the_end_of_a_line_is_part_of_the_text() -> None:
    async def send(path: str, **_: object) -> _Answer:
        if path == "/longboat/v1/resume":
            return _Answer(b'{"carried": true}')
        words = ("a", "\u2028", "\x85", "b")
        events = [f': ids 0 {at}\ndata: {{"choices":[{{"text":"{word}"}}]}}\n\n' for at, word in enumerate(words)]
        return _Answer("".join(events).encode())

    assert (await prove(send, "m", timeout_s=20.0)).level == ResumeLevel.CARRIED
