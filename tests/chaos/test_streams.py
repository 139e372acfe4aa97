"""The chaos suite's client: takes a stream, comes back to another gateway with what it has, and has a deadline."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from chaos_suite.asks import Ask
from chaos_suite.streams import Client, Taken

from longboat.gateway.http import error_responses
from longboat.gateway.http.responses import ErrorStyle, Refusal

ASK = Ask(kind="k", path="/v1/completions", document={"prompt": "x", "stream": True})
TOKEN = base64.urlsafe_b64encode(json.dumps(["m", "r", 77, "", "", "", 0]).encode()).decode().rstrip("=") + ".mac"
HEAD = f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-longboat-replica: e1\r\nx-longboat-resume: {TOKEN}\r\n\r\n"


def _chunk(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


@asynccontextmanager
async def _gateway(*answers: bytes) -> AsyncIterator[tuple[tuple[str, int], list[str]]]:
    """Gives one answer after the other, each on a connection that it then closes; and what it was asked."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        number = len(asked) - 1
        if number < len(answers):
            writer.write(answers[number])
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield ("127.0.0.1", server.sockets[0].getsockname()[1]), asked


async def _asked(*answers: bytes, deadline_s: float = 10.0) -> tuple[Taken, list[str]]:
    async with _gateway(*answers) as (address, asked):
        return await Client([address], 0, deadline_s).ask(ASK), asked


WHOLE = HEAD.encode() + _chunk("id: 1\ndata: a\n\n") + _chunk("id: 2\ndata: b\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"
CUT = HEAD.encode() + _chunk("id: 1\ndata: a\n\n") + _chunk("id: 2\nda")
REST = HEAD.encode() + _chunk("id: 2\ndata: b\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"


async def test_stream_is_taken_with_its_replica_and_its_seed() -> None:
    taken, asked = await _asked(WHOLE)
    assert [event.data for event in taken.events] == ["a", "b", "[DONE]"]
    assert (taken.status, taken.replicas, taken.seed, len(asked)) == (200, ["e1"], 77, 1)
    assert len(taken.arrivals_s) == 2


async def test_client_comes_back_with_the_last_whole_event() -> None:
    taken, asked = await _asked(CUT, REST)
    assert [event.data for event in taken.events] == ["a", "b", "[DONE]"]
    assert "last-event-id" not in asked[0]
    assert "last-event-id: 1\r\n" in asked[1]
    assert f"x-longboat-resume: {TOKEN}\r\n" in asked[1]


@pytest.mark.parametrize("style", ErrorStyle)
@pytest.mark.parametrize("refusal", [error_responses.stopping(), error_responses.no_table()], ids=lambda it: it.code)
async def test_gateway_that_stops_or_has_just_started_is_left(refusal: Refusal, style: ErrorStyle) -> None:
    stopping = refusal.encode(request_id="req-1", close=True, style=style)
    taken, asked = await _asked(stopping, WHOLE)
    assert (taken.status, len(asked)) == (200, 2)


async def test_refusal_of_a_gateway_that_is_left_is_no_part_of_the_answer() -> None:
    body = b'{"error":{"code":"no_table"}}'
    refusal = b"HTTP/1.1 503 No\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    whole = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + _chunk('{"a":') + _chunk("1}") + b"0\r\n\r\n"
    taken, _ = await _asked(refusal, whole)
    assert (taken.status, taken.body) == (200, b'{"a":1}')


async def test_answer_beyond_the_deadline_hangs() -> None:
    taken, _ = await _asked(deadline_s=0.3)
    assert taken.is_hung


def test_token_that_cannot_be_read_has_no_seed() -> None:
    seeds: Callable[[str], int | None] = lambda token: Taken(token=token).seed  # noqa: E731
    assert [seeds(token) for token in ("", "x", "e30", "bm8.y")] == [None, None, None, None]
