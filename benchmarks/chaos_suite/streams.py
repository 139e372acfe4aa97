"""One client of the chaos suite: asks a gateway, takes the stream, goes to the next gateway when its own dies."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos_suite.asks import Ask
from chaos_suite.sse import EventReader, ServerEvent
from longboat.gateway.http import error_responses

__all__ = ("Client", "Taken", "as_line")

RETRY_S = 0.05
IDLE_LIMIT_BYTES = 1 << 20
_REFUSALS = (error_responses.stopping(), error_responses.no_table())
_NOT_THIS_GATEWAY = tuple(text.encode() for refusal in _REFUSALS for text in (f'"{refusal.code}"', refusal.message))
"""Codes, and messages where an API's errors have no code."""
_GATEWAY_GONE = (OSError, asyncio.IncompleteReadError)


@dataclass(slots=True)
class Taken:
    """What a client got. Moments are of the machine's monotonic clock.

    status: of the last answer; 0: none came before the deadline. is_hung: the deadline passed
    arrivals_s: of each piece that brought an event; replicas: that answered, as gateways tell; gateways: number and
    moment of each connection; token: with which it may come back, empty: none
    """

    status: int = 0
    events: list[ServerEvent] = field(default_factory=list)
    body: bytes = b""
    is_hung: bool = False
    began_s: float = 0.0
    ended_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)
    gateways: list[tuple[int, float]] = field(default_factory=list)
    num_comments: int = 0
    token: str = ""

    @property
    def seed(self) -> int | None:
        """What the gateway gave the request, as the token for coming back tells; None: nothing."""
        payload = self.token.partition(".")[0]
        try:
            told = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            return int(told[2]) if told[2] >= 0 else None
        except (ValueError, TypeError, LookupError):
            return None


class _Broken(Exception):  # noqa: N818 - an outcome
    """The gateway's connection ended before the answer did."""


class Client:
    """Asks ``addresses`` (host, port) in turn, beginning with the ``first``; :meth:`ask` never raises."""

    def __init__(self, addresses: Sequence[tuple[str, int]], first: int, deadline_s: float, key: str = "") -> None:
        self._addresses = addresses
        self._at = first % len(addresses)
        self._deadline_s = deadline_s
        self._key = key

    async def ask(self, ask: Ask, private: dict[str, str] | None = None) -> Taken:
        """The whole answer, over as many gateways as it takes. private: headers of the fleet's own."""
        taken = Taken(began_s=time.monotonic())
        try:
            async with asyncio.timeout(self._deadline_s):
                while not await self._try(ask, taken, private or {}):
                    self._at = (self._at + 1) % len(self._addresses)
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            taken.is_hung = True
        taken.ended_s = time.monotonic()
        return taken

    async def _try(self, ask: Ask, taken: Taken, private: dict[str, str]) -> bool:
        """False where this gateway is gone: the next one is to be asked."""
        host, port = self._addresses[self._at]
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=IDLE_LIMIT_BYTES)
        except OSError:
            return False
        taken.gateways.append((self._at, time.monotonic()))
        try:
            writer.write(self._request(ask, taken, private))
            await self._take(reader, taken)
        except (_Broken, *_GATEWAY_GONE):
            return False
        finally:
            writer.transport.abort()
        return True

    def _request(self, ask: Ask, taken: Taken, private: dict[str, str]) -> bytes:
        body = json.dumps(dict(ask.document)).encode()
        headers = {"host": "chaos", "content-type": "application/json", "content-length": str(len(body)), **private}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        if taken.token and taken.events:
            headers["x-longboat-resume"] = taken.token
            headers["last-event-id"] = next((e.event_id for e in reversed(taken.events) if e.event_id), "")
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {ask.path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    async def _take(self, reader: asyncio.StreamReader, taken: Taken) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        taken.status, taken.body = int(head[0].split()[1]), b""
        if replica := fields.get("x-longboat-replica"):
            taken.replicas.append(replica)
        taken.token = fields.get("x-longboat-resume", taken.token)
        if "content-length" in fields:
            taken.body = await reader.readexactly(int(fields["content-length"]))
            if taken.status == 503 and any(word in taken.body for word in _NOT_THIS_GATEWAY):
                raise _Broken  # it says itself that it does not serve
            return
        events = EventReader()
        while piece := await _chunk(reader):
            found = events.feed(piece)
            if found:
                taken.arrivals_s.append(time.monotonic())
                taken.events += found
            taken.token = events.token or taken.token
            taken.body = b"" if taken.events else taken.body + piece
        taken.num_comments += events.num_comments


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk; empty: the end. :raises _Broken: the connection ended first"""
    line = await reader.readline()
    if not line.endswith(b"\r\n"):
        raise _Broken
    data = await reader.readexactly(int(line, 16))
    await reader.readexactly(2)
    return data


def as_line(number: int, taken: Taken, **more: Any) -> dict[str, Any]:
    """What is told of an answer: its times as milliseconds after its begin."""
    began_s = taken.began_s
    return {
        "number": number,
        "status": taken.status,
        "is_hung": taken.is_hung,
        "began_s": round(began_s, 4),
        "lasted_ms": round((taken.ended_s - began_s) * 1e3, 1),
        "arrivals_ms": [round((at_s - began_s) * 1e3, 1) for at_s in taken.arrivals_s],
        "replicas": taken.replicas,
        "gateways": [(number, round(at_s, 4)) for number, at_s in taken.gateways],
        **more,
    }
