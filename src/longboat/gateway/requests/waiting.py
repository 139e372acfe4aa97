"""An exchange that waits for an engine where none is left, and tells a client that reads a stream that it does."""

from __future__ import annotations

import time

from longboat.core.policy import ResumePolicy
from longboat.gateway.api.body import Facts
from longboat.gateway.http import error_responses
from longboat.gateway.http.response_framing import Relay
from longboat.gateway.http.response_head import AnswerHead, answer_head
from longboat.gateway.http.responses import Refusal
from longboat.gateway.http.wire import Framing
from longboat.gateway.requests.exchange import Exchange
from longboat.gateway.requests.upstream_request import pool_lines
from longboat.gateway.upstreams.pool import Pool
from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("WaitingExchange",)

_NOBODY_THERE = ("model_not_ready", "engine_unreachable", "engine_lost")
_WAITING = b": waiting\n\n"
_EVENT_STREAM = answer_head(200, [(b"content-type", b"text/event-stream; charset=utf-8")])


class WaitingExchange(Exchange):
    """Waits where its model had a replica not long ago: until its deadline, or for ``gateway.resume.wait_s``."""

    # Most never wait: what they would need stands here once for all of them.
    _parked_in: Pool | None = None
    _refusal: Refusal | None = None  # what it is told if nobody comes
    _wait_until_s = 0.0  # 0.0 while an engine answers
    _told_s = 0.0

    # what the pool calls

    def woken(self) -> None:
        """There may be an engine now."""
        pool = self._parked_in
        if pool is not None and self._worth_trying():
            self._unpark()
            self._call.tried = frozenset()
            self._go_on(self._search)

    def timed_out(self) -> None:
        """It waited for room in vain; where nobody is left who could give any, it waits on."""
        call, pool = self._call, self._pool
        if pool is None or pool.any_ready or not self._may_wait(pool):
            super().timed_out()
            return
        call.ticket = None
        call.granted_s = time.monotonic()
        if call.series is not None:
            call.series.waiting -= 1
        self._park(pool, error_responses.no_ready_endpoint(call.pool))

    # what the client's connection calls

    def sweep(self, sweeps_allowed: float) -> None:
        now_s = time.monotonic()
        if self._wait_until_s and now_s > self._wait_until_s and self._connection is None:
            self._waited_in_vain()
            return
        if self._parked_in is not None:
            self.woken()
        if self._is_idle:
            self._tell_of_waiting(now_s)
        super().sweep(sweeps_allowed)

    # waiting

    @property
    def _started(self) -> bool:
        """Whether the client has a head."""
        return self._relay is not None and self._relay.started

    @property
    def _has_content(self) -> bool:
        """Whether the client has the answer's beginning."""
        return self._call.first_byte_s is not None

    @property
    def _policy(self) -> ResumePolicy:
        return self._state.live.policy.resume

    @property
    def _is_idle(self) -> bool:
        """Whether it waits for an engine that is not there."""
        queued_in = self._waits_in()
        return self._parked_in is not None or (queued_in is not None and not queued_in.any_ready)

    def _search(self) -> None:
        self._enter_pool()

    def _worth_trying(self) -> bool:
        table = self._state.table
        return any(self._may_use(e) for model in self._call.pools for e in table.endpoints(model) or ())

    def _may_use(self, upstream: Upstream) -> bool:
        return upstream.ready and not upstream.suspect

    def _may_wait(self, pool: Pool | None) -> bool:
        call, policy = self._call, self._policy
        if not policy.enabled or policy.wait_s <= 0 or call.facts is None or call.pinned:
            return False
        if pool is None or pool is not self._state.table.pool(pool.model):  # the model left the fleet
            return False
        return self._has_content or time.monotonic() - pool.ready_s < policy.wait_s

    def _out_of_pools(self, refusal: Refusal) -> None:
        call = self._call
        pool = self._state.table.pool(call.pools[0])
        if refusal.code not in _NOBODY_THERE or not self._may_wait(pool):
            super()._out_of_pools(refusal)
            return
        assert pool is not None
        if call.at_pool:
            call.at_pool, call.sent_body = 0, None
        self._park(pool, refusal)

    def _park(self, pool: Pool, refusal: Refusal) -> None:
        """Wait for an engine. refusal: what is told if none comes."""
        self._begin_to_wait()
        self._refusal = refusal
        self._parked_in = pool
        pool.parked[self] = None

    def _begin_to_wait(self) -> None:
        if not self._wait_until_s:
            now_s = self._told_s = time.monotonic()
            deadline_s = self._call.deadline_s
            has_deadline = deadline_s is not None and deadline_s > now_s
            self._wait_until_s = deadline_s if has_deadline and deadline_s else now_s + self._policy.wait_s

    def _unpark(self) -> None:
        pool, self._parked_in = self._parked_in, None
        if pool is not None:
            pool.parked.pop(self, None)

    def _waited_in_vain(self) -> None:
        refusal = self._refusal or error_responses.no_ready_endpoint(self._call.pool)
        self._unpark()
        self._drop_connection()
        deadline_s = self._call.deadline_s
        if deadline_s is not None and time.monotonic() > deadline_s and not self._has_content:
            self._refuse(error_responses.deadline_passed(), outcome="expired")
        else:
            self._refuse(refusal)

    def _close(self, *, status: int, outcome: str, code: str = "") -> None:
        if self._parked_in is not None:
            self._unpark()
        super()._close(status=status, outcome=outcome, code=code)

    # telling

    def _tell_of_waiting(self, now_s: float) -> None:
        """A comment now and then; with a head before it where nothing was answered yet."""
        facts = self._call.facts
        if now_s - self._told_s < self._policy.comment_s or type(facts) is not Facts or not facts.stream:
            return
        self._told_s = now_s
        if self._relay is None:
            self._relay = self._early_relay()
            self._status = 200
        if self._relay.events and not self._client.write_paused:
            self._client.write(self._relay.comment(_WAITING))

    def _early_relay(self) -> Relay:
        call, request = self._call, self._call.request
        framing = Framing.CLOSE if request.http_1_0 else Framing.CHUNKED
        lines = _EVENT_STREAM.for_client(
            framing,
            sized=False,
            request_id=request.request_id,
            replica="",
            close=self._client.closes_after,
            extra=pool_lines(call) + request.extra_lines,
        )
        return Relay(lines, framing, events=True, style=call.api.style)

    def _on_late_head(self, head: AnswerHead, upstream: Upstream) -> bool:
        """An engine answers after the client was given a head. Whether its answer fits behind that."""
        if head.status != 200 or not head.events:
            return False
        upstream.breaker.succeeded()
        self._status = head.status
        self._read_usage(events=True)
        return True

    def _has_begun(self) -> None:
        self._wait_until_s = 0.0
        super()._has_begun()
