"""Where hostile bytes meet a gateway: a loop, an engine that remembers what reached it, and everything watched."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fake_upstream import FakeUpstream, Seen
from gateway_lab import started_gateway

from longboat.gateway.process.server import Gateway

__all__ = ("CORPUS", "LIMITS", "Arena", "Played", "check_engine_saw_only_whole_requests", "check_nothing_is_left")

CORPUS = Path(__file__).parent / "corpus"
LIMITS: dict[str, Any] = {
    "max_head_bytes": 8192,
    "max_body_bytes": 65_536,
    "max_held_bytes": 1 << 20,
    "head_timeout_s": 3.0,
}
DEADLINE_S = 20.0
MARK = b"smuggled"
"""No request of the corpus that an engine may see has this word in its path or headers."""

_KNOWN = re.compile(rb"POST /(v[12]/)?[a-z_/]+(\?[!-~]*)? HTTP/1\.1")
_ANSWER = b'{"answer":true}'


@dataclass
class Played:
    """What came back: the statuses in order, the bytes, and the requests that the engine saw meanwhile."""

    statuses: list[int]
    raw: bytes
    seen: list[Seen]
    errors: list[dict[str, Any]] = field(default_factory=list)


class Arena:
    """One gateway with one engine in a loop of its own, for plain functions to drive."""

    def __init__(self, **limits: Any) -> None:
        self.loop = uvloop.new_event_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self.engine = FakeUpstream(_answer)
        self.gateway: Gateway = self.run(self._open({**LIMITS, **limits}))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def _open(self, limits: dict[str, Any]) -> Gateway:
        await self.engine.start()
        return await started_gateway(self.engine, **limits)

    def close(self) -> None:
        self.run(self._close())
        self.loop.close()

    async def _close(self) -> None:
        self.gateway.stop(0.0)
        await self.gateway.stopped.wait()
        self.engine.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)

    def play(self, pieces: Iterable[bytes], *, answers: int = 0) -> Played:
        """Send the pieces, wait for so many answers, say that no more comes, and read to the end.

        Raises TimeoutError where the gateway does not end the connection.
        """
        return self.run(self._play(list(pieces), answers))  # type: ignore[no-any-return]

    async def _play(self, pieces: list[bytes], answers: int) -> Played:
        self.engine.seen.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port, limit=1 << 22)
        received = bytearray()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await _send(writer, pieces)
                await _read_answers(reader, received, answers)
                with contextlib.suppress(OSError):
                    writer.write_eof()
                received += await _read_rest(reader)
        finally:
            writer.close()
        await self._settle()
        raw = bytes(received)
        return Played(statuses_in(raw), raw, list(self.engine.seen), list(self.errors))

    async def _settle(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.gateway.state.connections:  # noqa: ASYNC110 the gateway has no event for it
                await asyncio.sleep(0.002)


_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def statuses_in(raw: bytes) -> list[int]:
    """Statuses of the answers in these bytes, interim ones left out."""
    statuses, at = [], 0
    while found := _STATUS.match(raw, at):
        end = raw.find(b"\r\n\r\n", at)
        if end < 0:
            break
        length = _LENGTH.search(raw, at, end)
        at = end + 4 + (int(length.group(1)) if length else 0)
        if int(found.group(1)) >= 200:
            statuses.append(int(found.group(1)))
    return statuses


def check_engine_saw_only_whole_requests(played: Played) -> None:
    """No smuggled path, one length, no transfer coding, and a body that is a JSON object or a form, as announced."""
    for seen in played.seen:
        first, _, headers = seen.head.partition(b"\r\n")
        assert _KNOWN.fullmatch(first), first
        assert MARK not in seen.head.lower(), seen.head
        names = [line.partition(b":")[0].strip().lower() for line in headers.split(b"\r\n") if line]
        assert names.count(b"content-length") == 1, seen.head
        assert b"transfer-encoding" not in names, seen.head
        assert names.count(b"host") == 1, seen.head
        if not (seen.header("content-type") or "").startswith("multipart/"):
            assert isinstance(json.loads(seen.body), dict)


def check_nothing_is_left(arena: Arena, played: Played) -> None:
    """No exception, no 500, nothing held."""
    assert played.errors == []
    assert 500 not in played.statuses, played.raw[-500:]
    state = arena.gateway.state
    assert (state.held_bytes, state.in_flight, len(state.connections)) == (0, 0, 0)


async def _answer(seen: Seen) -> None:
    await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n" + _ANSWER)


async def _send(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # it may be refused before it is sent
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0)


async def _read_answers(reader: asyncio.StreamReader, received: bytearray, answers: int) -> None:
    while len(statuses_in(bytes(received))) < answers:
        try:
            block = await reader.read(65536)
        except ConnectionError:
            return
        if not block:
            return
        received += block


async def _read_rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
