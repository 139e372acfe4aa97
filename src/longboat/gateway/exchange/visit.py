"""One request at one engine: the way there, the watch over the engine's work, and the way from there."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING, Final

from longboat.core.states import ResumeLevel
from longboat.gateway.api.body import BodyError
from longboat.gateway.config import SWEEP_S
from longboat.gateway.exchange.life import JUDGE, PREEMPTED, Failed, Has, Judged, Lost
from longboat.gateway.exchange.reading import Place, Reading
from longboat.gateway.exchange.upstream_request import body_for, request_start
from longboat.gateway.http import error_responses
from longboat.gateway.native.leaf_work import named
from longboat.gateway.records.recent import Attempt
from longboat.gateway.records.spans import passed_on
from longboat.gateway.upstreams.crash_blame import is_dead, was_asked_to_end
from longboat.gateway.upstreams.upstream import request_end
from longboat.routing.health.poison import Admitted
from longboat.routing.queue.queue_entry import RUNNING

if TYPE_CHECKING:
    from longboat.gateway.exchange.answer_relay import AnswerRelay
    from longboat.gateway.exchange.reading import Host
    from longboat.gateway.exchange.resume_session import ResumeSession
    from longboat.gateway.upstreams.connection import UpstreamConnection
    from longboat.gateway.upstreams.stream_watchdog import Told
    from longboat.gateway.upstreams.upstream import Upstream
    from longboat.routing.policies.contract import Reason
    from longboat.routing.queue.fair_queue import Ticket

__all__ = ("Visit",)

_MAX_ATTEMPTS: Final = 64
_named: Final = named  # what is imported from C, compiled code would look up by its name each time
_MIN_WORK_S: Final = 0.03  # an engine that is lost sooner was dead when it got the request
_SILENT_TOO_S: Final = 1.0
_CARRIED: Final = ResumeLevel.CARRIED
_BLAMELESS: Final = frozenset(
    (PREEMPTED, "moved", "refused", "error", "declined", "differs", "crossed", "gone", "again")
)  # nothing bad of the engine


class Visit(Place):  # size: three callers: the request, the engine, the reader of its answer
    """The request's connection at one engine (an ``upstream.MovableStream``)."""

    __slots__ = ("_host", "_is_over", "_reason", "_sent_s")

    def __init__(
        self, host: Host, answer: AnswerRelay, session: ResumeSession, upstream: Upstream, reason: Reason
    ) -> None:
        """reason: why this engine was chosen"""
        super().__init__(answer, session, upstream)
        self._host = host
        self._reason = reason
        self._sent_s = 0.0  # when the engine got the request
        self._is_over = False

    # the way there

    def begin(self, now_s: float) -> None:
        """Send the request on a kept connection, or on a new one."""
        upstream = self.upstream
        if not upstream.breaker.closed:
            upstream.breaker.used(now_s)
        connection = upstream.connections.take()
        if connection is not None:
            self._send(connection, now_s)
        else:
            self._host.run(self._connect())

    async def _connect(self) -> None:
        upstream = self.upstream
        try:
            connection = await upstream.connections.open()
        except OSError as error:
            now_s = time.monotonic()
            upstream.breaker.failed(now_s)
            self._note_attempt(now_s)
            detail = str(error) or f"no connection within {upstream.limits.connect_timeout_s:g} s"
            has = Has.NOTHING if self.answer.call.first_byte_s is None else Has.BEGINNING
            self._is_over = True
            self._release(now_s)
            self._host.guard(functools.partial(self._host.left, self._loss("unreachable", detail, has=has)))
            return
        self._host.guard(functools.partial(self._send, connection, time.monotonic()))

    def _send(self, connection: UpstreamConnection, now_s: float) -> None:
        answer, upstream = self.answer, self.upstream
        call = answer.call
        self.connection = connection
        body = call.sent_body
        if body is None:
            try:
                body = call.sent_body = body_for(call)
            except BodyError as error:
                self._host.step(Failed(error_responses.bad_body(error)))
                return
        self._sent_s = now_s
        answer.forget_unsent()
        lines, body = self.session.prepare(upstream, body, now_s)
        if call.lease is not None and call.lease.trip is not None:
            lines = lines + call.lease.trip.header()  # compiled code is slower with ``+=`` of bytes
        if call.pool != upstream.model:
            lines += upstream.use_adapter(call.pool)
        trace = self._note_attempt(now_s)
        if upstream.address is None:
            lines = lines + trace
        elif call.bill is not None:
            call.bill.num_sent += 1
        start = request_start(call, upstream)
        connection.send(
            Reading(self, self._host), start + lines + request_end(call.request.request_id, len(body)), body
        )
        if answer.client.write_paused:
            connection.pause()

    def _note_attempt(self, now_s: float) -> bytes:
        """Note the attempt. Return the header lines by which the engine joins the trace."""
        call = self.answer.call
        at_s = now_s - call.request.received_s
        attempt = _named(Attempt, (self.upstream.replica, at_s, "", None, self._reason))
        attempts = call.attempts
        if len(attempts) > _MAX_ATTEMPTS:
            attempts = attempts[: _MAX_ATTEMPTS // 2] + attempts[_MAX_ATTEMPTS // 2 + 1 :]
        call.attempts = (*attempts, attempt) if attempts else (attempt,)
        if call.span is not None:
            return call.span.attempt()
        noted = call.request.noted
        return passed_on(noted) if b"traceparent" in noted else b""

    # watching

    def pause(self) -> None:
        """Read no further: the client does not."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read on: the client does again."""
        if self.connection is not None:
            self.connection.resume()

    @property
    def tenant(self) -> str:
        return self.answer.call.tenant.name

    @property
    def silent_s(self) -> float:
        return self.connection.path.quiet * SWEEP_S if self.connection is not None else math.inf

    def admitted(self, now_s: float) -> Admitted:
        session, connection = self.session, self.connection
        since_s = now_s - (self._sent_s or now_s)
        if session.is_journaled and session.resume_state is not None:
            return Admitted(self, session.resume_state.num_tokens - session.first_tokens, since_s)
        usage = self.answer.call.usage
        tokens = usage.num_events if usage is not None else 0
        if connection is not None:
            tokens += connection.path.num_events
        return Admitted(self, tokens, since_s)

    def sweep(self, now_s: float, sweeps_allowed: float) -> None:
        """Give the engine up where it is silent, slow, or both for longer than it may be."""
        connection, answer = self.connection, self.answer
        if connection is None:
            return
        self._tell_routing()
        if self.session.watch is not None:
            self._watch_engine(now_s)
        if self.connection is not connection or answer.client.write_paused:  # the engine may have been left
            return
        connection.path.quiet += 1
        if connection.path.quiet > sweeps_allowed:
            silence_s = answer.state.limits.engine_silence_s
            self._host.step(Failed(error_responses.upstream_silent(answer.call.pool, silence_s)))

    def _tell_routing(self) -> None:
        """Tell the router how far the answer is."""
        call = self.answer.call
        trip = call.lease.trip if call.lease is not None else None
        if trip is not None and call.usage is not None and self.connection is not None:
            trip.progressed(call.usage.num_events + self.connection.path.num_events)

    def _watch_engine(self, now_s: float) -> None:
        session, answer, upstream = self.session, self.answer, self.upstream
        watch, resume_state, whole = session.watch, session.resume_state, session.journal
        assert watch is not None
        journal: Told | None = whole
        if resume_state is not None:
            journal = resume_state.journal if self.has_head else None
        elif whole is None or not whole.told:  # until then nothing was promised
            return
        if answer.client.write_paused:
            watch.paused(now_s)
            return
        silent_s = self.silent_s
        tokens, seconds = watch.look(upstream, journal, now_s, silent_s)
        pool = answer.state.table.pool(upstream.model)
        if seconds and pool is not None and resume_state is not None and not resume_state.fault_s:
            pool.outliers.observe(upstream.key, tokens=tokens, seconds=seconds, now_s=now_s)
        verdict = watch.verdict(upstream, journal, now_s)
        if not verdict:
            return
        if silent_s and all(stream.silent_s >= _SILENT_TOO_S for stream in upstream.streams):
            answer.state.watch_until_found(upstream)
            upstream.mark_down(verdict, "silent")
        else:
            self.leave("silent", verdict)

    # making room

    @property
    def ticket(self) -> Ticket | None:
        """The ticket of its slot; None where it has none, or could not be continued token for token."""
        lease, upstream = self.answer.call.lease, self.upstream
        if lease is None or lease.pool is None or not self.has_head or self._is_over:
            return None
        able = upstream.resume is _CARRIED and upstream.ready and self.session.can_pause
        ticket = lease.ticket if able else None
        return ticket if ticket is not None and ticket.place is RUNNING else None

    @property
    def news_s(self) -> float:
        resume_state = self.session.resume_state
        resumed_s = 0.0 if resume_state is None else resume_state.resumed_s
        return max(self.answer.call.first_byte_s or 0.0, resumed_s)

    @property
    def context_tokens(self) -> int:
        resume_state, facts = self.session.resume_state, self.answer.call.facts
        prompt = facts.num_prompt_tokens_estimate if facts is not None else 0
        return prompt + (0 if resume_state is None else resume_state.num_tokens)

    def make_room(self, priority: int) -> None:
        """Leave the engine for a request of class ``priority``, unless the answer could not be continued."""
        relay = self.answer.relay
        if self.session.can_go_on and relay is not None and relay.is_whole:
            self.leave(PREEMPTED, f"a request of class {priority} gets its slot")

    # leaving

    def replica_lost(self, detail: str, reason: str) -> None:
        if self.answer.call.first_byte_s is None or self.session.can_go_on:
            self.leave(reason, detail)  # else it may still come to its end there

    def leave(self, reason: str, detail: str, *, stale: bool = False) -> None:
        if self._is_over:
            return
        upstream, now_s = self.upstream, time.monotonic()
        deaths = self.answer.state.deaths
        died = reason in ("lost", "heartbeat") or (reason == "silent" and bool(upstream.lost))
        died = died and now_s - (self._sent_s or now_s) > _MIN_WORK_S and upstream.address is None
        suspect = died and deaths.suspect(upstream, now_s, sure=not stale) is self
        silent_s = 0.0 if self.connection is None else self.silent_s
        self.end(now_s)
        if not stale and reason not in _BLAMELESS:
            upstream.breaker.failed(now_s)
        relay = self.answer.relay
        has = self.session.interrupted(relay, reason, now_s, silent_s)
        if has is Has.ALL and relay is not None:
            self.answer.pass_on(relay, b"", upstream, last=True)
        if self._host.left(self._loss(reason, detail, has=has, stale=stale, suspect=suspect)) is JUDGE:
            self._host.run(self._judge())

    def _loss(self, reason: str, detail: str, *, has: Has, stale: bool = False, suspect: bool = False) -> Lost:
        call, resume_state = self.answer.call, self.session.resume_state
        if call.attempts:
            at_s = time.monotonic() - call.request.received_s
            last = call.attempts[-1]
            failed = last._replace(failure=detail, failed_s=at_s, reason=str(last.reason))
            call.attempts = (*call.attempts[:-1], failed)
        revision = resume_state.revision if resume_state is not None and has is Has.BEGINNING else None
        return Lost(reason, detail, self.upstream.key, has=has, revision=revision, stale=stale, suspect=suspect)

    async def _judge(self) -> None:
        """Look whether the engine died, before another one gets the request."""
        upstream = self.upstream
        dead = await is_dead(upstream, upstream.limits.connect_timeout_s)
        blamed = dead and not await was_asked_to_end(upstream)
        self._host.guard(functools.partial(self._host.left, Judged(upstream.key, dead=dead, blamed=blamed)))

    def end(self, now_s: float) -> None:
        """Give up what the engine still does for this request."""
        self._is_over = True
        connection, self.connection = self.connection, None
        if connection is not None:
            self.answer.take_counts(connection.path)
            connection.abort()
        self._release(now_s)

    def _release(self, now_s: float) -> None:
        lease = self.answer.call.lease
        if lease is not None:
            lease.leave_engine(now_s)
