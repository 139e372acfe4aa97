"""When an engine counts as idle: a drain ends it then."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from longboat.cluster.gang import engine_metrics
from longboat.cluster.gang.engine_metrics import EngineMetrics
from longboat.engines.registry import adapter_for

BUSY = b'vllm:num_requests_running{model_name="m"} 1.0\n'
IDLE = b'vllm:num_requests_running{model_name="m"} 0.0\nvllm:num_requests_waiting{model_name="m"} 0.0\n'
SILENT = b""
DEADLINE_S = 20.0


def answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status.encode(), len(body), body)


class Engine:
    """Serves these pages of metrics in turn, and the last one from then on; ``SILENT`` is never answered."""

    def __init__(self, *pages: bytes) -> None:
        self._pages = list(pages)
        self.num_asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_asked += 1
        page = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        await reader.readuntil(b"\r\n\r\n")
        if page is SILENT:
            await reader.read()
        writer.write(page)
        writer.close()


async def waited(*pages: bytes, limit_s: float) -> tuple[bool, Engine]:
    """Wait for such an engine to be idle. Return whether it was before the limit."""
    engine = Engine(*pages)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    until_s = time.monotonic() + limit_s
    await metrics_at(port).wait_idle(lambda: until_s)
    server.close()
    return time.monotonic() < until_s, engine


def metrics_at(port: int) -> EngineMetrics:
    gang: Any = SimpleNamespace(url=f"http://127.0.0.1:{port}", plan=None)
    return EngineMetrics(gang, adapter_for("vllm"))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "READ_S", 0.3)
    monkeypatch.setattr(engine_metrics, "SETTLE_S", 0.5)


async def test_engine_that_does_not_answer_in_time_is_not_taken_for_idle() -> None:
    was_idle, engine = await waited(SILENT, limit_s=2.0)
    assert not was_idle and engine.num_asked >= 2


@pytest.mark.parametrize("page", [answer("503 Service Unavailable", b""), answer("200 OK", BUSY), b"no HTTP"])
async def test_engine_whose_page_does_not_say_that_it_is_idle_is_waited_for(page: bytes) -> None:
    assert not (await waited(page, limit_s=1.0))[0]


async def test_drain_ends_once_the_engine_is_idle() -> None:
    was_idle, engine = await waited(answer("200 OK", BUSY), SILENT, answer("200 OK", IDLE), limit_s=DEADLINE_S)
    assert was_idle and engine.num_asked > 2


async def test_busy_engine_is_waited_for_though_this_process_had_no_turn_for_a_while() -> None:
    asyncio.get_running_loop().call_later(0.1, time.sleep, 1.0)
    busy, idle = answer("200 OK", BUSY), answer("200 OK", IDLE)
    was_idle, engine = await waited(busy, busy, busy, idle, limit_s=DEADLINE_S)
    assert was_idle and engine.num_asked > 3


async def test_engine_without_metrics_and_one_that_is_gone_are_not_waited_for() -> None:
    assert (await waited(answer("404 Not Found", b""), limit_s=DEADLINE_S))[0]
    until_s = time.monotonic() + DEADLINE_S
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    await metrics_at(port).wait_idle(lambda: until_s)
    assert time.monotonic() < until_s
