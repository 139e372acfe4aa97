"""An engine as this process sees it: its address, its state, its idle connections."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from longboat.core.errors import UserInputError
from longboat.core.states import Endpoint, ResumeLevel
from longboat.gateway.config import GatewayLimits
from longboat.gateway.upstreams.connection import EngineConnection, UpstreamConnection
from longboat.routing.health.breaker import Breaker
from longboat.routing.health.poison import Admitted
from longboat.routing.health.watchdog import PauseStats

__all__ = ("MovableStream", "Upstream", "request_end")

_NO_RESUME: Final = ResumeLevel.NONE


class MovableStream(Protocol):
    """An answer that can go on elsewhere."""

    def replica_lost(self, detail: str, reason: str) -> None:
        """The engine that gives it is held for lost, though its connection may still be there. reason: for counting"""

    def admitted(self, now_s: float) -> Admitted:
        """How far it is at its engine."""

    @property
    def silent_s(self) -> float:
        """How long its engine sent it nothing; infinite while nothing is asked of one."""


class Upstream:
    """One endpoint, live. Fits ``routing.pick.EndpointView``; counts only what this process sends."""

    __slots__ = (
        "_base_path",
        "_doubted",
        "_idle",
        "_own_lines",
        "_target",
        "announced_ready",
        "api_key",
        "beats",
        "breaker",
        "capacity",
        "ejected",
        "gone",
        "key",
        "leaving",
        "limits",
        "lost",
        "model",
        "pace",
        "ready",
        "replica",
        "reported_slots",
        "resume",
        "revision",
        "streams",
        "url",
    )

    def __init__(self, endpoint: Endpoint, limits: GatewayLimits) -> None:
        """:raises UserInputError: the endpoint's URL is not http://HOST:PORT."""
        parts = _split(endpoint.url)
        self._target = (parts[0], parts[1])
        self.url = endpoint.url
        self.model = endpoint.model
        self.replica = endpoint.replica
        self.key = f"{endpoint.replica}/{endpoint.generation}@{endpoint.url}"
        self.api_key = endpoint.api_key
        self.ready = self.announced_ready = endpoint.ready
        self.resume = endpoint.resume
        self.revision = endpoint.revision
        self.beats = endpoint.beats
        self.leaving = endpoint.moving  # it is taken out, and its answers are to go elsewhere
        self.lost = ""  # why its heartbeats say that it does not work; empty: it does, or tells nothing
        self.streams: set[MovableStream] = set()  # requests that it works on; they hear when it is lost
        self.limits = limits
        self.capacity = limits.max_outstanding
        self.reported_slots: int | None = None  # slots for us by the engine's own account
        self.breaker = Breaker(first_s=limits.suspect_s)
        self.pace = PauseStats()
        self.ejected = False  # much slower than its siblings
        self._doubted = False
        self.gone = False
        self._idle: deque[tuple[EngineConnection, float]] = deque()
        authorization = f"authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
        self._base_path = parts[2].encode("latin-1")
        self._own_lines = f"host: {parts[3]}\r\n{authorization}".encode("latin-1")

    def request_start(self, method: str, path: bytes, forwarded: list[bytes]) -> bytes:
        """The head of a request to this engine, ours in place of the client's where the two differ; up to the lines
        that ``request_end`` makes."""
        first = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self._base_path, path)
        return b"".join((first, self._own_lines, *forwarded))

    @property
    def outstanding(self) -> int:
        """Requests of this process that it works on."""
        return len(self.streams)

    @property
    def resumes(self) -> bool:
        """Whether it can go on with answers that another engine began."""
        return self.resume is not _NO_RESUME

    @property
    def target(self) -> tuple[str, int]:
        """Host and port."""
        return self._target

    @property
    def slots(self) -> int | None:
        """Requests that we may have there at once; None is no limit."""
        if self.capacity is None or self.reported_slots is None:
            return self.capacity
        return min(self.capacity, max(1, self.reported_slots))

    def take_idle(self) -> EngineConnection | None:
        """A pooled connection, the most recently used; None where there is none."""
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """:raises OSError: refused, unreachable, closed at once; TimeoutError (an OSError) after connect_timeout_s."""
        connection = UpstreamConnection(self.keep)
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: cast("asyncio.Protocol", connection.path), *self._target
                )
        except UnicodeError as error:  # from the name look-up
            raise OSError(f"{self._target[0]!r} is no host name") from error
        except asyncio.CancelledError:
            connection.abort()  # it may have been made in the meantime
            raise
        if not connection.usable:
            raise ConnectionResetError("the engine closed the connection at once")
        return connection

    def mark_suspect(self) -> None:
        """Avoid this endpoint for a moment."""
        self._doubted = True
        asyncio.get_running_loop().call_later(self.limits.suspect_s, self._trust)

    def learn(self, endpoint: Endpoint) -> None:
        """What a newer table says of it. It stays unready while it is lost."""
        self.announced_ready = endpoint.ready
        self.ready = endpoint.ready and not self.lost
        self.resume, self.revision, self.beats = endpoint.resume, endpoint.revision, endpoint.beats
        self.leaving = endpoint.moving

    def mark_down(self, detail: str, reason: str = "beats") -> None:
        """Nothing is sent there any more, and what runs there goes elsewhere. reason: one word, for counting"""
        self.lost, self.ready = detail, False
        self.close_idle(float("inf"))
        self.move_streams(detail, "moved" if self.leaving else reason)

    def move_streams(self, detail: str, reason: str = "moved") -> None:
        """What runs there goes elsewhere."""
        for stream in tuple(self.streams):
            stream.replica_lost(detail, reason)

    def mark_up(self) -> None:
        """It works again."""
        self.lost, self.ready = "", self.announced_ready

    def keep(self, connection: EngineConnection) -> None:
        """Pool a connection whose response is complete, or close it where the endpoint has gone."""
        if self.gone:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic()))

    def close_idle(self, before_s: float) -> None:
        """Close connections that were pooled before this time."""
        while self._idle and self._idle[0][1] < before_s:
            self._idle.popleft()[0].close()

    def retire(self) -> None:
        """The endpoint left the table: running responses go on, nothing is pooled any more."""
        self.gone = True
        self.close_idle(float("inf"))

    @property
    def suspect(self) -> bool:
        """Whether it is chosen only when nothing better is left."""
        if self.ejected or self._doubted:
            return True
        return not self.breaker.closed and self.breaker.avoids(time.monotonic())

    def _trust(self) -> None:
        self._doubted = False


def request_end(request_id: str, body_bytes: int) -> bytes:
    """The end of a request's head: what is of this request alone."""
    return b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request_id.encode(), body_bytes)


def _split(url: str) -> tuple[str, int, str, str]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None or parts.query or parts.username:
        raise UserInputError(f"endpoint address {url!r} is not http://HOST:PORT", hint="give the engine's own address")
    return parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"), parts.netloc
