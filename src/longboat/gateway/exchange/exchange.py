"""Carries out what the life of one request decides: asks for a slot, sends to engines, waits, refuses, ends."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from longboat.gateway.api.body import BodyError, Facts
from longboat.gateway.exchange import life
from longboat.gateway.exchange.answer_relay import WAITING, AnswerRelay, ClientSide
from longboat.gateway.exchange.life import Action, Event, Judged, Lost, Phase
from longboat.gateway.exchange.lifecycle import step
from longboat.gateway.exchange.payment import Payments, close_bill
from longboat.gateway.exchange.reading import Host
from longboat.gateway.exchange.resume_session import ResumeSession
from longboat.gateway.exchange.selection import Selection
from longboat.gateway.exchange.upstream_request import body_for
from longboat.gateway.exchange.visit import Visit
from longboat.gateway.exchange.waits import Waits
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import request_digest
from longboat.gateway.records.recent import Decision

if TYPE_CHECKING:
    from longboat.core.policy import ResumePolicy
    from longboat.gateway.calls.accounting import Accounting
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.calls.state import GatewayState
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("ClientSide", "Exchange")

_MAX_DECISIONS: Final = 64
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_monotonic_s: Final = time.monotonic


class Exchange(Host):  # size: five methods for each of its two callers, and one for each action
    """One request from its admission to the last byte of its answer. Its account is open throughout."""

    __slots__ = (
        "_answer", "_blamed", "_call", "_client", "_life", "_session", "_state", "_task", "_view", "_visit", "_waits",
    )  # fmt: skip

    def __init__(self, state: GatewayState, client: ClientSide, call: Call) -> None:
        self._state = state
        self._client = client
        self._call = call
        self._answer = AnswerRelay(state, client, call)
        self._session = ResumeSession(state, call)
        self._view = _View(state, call)
        self._life = life.begin(_terms_of(call, state.table.adapters_among(call.pools)))
        self._visit: Visit | None = None  # at the engine that works on it
        self._waits = Waits(state, call, self)
        self._blamed = ""  # its digest, once engines died in its first steps
        self._task: asyncio.Task[None] | None = None  # what must be waited for before the next step

    # what the client's connection calls

    def ask_client(self) -> None:
        """Give a client that may have gone bytes to refuse: an interim response before the answer, or a comment in it.

        A client that does not wait for an interim response drops it (RFC 9110, 15.2).
        """
        relay = self._answer.relay
        if relay is None or not relay.started:
            self._client.write(_INTERIM)
        elif relay.passes_chunks:
            self._client.write(relay.comment(WAITING))

    def start(self) -> None:
        """Begin; where that fails, end the request with an error."""
        try:
            self.step(life.START)
        except Exception as error:
            self._failed(error)

    def abort(self) -> None:
        """End at once, with the engine's work: the client has gone."""
        self.step(life.CLIENT_GONE)

    def pause(self) -> None:
        """Read no further: the client does not."""
        if self._visit is not None:
            self._visit.pause()

    def resume(self) -> None:
        """Read on: the client does again."""
        if self._visit is not None:
            self._visit.resume()

    def sweep(self, sweeps_allowed: float) -> None:
        """Check the limits in seconds. An engine may be silent for ``sweeps_allowed`` sweeps."""
        if self._life.phase is not Phase.STREAMING:
            self.step(life.TICK)
        visit, now_s = self._visit, time.monotonic()
        is_idle = self._session.is_interrupted or self._waits.is_idle
        if is_idle and self._call.is_open:
            self._answer.tell_of_waiting(now_s)
        if visit is not None:
            visit.sweep(now_s, sweeps_allowed)

    # what visits, waits and payments call

    @property
    def phase(self) -> Phase:
        """The phase of the request's life."""
        return self._life.phase

    def step(self, event: Event, now_s: float = 0.0) -> Action:
        """Do what this event makes of the request. now_s: where the caller has read the clock"""
        return self._step_at(event, now_s if now_s or event.is_answer else _monotonic_s())

    def _step_at(self, event: Event, now_s: float) -> Action:
        view = self._view
        view.now_s = now_s
        self._life, action = step(self._life, event, view, now_s)
        if action is not life.NOTHING:
            self._carry_out(action, now_s)
        return action

    def guard(self, work: Callable[[], object]) -> None:
        """Do work that the event loop calls: where it fails, end the request with an error."""
        try:
            work()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        report = {"message": "the gateway failed on a request", "exception": error}
        asyncio.get_running_loop().call_exception_handler(report)
        self.step(life.Failed(error_responses.internal()))

    def left(self, event: Lost | Judged) -> Action:
        """Continue after an engine was left, or judged afterwards."""
        self._visit = None
        self._drop_task()
        body = self._call.sent_body
        if isinstance(event, Judged) and event.blamed and body is not None:
            self._blamed = request_digest(self._call.path, body)
            self._state.deaths.blame(self._blamed)
        return self.step(event)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this in a task that ends with the request."""
        task = self._task = asyncio.get_running_loop().create_task(work)
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def forget_task(self) -> None:
        """Let the request run another task: this one has nothing left to wait for."""
        if self._task is asyncio.current_task():
            self._task = None

    # what the life decides

    @property
    def _payments(self) -> Payments:
        return Payments(self._state, self._call, self)

    def _carry_out(self, action: Action, now_s: float) -> None:
        """now_s: may be 0.0 where an engine's answer led to the action, which then asks no engine"""
        if action is life.OVERFLOW:
            if self._task is None or self._task.done():  # else a payment is under way
                self._payments.overflow()
            return
        if action.reason and not isinstance(action, life.Send):
            self._note(action)
        if not isinstance(action, life.Park):
            self._waits.unpark()
        if isinstance(action, life.Send):
            self._send(action, now_s)
        elif action is life.OFFER:
            self._step_at(self._waits.offer(now_s), now_s)
        elif action is life.FINISH:
            self._finish(now_s)
        elif action is life.STREAM:
            self._waits.leave_turn()
        elif action is life.ASK_TURN:
            self._answer.waits_since(time.monotonic())
            self.step(self._waits.ask_turn())
        elif isinstance(action, life.FallBack):
            self._fall_back(action)
        elif isinstance(action, life.Park):
            self._park()
        elif isinstance(action, life.Pause):
            self._pause()
        elif isinstance(action, life.Refuse):
            self._refuse(action)
        elif action is life.LEFT:
            self._leave()

    def _send(self, action: life.Send, now_s: float) -> None:
        if self._call.outside is None or self._payments.pay_for(action):
            self._visit_engine(action, now_s)

    def visit_engine(self, action: life.Send) -> None:
        """Send the request to the engine of ``action``, which was paid for."""
        self._visit_engine(action, time.monotonic())

    def _visit_engine(self, action: life.Send, now_s: float) -> None:
        upstream: Upstream = action.engine  # type: ignore[assignment]
        visit = self._visit = Visit(self, self._answer, self._session, upstream, action.reason)
        lease = self._call.lease
        assert lease is not None
        lease.leave_queue()
        lease.trip = self._view.begin_trip(upstream, now_s)
        lease.take_engine(upstream, visit)
        visit.begin(now_s)

    def _fall_back(self, action: life.FallBack) -> None:
        call = self._call
        self._waits.leave_pool()
        if call.bill is not None:
            close_bill(self._state, call, keep_for=call.pools[action.at_pool])
        call.at_pool = action.at_pool
        call.sent_body = call.prompt = None
        self._state.metrics.fell_back(call.pools[0], call.pool)
        self.step(life.START)

    def _park(self) -> None:
        call = self._call
        self._answer.waits_since(time.monotonic())
        self._waits.leave_turn()
        if call.lease is not None and call.first_byte_s is not None:
            call.lease.leave_queue()
        if call.first_byte_s is None:
            self._waits.leave_pool()
            if call.bill is not None:
                close_bill(self._state, call)
            if call.at_pool:
                call.at_pool, call.sent_body, call.prompt = 0, None, None
        self._waits.park()

    def _pause(self) -> None:
        self._answer.waits_since(time.monotonic())
        self._waits.leave_turn()
        self.step(self._waits.rejoin())

    def _finish(self, now_s: float) -> None:
        self._complete(waits=self._client.write_paused, now_s=now_s)
        self._client.exchange_done(keep=True)

    def _complete(self, *, waits: bool, now_s: float = 0.0) -> None:
        if self._blamed:
            self._state.deaths.acquit(self._blamed)
        status = self._answer.status
        outcome = "ok" if status < 400 else "client_error" if status < 500 else "engine_error"
        self._close(status=status, outcome=outcome, waits=waits, now_s=now_s)

    def _leave(self) -> None:
        usage = self._call.usage
        if usage is not None and usage.is_over:  # clients of streams close after the last event, before the last chunk
            self._complete(waits=False)
        else:
            self._close(status=499, outcome="client_left")

    def _refuse(self, action: life.Refuse) -> None:
        call, refusal, answer = self._call, action.refusal, self._answer
        if self._visit is not None:
            self._visit.end(time.monotonic())
        self._session.count("failed", answer.last_block_s)
        if refusal.code == "poison_request" and self._blamed:
            self._state.metrics.event("poison_request")
        keep = answer.refuse(refusal)
        outcome = action.outcome or "broken"
        if keep:
            self._state.metrics.refused(refusal.code, call.tenant.name)
            outcome = action.outcome or ("engine_error" if call.attempts else "refused")
        self._close(status=answer.status, outcome=outcome, code=refusal.code)
        self._client.exchange_done(keep=keep)

    def _close(self, *, status: int, outcome: str, code: str = "", waits: bool = False, now_s: float = 0.0) -> None:
        """waits: the client has yet to take the last of a long answer; how that ends is written down then"""
        call, now_s, lease = self._call, now_s or _monotonic_s(), self._call.lease
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.end(now_s)
        self._drop_task()
        self._waits.end()
        if self._answer.relay is not None:
            call.bytes_out = self._answer.relay.bytes_out
        self._state.held_bytes -= call.release_body()
        accounting = self._state.accounting
        if waits and accounting.free(call, now_s):
            self._client.taken = functools.partial(_note_end, accounting, call, status, outcome)
        else:
            accounting.close(call, now_s, status=status, outcome=outcome, code=code)
        if lease is not None and lease.pool is not None and lease.pool.scheduler.num_waiting:
            accounting.flush()  # who goes next depends on it

    def _drop_task(self) -> None:
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _note(self, action: Action) -> None:
        """Keep what was decided for the request's timeline."""
        call = self._call
        if len(call.decisions) < _MAX_DECISIONS:
            at_s = time.monotonic() - call.request.received_s
            call.decisions = (*call.decisions, Decision(at_s, action.name, str(action.reason)))


def _note_end(accounting: Accounting, call: Call, status: int, outcome: str, is_whole: bool) -> None:
    how = (status, outcome) if is_whole else (499, "client_left")
    accounting.note_end(call, time.monotonic(), status=how[0], outcome=how[1])


class _View(Selection):
    """What the life of a request sees of the fleet."""

    __slots__ = ()

    @property
    def policy(self) -> ResumePolicy:
        return self._state.live.policy.resume

    def endpoints(self, model: str) -> Sequence[Upstream] | None:
        return self._state.table.endpoints(model)

    def ready_s(self, model: str) -> float:
        pool = self._state.table.pool(model)
        return 0.0 if pool is None or pool.outside is not None else pool.ready_s

    def sleep_of(self, model: str) -> life.Sleep | None:
        pool = self._state.table.pool(model)
        if pool is None or pool.asleep is None:
            return None
        rules, asleep = self._state.live.policy.wake, pool.asleep
        ready_in_s = asleep.ready_in_s(time.time())
        return life.Sleep(asleep.paused, ready_in_s, len(pool.parked) < rules.max_waiting, rules.wait_s)

    def is_poison(self) -> bool:
        call, deaths = self._call, self._state.deaths
        if not deaths.any_blamed or call.facts is None or call.body_gone:
            return False
        try:
            call.sent_body = call.sent_body or body_for(call)
        except BodyError:
            return False  # refused on the way
        return deaths.is_poison(call.path, call.sent_body)


def _terms_of(call: Call, adapters: frozenset[str]) -> life.Terms:
    facts = call.facts
    return life.Terms(
        call.pools,
        adapters=adapters,
        deadline_s=call.deadline_s,
        pinned=call.pinned,
        needs_slot=facts is not None,
        overflow=call.overflow,
        began_s=call.decided_s,
        streams=isinstance(facts, Facts) and facts.stream,
        revision=call.comes_back[0].revision if call.comes_back is not None else None,
    )
