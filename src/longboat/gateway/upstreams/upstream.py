"""An engine as this process sees it: its address and its state."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol
from urllib.parse import urlsplit

from longboat.core.errors import UserInputError
from longboat.core.states import Endpoint, ResumeLevel
from longboat.gateway.config import GatewayLimits
from longboat.gateway.external.address import Address
from longboat.gateway.http.response_head import replica_line
from longboat.gateway.upstreams.idle_connections import IdleConnections
from longboat.routing.endpoint import RoutedEndpoint
from longboat.routing.health.breaker import Breaker
from longboat.routing.health.poison import Admitted
from longboat.routing.health.watchdog import PauseStats
from longboat.routing.queue.preemption import PausableStream

__all__ = ("MovableStream", "Upstream", "request_end")

_NO_RESUME: Final = ResumeLevel.NONE
_EXTERNAL_IDLE_S: Final = 30.0  # a distant TLS handshake is expensive, and servers there keep connections longer


class MovableStream(PausableStream, Protocol):
    """A response that another engine can continue."""

    def replica_lost(self, detail: str, reason: str) -> None:
        """Leave the engine, which is treated as lost, although its connection may still exist.

        reason: one word, for counting
        """

    def admitted(self, now_s: float) -> Admitted:
        """Return how far the request is at its engine."""

    @property
    def tenant(self) -> str:
        """The name of the tenant whose request it is."""

    @property
    def silent_s(self) -> float:
        """The time since its engine last sent something; infinite while the stream waits for no engine."""


class Upstream(RoutedEndpoint):  # size: one flat record, because each choice of an endpoint reads most of it
    """One endpoint, live; counts only what this process sends."""

    __slots__ = (
        "_base_path",
        "_doubted",
        "_own_lines",
        "_used_adapters",
        "adapters",
        "adapters_held",
        "address",
        "announced_ready",
        "api_key",
        "beats",
        "breaker",
        "capacity",
        "connections",
        "ejected",
        "endpoint",
        "gone",
        "held_until_s",
        "idle_s",
        "is_moved",
        "key",
        "last_word",
        "leaving",
        "limits",
        "lost",
        "model",
        "num_sent",
        "pace",
        "ready",
        "relay",
        "replica",
        "replica_line",
        "reported_slots",
        "resume",
        "revision",
        "sequences",
        "streams",
        "target",
        "url",
    )
    capacity: int | None
    key: str
    ready: bool

    def __init__(self, endpoint: Endpoint, limits: GatewayLimits, address: Address | None = None) -> None:
        """address: of an external model. Raise UserInputError where an engine's URL is not http://HOST:PORT."""
        host, port, base_path, authority = ("", 0, "", "") if address is not None else _split(endpoint.url)
        self.address = address
        self.target = (host, port)
        self.held_until_s = 0.0  # it asked for a pause until then (monotonic)
        self.idle_s = limits.pool_idle_s if address is None else _EXTERNAL_IDLE_S  # of a connection that is kept
        self.url = endpoint.url
        self.model = endpoint.model
        self.replica = endpoint.replica
        self.replica_line = replica_line(endpoint.replica)  # of heads that clients get
        self.key = f"{endpoint.replica}/{endpoint.generation}@{endpoint.url}"
        self.api_key = endpoint.api_key
        self.announced_ready = endpoint.ready  # what the table says
        self.ready = endpoint.ready  # what the table says, unless the endpoint is lost
        self.resume = endpoint.resume
        self.revision = endpoint.revision
        self.beats = endpoint.beats  # HOST:PORT of its heartbeats
        self.endpoint: Endpoint | None = None  # as it was learned last
        self.relay = endpoint.relay  # HOST:PORT of the relay that judges its heartbeats; empty: none does
        self.leaving = endpoint.moving  # it is taken out of use, and other engines take over its responses
        self.lost = ""  # why its heartbeats say that it does not work; empty: it works, or it sends none
        self.streams: set[MovableStream] = set()  # requests that it works on; they are informed when it is lost
        self.num_sent = 0  # requests that were sent there by now
        self.limits = limits
        self.capacity = limits.max_outstanding
        self.sequences: int | None = None  # requests of all gateways that it works on at once; None: unknown
        self.reported_slots: int | None = None  # slots for this process, by the engine's own account
        self.breaker = Breaker(first_s=limits.suspect_s)
        self.pace = PauseStats()
        self.ejected = False  # much slower than its siblings
        self.gone = False  # it left the table
        self.is_moved = False  # it is lost, and its streams moved
        self.last_word = ""  # how its gang ended, or why no heartbeat will say so; empty: one may
        self.connections = IdleConnections(self.target, limits.connect_timeout_s, address)
        self._doubted = False
        self.adapters = endpoint.adapters  # that it serves → revision of their contents
        self.adapters_held = endpoint.adapters_held  # most that its engine has in memory
        self._used_adapters: dict[str, None] = {}  # by this process, the last one last
        authorization = f"authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
        self._base_path = base_path.encode("latin-1")
        self._own_lines = f"host: {authority}\r\n{authorization}".encode("latin-1")

    def request_start(self, method: str, path: bytes, forwarded: list[bytes]) -> bytes:
        """Return the head of a request to this engine, up to the lines that ``request_end`` makes.

        The gateway's own lines replace those of the client.
        """
        if self.address is not None:
            return self.address.request_start(method, path, forwarded)
        first = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self._base_path, path)
        return b"".join((first, self._own_lines, *forwarded))

    @property
    def outstanding(self) -> int:
        """Requests of this process that it works on."""
        return len(self.streams)

    @property
    def resumes(self) -> bool:
        """Whether it can continue responses that another engine began."""
        return self.resume is not _NO_RESUME

    @property
    def drains(self) -> bool:
        """Whether it works, and takes nothing new because it is about to leave."""
        is_unwell = self.endpoint is not None and self.endpoint.unwell
        return not self.announced_ready and not self.lost and not is_unwell

    @property
    def slots(self) -> int | None:
        """Requests that this process may have there at once; None: as many as it likes."""
        if self.capacity is None or self.reported_slots is None:
            return self.capacity
        return min(self.capacity, max(1, self.reported_slots))

    @property
    def suspect(self) -> bool:
        """Whether it is chosen only when no better endpoint is left."""
        if self.ejected or self._doubted:
            return True
        return not self.breaker.closed and self.breaker.avoids(time.monotonic())

    @property
    def is_doubted(self) -> bool:
        """Whether it was marked as suspect a moment ago."""
        return self._doubted

    def mark_suspect(self) -> None:
        """Avoid this endpoint for a moment."""
        self._doubted = True
        asyncio.get_running_loop().call_later(self.limits.suspect_s, self._trust)

    def learn(self, endpoint: Endpoint) -> None:
        """Take over what a newer table says. A lost endpoint stays unready."""
        self.endpoint = endpoint
        self.announced_ready = endpoint.ready
        self.ready = endpoint.ready and not self.lost
        self.relay = endpoint.relay
        self.resume, self.revision, self.beats = endpoint.resume, endpoint.revision, endpoint.beats
        self.leaving = endpoint.moving
        self.sequences = endpoint.capacity if endpoint.engine_capacity is None else endpoint.engine_capacity
        self.adapters, self.adapters_held = endpoint.adapters, endpoint.adapters_held

    def revision_of(self, model: str) -> str:
        """Return the revision of what answers here by this name: the model's own, or with that of an adapter."""
        content = self.adapters.get(model)
        return self.revision if content is None or not self.revision else f"{self.revision}+{content}"

    def holds(self, adapter: str) -> bool:
        """Return whether its engine has the adapter in memory, by the requests of this process."""
        return f"{adapter}@{self.adapters.get(adapter)}" in self._used_adapters

    def use_adapter(self, adapter: str) -> bytes:
        """Note that a request for the adapter is sent. Return the header line that names its contents."""
        key = f"{adapter}@{self.adapters.get(adapter, '')}"
        used = self._used_adapters
        used.pop(key, None)
        used[key] = None
        while len(used) > max(1, self.adapters_held):
            del used[next(iter(used))]
        return f"x-longboat-adapter: {key}\r\n".encode("latin-1", "replace")

    def mark_down(self, detail: str, reason: str = "heartbeat", *, moves: bool = True) -> None:
        """Send nothing there any more, and move its streams elsewhere, or let them go on.

        reason: one word, for counting
        """
        self.lost, self.ready, self.is_moved = detail, False, moves
        self.connections.drop()
        if moves:
            self.move_streams(detail, "moved" if self.leaving else reason)

    def move_streams(self, detail: str, reason: str = "moved") -> None:
        """Let other engines continue what this one works on."""
        for stream in tuple(self.streams):
            stream.replica_lost(detail, reason)

    def mark_up(self) -> None:
        """Use the endpoint again, where the table has it as ready."""
        self.lost, self.ready, self.is_moved = "", self.announced_ready, False

    def hold(self, seconds: float) -> None:
        """Send nothing there for a while: it asked for that."""
        now_s = time.monotonic()
        self.held_until_s = max(self.held_until_s, now_s + seconds)
        self.ready = False
        asyncio.get_running_loop().call_later(self.held_until_s - now_s, self._end_hold)

    def _end_hold(self) -> None:
        if time.monotonic() >= self.held_until_s - 0.001 and not self.lost:
            self.ready = self.announced_ready

    def retire(self) -> None:
        """Note that the endpoint left the table: running responses go on, and no connection is pooled any more."""
        self.gone = True
        self.connections.close()

    def _trust(self) -> None:
        self._doubted = False


def request_end(request_id: str, body_bytes: int) -> bytes:
    """Return the end of a request's head: the lines that differ in every request."""
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
