"""Reads an engine's answer to one request, and passes it on."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from longboat.gateway.exchange.engine_errors import engine_refusal, late_refusal
from longboat.gateway.exchange.life import (
    COMPLETE,
    CONTENT,
    RELAY,
    TELL,
    Action,
    Event,
    Failed,
    Head,
    Judged,
    Leave,
    Lost,
)
from longboat.gateway.external.outside import retry_after_s
from longboat.gateway.http.response_head import ResponseHead, parse_response_head
from longboat.gateway.resume.continuation.parts import ContinuationError
from longboat.gateway.resume.resume_state import EngineFaultError
from longboat.gateway.upstreams.connection import ResponseSink

if TYPE_CHECKING:
    from longboat.gateway.exchange.answer_relay import AnswerRelay
    from longboat.gateway.exchange.resume_session import ResumeSession
    from longboat.gateway.http.response_framing import Relay
    from longboat.gateway.http.responses import Refusal
    from longboat.gateway.resume.resume_state import ResumeState
    from longboat.gateway.resume.unstreamed_journal import WholeJournal
    from longboat.gateway.upstreams.connection import UpstreamConnection
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("Host", "Place", "Reading")

_monotonic_s: Final = time.monotonic
_JSON = [(b"content-type", b"application/json")]
_HEAD: Final = Head(200, fits=True)
_ASKED_SLOWER: Final = Leave("again", "it refused to continue another engine's answer")

_TOO_MANY: Final = 429
_ACCOUNT_ERRORS: Final = frozenset((401, 402, 403, 408))
"""Statuses of external addresses that are about the fleet's account there, or about their own load."""

_SAID_ANOTHER_WAY: Final = frozenset((400, 401, 403, 404, 405, 422))
"""Statuses of engines' errors that clients may get in other words."""


_MAX_ERROR_BYTES: Final = 1 << 16
"""So much of an error is read where it becomes an event of a stream."""


class Host:
    """The request, as what works for it needs it. A class of its own, so that its calls are compiled."""

    __slots__ = ()

    def step(self, event: Event, now_s: float = 0.0) -> Action:
        """Do what this event makes of the request. now_s: where the caller has read the clock"""
        raise NotImplementedError

    def left(self, event: Lost | Judged) -> Action:
        """Do what it makes of the request that its engine was left, or judged afterwards."""
        raise NotImplementedError

    def guard(self, work: Callable[[], object]) -> None:
        """Do work that the event loop calls: where it fails, end the request with an error."""
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this in a task that ends with the request."""
        raise NotImplementedError


class Place:
    """The request at the engine that answers."""

    __slots__ = ("answer", "connection", "has_head", "session", "upstream")

    def __init__(self, answer: AnswerRelay, session: ResumeSession, upstream: Upstream) -> None:
        self.answer = answer
        self.session = session
        self.upstream = upstream
        self.connection: UpstreamConnection | None = None  # None before there is one, and once it is free
        self.has_head = False  # the engine's answer has begun

    def leave(self, reason: str, detail: str, *, stale: bool = False) -> None:
        """Leave the engine, which does not answer or not any further.

        stale: the connection was kept, and may just have ended by its age: that says nothing about the engine
        """
        raise NotImplementedError


class Reading(ResponseSink):
    """The sink of one engine's answer."""

    __slots__ = ("_answer", "_error", "_error_head", "_host", "_is_left", "_session", "_upstream", "_visit")

    def __init__(self, visit: Place, host: Host) -> None:
        self._visit = visit
        self._host = host
        self._answer = visit.answer
        self._session = visit.session
        self._upstream = visit.upstream
        self._is_left = False  # what still comes is not looked at
        self._error = b""  # what came of an error that becomes an event of a stream
        self._error_head: ResponseHead | None = None  # of it

    # what the connection calls

    def on_head(self, head: ResponseHead, length: int | None = None) -> None:
        self._visit.has_head = True
        if self._is_left:
            return
        answer, session, status = self._answer, self._session, head.status
        journal, resume_state = session.journal, session.resume_state
        if journal is not None and self._on_head_of_whole(head, journal):
            return
        if status == 409 and resume_state is not None and resume_state.lower():
            self._leave_soon(_ASKED_SLOWER)
            return
        goes_on = answer.call.first_byte_s is not None
        late = answer.started
        fits = not late or (status == 200 and head.events and (head.journaled or not goes_on))
        turned_away_by = ""
        if status >= 400 and self._upstream.address is not None and self._is_turned_away(head):
            turned_away_by = self._upstream.key
        event = _HEAD if fits and status == 200 else Head(status, fits=fits, turned_away_by=turned_away_by)
        action = self._host.step(event)
        if isinstance(action, Leave):
            self._leave_soon(action)
        if action is not RELAY and action is not TELL:
            return
        if status < 500 and not self._upstream.breaker.closed:
            self._upstream.breaker.succeeded()
        if action is TELL:
            self._error_head = head
            return
        if goes_on:
            assert resume_state is not None
            resume_state.goes_on()
            return
        if late:
            answer.begin_late(head)
        else:
            answer.begin(head, self._upstream, length)
        if resume_state is not None:
            resume_state.begins(head, self._upstream)

    def on_whole(self, head: ResponseHead, length: int, body: bytes) -> None:
        self._visit.connection = None  # it is free: it may carry another answer by now
        if self._is_left or not self._answer.takes_whole(head, length, body):
            self.on_head(head, None if length < 0 else length)
            self.on_block(body, last=True)
            return
        if not self._upstream.breaker.closed:
            self._upstream.breaker.succeeded()
        now_s = _monotonic_s()
        self._answer.give_whole(head, self._upstream, length, body, now_s)
        self._host.step(COMPLETE, now_s)

    def on_block(self, body: bytes, *, last: bool) -> None:
        if self._is_left:
            if last:
                self._visit.connection = None  # it is free: another request may have it before this one leaves
            return
        if self._error_head is not None:
            self._tell(self._error_head, body, last=last)
            return
        answer, session, connection = self._answer, self._session, self._visit.connection
        if session.journal is not None and session.journal.told:
            self._on_block_of_whole(session.journal, body, last=last)
            return
        relay, resume_state = answer.relay, session.resume_state
        assert relay is not None
        if connection is not None and connection.path.direct:
            answer.take_counts(connection.path)
        if resume_state is not None and resume_state.journal is not None:
            events = self._checked(resume_state, relay, body, last=last)
            if events is not None:
                self._pass_on(relay, events, last=last)
            return
        if relay.events:
            body = relay.whole_events(body, last=last)
        elif not relay.started:
            if answer.status in _SAID_ANOTHER_WAY and self._is_refused(body, last=last):
                return
            whole = session.hold(body, last=last)
            if whole is None:
                return
            body = whole
        self._pass_on(relay, body, last=last)

    def on_lost(self, detail: str) -> None:
        connection = self._visit.connection
        stale = connection is not None and connection.used and not self._visit.has_head
        self._visit.leave("moved" if self._upstream.leaving else "lost", detail, stale=stale)

    # reading

    def _is_turned_away(self, head: ResponseHead) -> bool:
        """Note an external address's error. Return whether it says nothing about the request itself."""
        upstream, status = self._upstream, head.status
        if status == _TOO_MANY:
            upstream.hold(retry_after_s(head.retry_after, time.time()))
            self._answer.state.metrics.event("external_held")
        elif status >= 500 or status in _ACCOUNT_ERRORS:
            upstream.breaker.failed(time.monotonic())
        return status >= 500 or status == _TOO_MANY or status in _ACCOUNT_ERRORS

    def _checked(self, resume_state: ResumeState, relay: Relay, body: bytes, *, last: bool) -> bytes | None:
        """Return what the client gets of a stream with a journal; None where the engine was left for what it sent."""
        try:
            events = resume_state.feed(relay.whole_events(body, last=False), last=last)
            if last and relay.holds_tail:
                raise EngineFaultError("ended", "it ended its answer in the middle of an event")
        except EngineFaultError as fault:
            self._visit.leave(fault.reason, str(fault))
            return None
        if not events:
            return events
        answer = self._answer
        if resume_state.fault_s:
            self._session.went_on(answer.last_block_s)
            lease = answer.call.lease
            if lease is not None and lease.trip is not None:
                lease.trip.first_token(time.monotonic())
            self._host.step(CONTENT)
        if answer.call.first_byte_s is None:
            line = self._session.client_token(resume_state, events)
            if relay.started:  # its head went before any engine had answered
                answer.client.write(relay.comment(b": %b\n\n" % line.rstrip()))
            else:
                relay.add_lines(line)
        return events

    def _is_refused(self, body: bytes, *, last: bool) -> bool:
        """Refuse the request where the engine's error is not meant for the client."""
        refusal = engine_refusal(self._answer.call, self._answer.status, body)
        if refusal is not None:
            self._refuse(refusal, last=last)
        return refusal is not None

    def _tell(self, head: ResponseHead, body: bytes, *, last: bool) -> None:
        """Refuse the request with the engine's error, whose head came behind that of a stream."""
        self._error += body[:_MAX_ERROR_BYTES]
        if last or len(self._error) >= _MAX_ERROR_BYTES:
            found = engine_refusal(self._answer.call, head.status, self._error)
            again_s = None if head.retry_after is None else math.ceil(retry_after_s(head.retry_after, time.time()))
            self._refuse(found or late_refusal(head.status, self._error, again_s), last=last)

    def _refuse(self, refusal: Refusal, *, last: bool) -> None:
        if last:
            self._visit.connection = None  # it is free: it may carry another response by now
        self._host.step(Failed(refusal, "engine_error" if refusal.status >= 500 else "client_error"))

    def _pass_on(self, relay: Relay, body: bytes, *, last: bool) -> None:
        answer, session = self._answer, self._session
        first = answer.pass_on(relay, body, self._upstream, last=last)
        if last:
            self._visit.connection = None
            self._host.step(COMPLETE)
            return
        if first:
            if session.is_journaled:
                answer.call.release_document()
            else:
                answer.state.held_bytes -= answer.call.release_body()
            self._host.step(CONTENT)
        connection = self._visit.connection
        if not relay.passes_chunks or connection is None or answer.call.first_byte_s is None:
            return
        resume_state = session.resume_state
        if resume_state is None or resume_state.journal is None:
            answer.let_chunks_pass(connection.path)
        elif resume_state.lets_tokens_pass:
            answer.let_chunks_pass(connection.path)
            connection.path.journal = resume_state.journal.log

    def _on_head_of_whole(self, head: ResponseHead, journal: WholeJournal) -> bool:
        """Return whether nothing more is to be done: the answer follows its tokens, or is asked for in another way."""
        if head.status == 200 and head.journaled and head.events:
            journal.begins()
            return True
        if journal.carries and 400 <= head.status < 500:
            journal.lower()
            self._leave_soon(_ASKED_SLOWER)
            return True
        return False

    def _on_block_of_whole(self, journal: WholeJournal, body: bytes, *, last: bool) -> None:
        """Read an answer that comes behind its tokens."""
        try:
            journal.feed(body)
        except ContinuationError as error:
            self._visit.leave("nonsense", str(error))
            return
        if not last:
            return
        if journal.answer is None:
            self._visit.leave("ended", "it ended its answer before the end")
            return
        self._session.journal = None
        head = parse_response_head(journal.status, _JSON)
        self.on_whole(head, len(journal.answer), journal.answer)
        if self._is_left:
            self._session.journal = journal

    def _leave_soon(self, action: Leave) -> None:
        """Leave the engine after its head was read, and ignore the remainder of its answer."""
        self._is_left = True
        leave = functools.partial(self._visit.leave, action.cause, str(action.reason))
        asyncio.get_running_loop().call_soon(self._host.guard, leave)
