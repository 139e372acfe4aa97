"""One request's way through an engine: wait for room, choose, send, relay; try another until something was answered."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from longboat.gateway.api.body import BodyError, Facts
from longboat.gateway.api.usage import AnswerKind, UsageReader, without_usage_event
from longboat.gateway.http import error_responses
from longboat.gateway.http.response_framing import Relay, last_chunk
from longboat.gateway.http.response_head import AnswerHead
from longboat.gateway.http.responses import Refusal
from longboat.gateway.http.wire import Framing
from longboat.gateway.records.recent import Attempt
from longboat.gateway.records.spans import passed_on
from longboat.gateway.requests.accounting import FAILED
from longboat.gateway.requests.engine_errors import engine_refusal
from longboat.gateway.requests.model_request import Call
from longboat.gateway.requests.state import GatewayState
from longboat.gateway.requests.upstream_request import body_for, has_usage, pool_lines
from longboat.gateway.upstreams.connection import EngineConnection
from longboat.gateway.upstreams.pool import Pool
from longboat.gateway.upstreams.upstream import Upstream, request_end
from longboat.routing.decisions import Pick, Wait
from longboat.routing.health.poison import Admitted
from longboat.routing.pick import least_busy, pick
from longboat.routing.queue.fair_queue import Granted, Queued, Ticket

__all__ = ("SWEEP_S", "ClientSide", "Exchange")

SWEEP_S = 0.25  # how often ``sweep`` is called

_IDENTITY: Final = Framing.IDENTITY  # a member of an enum is looked up each time that it is named
_CHUNKED: Final = Framing.CHUNKED
_CLOSE: Final = Framing.CLOSE
_JSON: Final = AnswerKind.JSON

_MAX_WHOLE_BYTES = 65536
"""Of an answer that is kept until its usage is read."""


class ClientSide(Protocol):
    """The client's connection, as an exchange needs it."""

    @property
    def write_paused(self) -> bool: ...
    @property
    def closes_after(self) -> bool:
        """Whether the connection ends with this answer."""

    def write(self, data: bytes) -> None: ...
    def chunk_writer(self) -> Callable[[bytes], object] | None:
        """What takes bytes for the client without a detour; None where it has gone."""

    def exchange_done(self, *, keep: bool) -> None:
        """The answer is complete (keep) or can only be ended by closing the connection (not keep)."""


class Exchange:
    """Lives from the routing of a request to the last byte of its answer; ``abort`` ends it when the client goes.

    The account of its call is open when it begins; every way out closes it. What it does when an engine is lost in the
    middle of an answer, and when nobody is left who could answer, is for ``ResumableExchange`` to better.
    """

    __slots__ = (
        "_call",
        "_client",
        "_connect_task",
        "_connection",
        "_last_block_s",
        "_pool",
        "_relay",
        "_sent_s",
        "_state",
        "_status",
        "_upstream",
    )

    def __init__(self, state: GatewayState, client: ClientSide, call: Call) -> None:
        self._state = state
        self._client = client
        self._call = call
        self._pool: Pool | None = None
        self._relay: Relay | None = None
        self._status = 0
        self._last_block_s = 0.0
        self._sent_s = 0.0  # when an engine was sent it last
        self._upstream: Upstream | None = None
        self._connection: EngineConnection | None = None
        self._connect_task: asyncio.Task[None] | None = None

    # what the client's connection calls

    def start(self) -> None:
        if self._call.plan is None or not self._start_at_once():
            self._enter_pool()

    def _start_at_once(self) -> bool:
        """Where there is room, and an engine that is well: the same as ``_enter_pool``. False: nothing was done."""
        call, state = self._call, self._state
        pool, call.pool_at_once = call.pool_at_once, None
        if pool is None:
            return False
        tenant = call.tenant
        ticket = Ticket(tenant.name, tenant.weight, tenant.priority, call.cost_tokens, call.decided_s)
        if not pool.grant_at_once(ticket):
            return False
        self._pool = pool
        call.ticket = ticket
        upstream = least_busy(pool.upstreams, turn=state.next_turn())
        if upstream is None:
            self._try_next()
        else:
            self._use(upstream)
        return True

    def abort(self) -> None:
        """The client has gone: so does the engine's work, at once."""
        self._drop_connection()
        self._close(status=499, outcome="client_left")

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def sweep(self, sweeps_allowed: float) -> None:
        """Once a sweep: gives up an engine that was silent for more than ``sweeps_allowed`` of them."""
        call = self._call
        late = call.deadline_s is not None and call.first_byte_s is None and time.monotonic() > call.deadline_s
        if late and self._waits_in() is None:
            self._drop_connection()
            self._refuse(error_responses.deadline_passed(), outcome="expired")
            return
        connection = self._connection
        if connection is None or self._client.write_paused:
            return
        path = connection.path
        path.quiet += 1
        if path.quiet > sweeps_allowed:
            self._drop_connection()
            self._break(error_responses.upstream_silent(call.pool, self._state.limits.engine_silence_s))

    # what the pool calls

    def granted(self) -> None:
        """There is room now."""
        call = self._call
        call.granted_s = time.monotonic()
        if call.ticket is not None:
            call.ticket.payload = None  # or neither of us would be freed without the collector
        if call.series is not None:
            call.series.waiting -= 1
        self._go_on(self._try_next)

    def timed_out(self) -> None:
        """It waited too long, in vain."""
        call = self._call
        call.ticket = None
        call.granted_s = time.monotonic()
        if call.series is not None:
            call.series.waiting -= 1
        if call.deadline_s is not None and call.granted_s >= call.deadline_s:
            self._refuse(error_responses.deadline_passed(), outcome="expired")
        else:
            self._next_pool(error_responses.waited_too_long(call.pool, self._state.live.policy.queue.max_wait_s))

    # what the engine's connection calls, and whoever listens to the engine's heart

    def replica_lost(self, detail: str, reason: str) -> None:
        """The engine is held for lost. What was not answered yet is asked of another; the rest waits for its end."""
        if self._relay is None or not self._relay.started:
            self._drop_connection()
            self._lost(detail)

    def admitted(self, now_s: float) -> Admitted:
        """How far this request is at its engine."""
        sent_s = self._call.request.received_s + self._call.attempts[-1].sent_s if self._call.attempts else now_s
        tokens = self._call.usage.num_events if self._call.usage is not None else 0
        if self._connection is not None:
            tokens += self._connection.path.num_events
        return Admitted(self, tokens, now_s - sent_s)

    @property
    def silent_s(self) -> float:
        return self._connection.path.quiet * SWEEP_S if self._connection is not None else math.inf

    def on_head(self, head: AnswerHead, length: int | None = None) -> None:
        call, request = self._call, self._call.request
        status, events = head.status, head.events
        # What was added is taken out, and its length would be wrong.
        sized = head.sized and not (events and (call.adds_usage or head.journaled) and status < 400)
        framing = _IDENTITY
        if not sized:
            framing = _CLOSE if request.http_1_0 else _CHUNKED
        assert self._upstream is not None
        if status < 500:
            self._upstream.breaker.succeeded()
        lines = head.for_client(
            framing,
            sized=sized,
            request_id=request.request_id,
            replica=self._upstream.replica,
            close=self._client.closes_after,
            extra=pool_lines(call) + request.extra_lines,
            length=length,
        )
        self._status = status
        self._relay = Relay(lines, framing, events=events, style=call.api.style)
        self._read_usage(events=events)

    def _read_usage(self, *, events: bool) -> None:
        call = self._call
        if has_usage(call) and self._status < 400:
            kind = call.api.events if events else _JSON
            call.usage = UsageReader(kind, added=events and call.adds_usage)

    def on_whole(self, head: AnswerHead, length: int, body: bytes) -> None:
        """The whole of an answer at once."""
        call, request, upstream = self._call, self._call.request, self._upstream
        self._connection = None  # it is free: it may carry another answer by now
        odd = head.status >= 400 or call.api.remembers_owner or call.facts is None or not body
        if odd or len(body) > _MAX_WHOLE_BYTES or head.journaled or not self._is_plain(head, length):
            self.on_head(head, None if length < 0 else length)
            self.on_block(body, last=True)
            return
        assert upstream is not None
        if not upstream.breaker.closed:
            upstream.breaker.succeeded()
        sized = length >= 0
        lines = head.for_client(
            _IDENTITY if sized else _CHUNKED,
            sized=sized,
            request_id=request.request_id,
            replica=upstream.replica,
            close=self._client.closes_after,
            extra=pool_lines(call) + request.extra_lines,
            length=length if sized else None,
        )
        call.first_byte_s = time.monotonic()
        call.whole_answer = body
        if not sized:
            call.answer_kind = call.api.events
            if call.adds_usage:
                body = without_usage_event(body)
        call.bytes_out = len(body)
        self._client.write(lines + body if sized else lines + last_chunk(body))
        self._close(status=head.status, outcome="ok")
        self._client.exchange_done(keep=True)

    def _is_plain(self, head: AnswerHead, length: int) -> bool:
        """Whether it is a stream in chunks, for a client that takes chunks, or no stream and not in chunks."""
        return not head.events if length >= 0 else head.events and not self._call.request.http_1_0

    def on_block(self, body: bytes, *, last: bool) -> None:
        relay, connection = self._relay, self._connection
        assert relay is not None
        if connection is not None and connection.path.direct:
            self._take_counts(connection)
        if relay.events:
            body = relay.whole_events(body, last=last)
        elif self._status in (401, 403, 404, 405) and not relay.started and self._is_refused(body, last=last):
            return
        self._pass_on(relay, body, last=last)

    def _is_refused(self, body: bytes, *, last: bool) -> bool:
        """Refuse the request where the engine's error is not the client's to read."""
        refusal = engine_refusal(self._call, self._status, body)
        if refusal is None:
            return False
        if last:
            self._connection = None  # it is free: it may carry another response by now
        else:
            self._drop_connection()
        self._refuse(refusal, outcome="engine_error" if refusal.status >= 500 else "client_error")
        return True

    def _pass_on(self, relay: Relay, body: bytes, *, last: bool) -> None:
        """Give the client a part of the body; ``last`` ends the answer."""
        call = self._call
        if call.usage is not None and (body or last):
            body = call.usage.feed(body, last)
        if body or last:
            out = relay.framed(body, last=last)
            now_s = time.monotonic()
            if call.first_byte_s is None:
                self._first_byte(now_s, body)
            elif relay.events and not last:
                call.series.itl.observe(now_s - self._last_block_s)  # type: ignore[union-attr]
            self._last_block_s = now_s
            if out:
                self._client.write(out)
        if last:
            self._connection = None
            self._close(status=self._status, outcome=_outcome(self._status))
            self._client.exchange_done(keep=True)
        elif relay.passes_chunks:
            self._let_chunks_pass()

    def _let_chunks_pass(self) -> None:
        """The way of nearly every token from here on: nothing is looked at but the clock."""
        connection, call = self._connection, self._call
        assert connection is not None and call.series is not None
        path = connection.path
        path.itl = call.series.itl
        path.last_s = self._last_block_s
        path.write = self._client.chunk_writer()
        path.direct = True

    def _take_counts(self, connection: EngineConnection) -> None:
        """Of the chunks that passed since it was asked last."""
        path = connection.path
        path.direct = False
        if path.num_events:
            if self._call.usage is not None:
                self._call.usage.num_events += path.num_events
            if self._relay is not None:
                self._relay.bytes_out += path.bytes_out
            self._last_block_s = path.last_s
            path.num_events = path.bytes_out = 0

    def on_lost(self, detail: str) -> None:
        connection = self._connection
        assert connection is not None
        self._take_counts(connection)
        self._connection = None
        if self._relay is not None and self._relay.started:
            message = "The engine ended in the middle of this answer. Send the request again."
            self._break(Refusal(status=502, message=message, code="engine_lost"))
            return
        # An engine may close a pooled connection at the moment we use it: that says nothing about the engine.
        if connection.used:
            self._attempt_failed(detail)
            self._leave_upstream()
            self._try_next()
        else:
            self._lost(detail)

    def _lost(self, detail: str) -> None:
        """The engine took the request and gave no answer."""
        call, upstream = self._call, self._upstream
        if upstream is None:
            return
        upstream.breaker.failed(time.monotonic())
        call.tried |= {upstream.key}
        call.reached = True
        self._attempt_failed(detail)
        self._leave_upstream()
        self._try_elsewhere()

    # the way to a slot

    def _enter_pool(self) -> None:
        """Ask the model that is to be tried for a slot."""
        call = self._call
        pool = self._pool = self._state.table.pool(call.pool)
        if pool is None or not (slots := pool.slots):
            self._next_pool(error_responses.no_ready_endpoint(call.pool))
            return
        if call.facts is None:  # costs the engine nothing
            self._try_next()
            return
        tenant = call.tenant
        now_s = time.monotonic()
        ticket = Ticket(
            tenant.name, tenant.weight, tenant.priority, call.cost_tokens, now_s, call.deadline_s, payload=self
        )
        verdict = pool.offer(ticket, slots)
        if isinstance(verdict, Granted):
            ticket.payload = None
            call.ticket = ticket
            self._try_next()
        elif isinstance(verdict, Queued):
            call.ticket = ticket
            call.queued_s, call.granted_s = now_s, None
            if call.series is not None:
                call.series.waiting += 1
        else:
            self._next_pool(error_responses.no_room(call.pool, verdict))

    def _next_pool(self, refusal: Refusal) -> None:
        """The model has no answer: try its fallback, or refuse."""
        call = self._call
        self._leave_pool(failed=True)
        if call.at_pool + 1 >= len(call.pools):
            self._out_of_pools(refusal)
            return
        call.at_pool += 1
        call.tried = frozenset()
        call.failure, call.reached = "", False
        call.sent_body = None
        self._state.metrics.fell_back(call.pools[0], call.pool)
        self._enter_pool()

    def _out_of_pools(self, refusal: Refusal) -> None:
        """No model has an answer."""
        self._refuse(refusal)

    # the way to an engine

    def _try_next(self) -> None:
        call, state = self._call, self._state
        endpoints = self._able(state.table.endpoints(call.pool) or ())
        decision = pick(endpoints, turn=state.next_turn(), tried=call.tried)
        if isinstance(decision, Wait):  # its slot is on a replica that it tried, or may not use
            decision = pick(endpoints, turn=state.next_turn(), tried=call.tried, overfull=True)
        if isinstance(decision, Pick):
            self._use(decision.endpoint)
        elif call.pinned and not endpoints:
            self._next_pool(error_responses.response_gone(call.pool))
        elif call.tried:
            self._next_pool(error_responses.engines_unreachable(call.pool, call.failure, reached=call.reached))
        else:
            self._next_pool(error_responses.no_ready_endpoint(call.pool))

    def _able(self, endpoints: tuple[Upstream, ...]) -> tuple[Upstream, ...]:
        """Those that can answer this request."""
        pinned = self._call.pinned
        return tuple(e for e in endpoints if e.key == pinned) if pinned else endpoints

    def _use(self, upstream: Upstream) -> None:
        self._upstream = upstream
        upstream.outstanding += 1
        upstream.streams.add(self)
        if not upstream.breaker.closed:
            upstream.breaker.used(time.monotonic())
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
            upstream.breaker.failed(time.monotonic())
            self._call.tried |= {upstream.key}
            self._note_attempt(upstream, time.monotonic())
            self._attempt_failed(str(error) or f"no connection within {self._state.limits.connect_timeout_s:g} s")
            self._leave_upstream()
            self._go_on(self._try_elsewhere)
            return
        self._connect_task = None
        self._go_on(functools.partial(self._send, connection))

    def _try_elsewhere(self) -> None:
        """An engine did not answer."""
        self._try_next()

    def _go_on(self, step: Callable[[], None]) -> None:
        """A step that begins in the loop: nobody above would end the answer where it fails."""
        try:
            step()
        except Exception as error:
            report = {"message": "the gateway failed on a request", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
            if self._call.is_open:
                self._drop_connection()
                self._break(error_responses.internal())

    def _send(self, connection: EngineConnection) -> None:
        call, request, upstream = self._call, self._call.request, self._upstream
        assert upstream is not None
        self._connection = connection
        body = call.sent_body
        if body is None:
            try:
                body = call.sent_body = body_for(call)
            except BodyError as error:
                self._drop_connection()
                self._refuse(error_responses.bad_body(error))
                return
        self._sent_s = time.monotonic()
        lines, body = self._dressed(upstream, body)
        lines += self._note_attempt(upstream, self._sent_s)
        if call.plan is not None:
            start = call.plan.head_for(upstream)
        else:
            start = upstream.request_start(call.method, call.path, request.forwarded)
        connection.send(self, start + lines + request_end(request.request_id, len(body)), body)
        if self._client.write_paused:
            connection.pause()

    def _dressed(self, upstream: Upstream, body: bytes) -> tuple[bytes, bytes]:
        """Header lines of ours, and the body, as this engine gets them."""
        self._relay = None
        return b"", body

    def _note_attempt(self, upstream: Upstream, now_s: float) -> bytes:
        """Returns the header lines by which the engine joins the trace."""
        call = self._call
        attempt = tuple.__new__(Attempt, (upstream.replica, now_s - call.request.received_s, "", None))
        call.attempts = (*call.attempts, attempt) if call.attempts else (attempt,)
        if call.span is not None:
            return call.span.attempt()
        noted = call.request.noted
        return passed_on(noted) if b"traceparent" in noted else b""

    def _attempt_failed(self, detail: str) -> None:
        call = self._call
        call.failure = detail
        if call.attempts:
            at_s = time.monotonic() - call.request.received_s
            call.attempts = (*call.attempts[:-1], call.attempts[-1]._replace(failure=detail, failed_s=at_s))

    # ends

    def _first_byte(self, now_s: float, body: bytes) -> None:
        call = self._call
        call.first_byte_s = now_s
        if call.api.remembers_owner and self._status < 400 and self._upstream is not None:
            self._state.owners.learn(body, tenant=call.tenant.name, model=call.pool, key=self._upstream.key)
        self._has_begun()

    def _has_begun(self) -> None:
        """The client has the answer's beginning: no other engine can be tried any more."""
        self._let_body_go()

    def _break(self, refusal: Refusal, outcome: str = "broken") -> None:
        """End an answer that cannot be completed, as well as its framing allows."""
        relay = self._relay
        if relay is None or not relay.started:
            self._refuse(refusal)
            return
        if relay.events:
            self._client.write(relay.broken(refusal.message, refusal.code, self._call.request.request_id))
        self._close(status=self._status, outcome=outcome, code=refusal.code)
        self._client.exchange_done(keep=False)

    def _refuse(self, refusal: Refusal, outcome: str = "") -> None:
        if self._relay is not None and self._relay.started:
            self._break(refusal, outcome or "broken")
            return
        self._relay = None
        call = self._call
        answer = refusal.encode(
            request_id=call.request.request_id,
            close=self._client.closes_after,
            style=call.api.style,
            extra=call.request.extra_lines,
        )
        self._client.write(answer)
        self._state.metrics.refused(refusal.code, call.tenant.name)
        outcome = outcome or ("engine_error" if call.attempts else "refused")
        self._close(status=refusal.status, outcome=outcome, code=refusal.code)
        self._client.exchange_done(keep=True)

    def _close(self, *, status: int, outcome: str, code: str = "") -> None:
        call, now_s = self._call, time.monotonic()
        if self._relay is not None:
            call.bytes_out = self._relay.bytes_out
        self._leave_upstream()
        if call.ticket is not None and self._pool is not None and self._waits_in() is None:
            self._pool.release(call.ticket, now_s)
            call.left_pool = self._pool  # it learns what was used when the books are written
        else:
            self._leave_pool(failed=outcome in FAILED)
        self._let_body_go()
        books = self._state.books
        books.close(call, now_s, status=status, outcome=outcome, code=code)
        if self._pool is not None and self._pool.scheduler.num_waiting:
            books.settle()  # who goes next depends on it

    def _waits_in(self) -> Pool | None:
        call = self._call
        return self._pool if call.ticket is not None and call.queued_s and call.granted_s is None else None

    def _leave_pool(self, *, failed: bool) -> None:
        """Give back the slot, or the place in the queue."""
        call, pool = self._call, self._pool
        ticket, call.ticket = call.ticket, None
        if ticket is None or pool is None:
            return
        if call.queued_s is not None and call.granted_s is None:
            call.granted_s = time.monotonic()
            if call.series is not None:
                call.series.waiting -= 1
            pool.cancel(ticket)
        else:
            pool.finish(ticket, used_tokens=call.used_tokens(failed=failed), served=call.first_byte_s is not None)

    def _leave_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.outstanding -= 1
            self._upstream.streams.discard(self)
            self._upstream = None

    def _drop_connection(self) -> None:
        if self._connect_task is not None:
            self._connect_task.cancel()
            self._connect_task = None
        if self._connection is not None:
            self._take_counts(self._connection)
            self._connection.abort()
            self._connection = None

    def _let_body_go(self) -> None:
        call = self._call
        if call.body_gone:
            return
        call.body_gone = True
        call.body = b""
        call.sent_body = None
        if type(call.facts) is Facts and call.facts.document:
            call.facts.document = {}  # it weighs more than the body
        call.request.pieces.clear()
        self._state.held_bytes -= call.request.held_bytes
        call.request.held_bytes = 0


def _outcome(status: int) -> str:
    if status < 400:
        return "ok"
    return "client_error" if status < 500 else "engine_error"
