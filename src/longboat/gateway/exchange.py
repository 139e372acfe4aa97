"""One request's way through an engine: choose, send, relay, and try another engine while nothing was answered."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from longboat.gateway import refusals
from longboat.gateway.answers import Refusal
from longboat.gateway.relay import Relay
from longboat.gateway.request import Request
from longboat.gateway.state import GatewayState
from longboat.gateway.upstream import Upstream, UpstreamConnection
from longboat.gateway.wire import Framing, response_head
from longboat.routing.pick import Pick, Wait, pick

__all__ = ("ClientSide", "Exchange")


class ClientSide(Protocol):
    """The client's connection, as an exchange needs it."""

    @property
    def write_paused(self) -> bool: ...
    @property
    def closes_after(self) -> bool:
        """Whether the connection ends with this answer."""

    def write(self, data: bytes) -> None: ...
    def exchange_done(self, *, keep: bool) -> None:
        """The answer is complete (keep) or can only be ended by closing the connection (not keep)."""


class Exchange:
    """Lives from the routing of a request to the last byte of its answer; ``abort`` ends it when the client goes."""

    __slots__ = (
        "_body",
        "_client",
        "_connect_task",
        "_connection",
        "_path",
        "_reached",
        "_relay",
        "_request",
        "_state",
        "_status",
        "_tried",
        "_ttft_s",
        "_upstream",
        "model",
    )

    def __init__(
        self, state: GatewayState, client: ClientSide, request: Request, path: bytes, model: str, body: bytes
    ) -> None:
        self._state = state
        self._client = client
        self._request = request
        self._path = path
        self.model = model
        self._body = body
        self._tried: set[str] = set()
        self._reached = False
        self._relay: Relay | None = None
        self._status = 0
        self._ttft_s: float | None = None
        self._upstream: Upstream | None = None
        self._connection: UpstreamConnection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        state.in_flight += 1

    # what the client's connection calls

    def start(self) -> None:
        self._try_next("")

    def abort(self) -> None:
        """The client has gone: so does the engine's work, at once."""
        self._drop_connection()
        self._finish(status=499)

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def sweep(self, sweeps_allowed: float) -> None:
        """Once a sweep: gives up an engine that was silent for more than ``sweeps_allowed`` of them."""
        connection = self._connection
        if connection is None or self._client.write_paused:
            return
        connection.quiet += 1
        if connection.quiet > sweeps_allowed:
            self._drop_connection()
            refusal = refusals.upstream_silent(self.model, self._state.limits.engine_silence_s)
            self._break(refusal)

    # what the engine's connection calls

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], *, sized: bool) -> None:
        framing = Framing.IDENTITY
        if not sized:
            framing = Framing.CLOSE if self._request.http_1_0 else Framing.CHUNKED
        assert self._upstream is not None
        head = response_head(
            status,
            headers,
            framing,
            request_id=self._request.request_id,
            replica=self._upstream.replica,
            close=self._client.closes_after,
        )
        self._status = status
        self._relay = Relay(head, framing, events=_is_event_stream(headers))

    def on_block(self, body: bytes, *, last: bool) -> None:
        relay = self._relay
        assert relay is not None
        out = relay.block(body, last=last)
        if out:
            if self._ttft_s is None:
                self._first_byte()
            self._client.write(out)
        if last:
            self._connection = None
            self._finish(status=self._status)
            self._client.exchange_done(keep=True)

    def on_lost(self, detail: str) -> None:
        connection, upstream = self._connection, self._upstream
        assert connection is not None and upstream is not None
        self._connection = None
        if self._relay is not None and self._relay.started:
            message = "The engine ended in the middle of this answer. Send the request again."
            self._break(Refusal(status=502, message=message, code="engine_lost"))
            return
        # An engine may close a pooled connection at the moment we use it: that says nothing about the engine.
        if not connection.used:
            self._tried.add(upstream.key)
            self._reached = True
        self._leave_upstream()
        self._try_next(detail)

    # the way to an engine

    def _try_next(self, failure: str) -> None:
        endpoints = self._state.table.endpoints(self.model) or ()
        decision = pick(endpoints, turn=self._state.next_turn(), tried=self._tried)
        if isinstance(decision, Pick):
            self._use(decision.endpoint)
        elif isinstance(decision, Wait):
            self._refuse(refusals.busy(self.model))
        elif self._tried:
            self._refuse(refusals.engines_unreachable(self.model, failure, reached=self._reached))
        else:
            self._refuse(refusals.no_ready_endpoint(self.model))

    def _use(self, upstream: Upstream) -> None:
        self._upstream = upstream
        upstream.outstanding += 1
        connection = upstream.take_idle()
        if connection is not None:
            self._send(connection)
            return
        task = asyncio.get_running_loop().create_task(self._connect(upstream))
        self._connect_task = task
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _connect(self, upstream: Upstream) -> None:
        try:
            connection = await upstream.connect()
        except OSError as error:
            self._connect_task = None
            upstream.mark_suspect()
            self._tried.add(upstream.key)
            self._leave_upstream()
            self._try_next(str(error) or f"no connection within {self._state.limits.connect_timeout_s:g} s")
            return
        self._connect_task = None
        self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        request, upstream = self._request, self._upstream
        assert upstream is not None
        self._connection = connection
        self._relay = None
        head = upstream.request_head(self._path, request.forwarded, request.request_id, len(self._body))
        connection.send(self, head, self._body)
        if self._client.write_paused:
            connection.pause()

    # ends

    def _first_byte(self) -> None:
        self._ttft_s = time.monotonic() - self._request.received_s
        self._let_body_go()  # no other engine can be tried any more

    def _break(self, refusal: Refusal) -> None:
        """End an answer that cannot be completed, as well as its framing allows."""
        relay = self._relay
        if relay is None or not relay.started:
            self._refuse(refusal)
            return
        if relay.events:
            self._client.write(relay.broken(refusal.message, refusal.code))
        self._finish(status=self._status, error=refusal.code)
        self._client.exchange_done(keep=False)

    def _refuse(self, refusal: Refusal) -> None:
        self._relay = None
        answer = refusal.encode(request_id=self._request.request_id, close=self._client.closes_after)
        self._client.write(answer)
        self._finish(status=refusal.status, error=refusal.code)
        self._client.exchange_done(keep=True)

    def _finish(self, *, status: int, error: str = "") -> None:
        replica = self._upstream.replica if self._upstream else ""
        self._leave_upstream()
        self._let_body_go()
        self._state.in_flight -= 1
        if self._state.access_log is not None:
            self._log(status, error, replica)

    def _log(self, status: int, error: str, replica: str) -> None:
        total_s = time.monotonic() - self._request.received_s
        record: dict[str, object] = {
            "time": round(time.time(), 3),
            "id": self._request.request_id,
            "path": self._path.decode("latin-1"),
            "model": self.model,
            "replica": replica,
            "status": status,
            "bytes": self._relay.bytes_out if self._relay else 0,
            "ttft_ms": None if self._ttft_s is None else round(self._ttft_s * 1e3, 2),
            "total_ms": round(total_s * 1e3, 2),
            "retries": len(self._tried),
        }
        if error:
            record["error"] = error
        self._state.log(record)

    def _leave_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.outstanding -= 1
            self._upstream = None

    def _drop_connection(self) -> None:
        if self._connect_task is not None:
            self._connect_task.cancel()
            self._connect_task = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _let_body_go(self) -> None:
        self._body = b""
        self._request.pieces.clear()
        self._state.held_bytes -= self._request.held_bytes
        self._request.held_bytes = 0


def _is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers
    )
