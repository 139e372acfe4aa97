"""What is written down about every request: quota, metrics, access log, usage, traces, each exactly once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from longboat.gateway.api.usage import Usage
from longboat.gateway.http.error_responses import quota_refused
from longboat.gateway.http.responses import Refusal
from longboat.gateway.records.access_log import access_line
from longboat.gateway.records.recent import Record

if TYPE_CHECKING:
    from longboat.gateway.http.request import Request
    from longboat.gateway.requests.model_request import Call
    from longboat.gateway.requests.state import GatewayState
    from longboat.routing.capacity.quota import Denied

__all__ = ("FAILED", "Books")

FAILED = frozenset(("refused", "expired", "engine_error", "client_error"))
"""Outcomes for which no tenant pays tokens: no engine did the work that was asked for."""

_UNKNOWN = Usage()
_MAX_ENDED = 64


class Books:
    """Opens and closes the account of each request. Whoever opened it closes it, however it ends."""

    __slots__ = ("_ended", "_state")

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._ended: list[tuple[Call, float, int, str, str]] = []

    def open(self, call: Call) -> Refusal | None:
        """Count the request in, and reserve what it may cost; a refusal where its tenant has no room for it."""
        call.reserved_unix_s = time.time()
        counters = self._state.counters
        denied = counters.reserve(call.tenant, tokens=call.cost_tokens, now_s=call.reserved_unix_s)
        if denied is not None and self._ended:  # some of them may have used less than was reserved for them
            self.settle()
            denied = counters.reserve(call.tenant, tokens=call.cost_tokens, now_s=call.reserved_unix_s)
        return self._opened(call, denied)

    async def open_remotely(self, call: Call) -> Refusal | None:
        """Open the account where other processes, or Redis, must be asked for room first."""
        remote = self._state.remote_counters
        reserve = self._state.counters.reserve_after_division if remote is None else remote.reserve
        call.reserved_unix_s = time.time()
        self.settle()
        return self._opened(call, await reserve(call.tenant, tokens=call.cost_tokens, now_s=call.reserved_unix_s))

    def close(self, call: Call, now_s: float, *, status: int, outcome: str, code: str = "") -> None:
        """The request ended. Does nothing the second time.

        What others wait for happens now: its place among the running ones is free. The rest is written down with that
        of others, before anybody reads it and within 100 ms: one after another they cost half.

        now_s: monotonic; status: of the HTTP answer, 499 where the client left; outcome: one of ``metrics.OUTCOMES``
        """
        if not call.is_open:
            return
        call.is_open = False
        state = self._state
        state.in_flight -= 1
        call.series.in_flight -= 1  # type: ignore[union-attr]
        (state.remote_counters or state.counters).release(call.tenant)
        ended = self._ended
        ended.append((call, now_s, status, outcome, code))
        if len(ended) >= _MAX_ENDED:
            self.settle()

    def settle(self) -> None:
        """Write down all that ended. To be called before what was counted is read, and ten times a second."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        clocks_s = time.time() - time.monotonic()
        log, lines = self._state.access_log, []
        for call, ended_s, status, outcome, code in ended:
            try:
                record = _record(call, ended_s, clocks_s, status=status, outcome=outcome, code=code)
                self._write_down(call, record)
                if log is not None:
                    lines.append(access_line(record))
            except Exception as error:  # a defect must not lose the others
                report = {"message": "a request could not be written down", "exception": error}
                asyncio.get_running_loop().call_exception_handler(report)
        if log is not None:
            log.write_lines(lines)

    def refused(self, request: Request, refusal: Refusal, *, tenant: str = "", model: str | None = None) -> None:
        """An answer of the gateway's own to a request whose account was never opened."""
        state = self._state
        self.settle()  # so that the log keeps their order
        state.metrics.refused(refusal.code, tenant)
        if state.access_log is None:
            return
        ended_s = time.monotonic() - request.received_s
        record = Record(
            request.request_id,
            tenant,
            request.path_text(),
            model,
            None,
            "",
            time.time() - ended_s,
            None,
            None,
            None,
            (),
            None,
            ended_s,
            refusal.status,
            "refused",
            refusal.code,
            0,
            None,
            None,
            None,
        )
        state.access_log.write_lines([access_line(record)])

    def _opened(self, call: Call, denied: Denied | None) -> Refusal | None:
        if denied is not None:
            return quota_refused(denied, call.tenant.name)
        state = self._state
        call.is_open = True
        call.series = series = state.metrics.series(call.pools[0], call.tenant.name)
        series.in_flight += 1
        state.in_flight += 1
        if state.tracer is not None:
            noted = call.request.noted
            call.span = state.tracer.start(noted.get(b"traceparent"), noted.get(b"tracestate"))
        return None

    def _write_down(self, call: Call, record: Record) -> None:
        state = self._state
        used = call.used_tokens(failed=record.outcome in FAILED or not record.attempts)
        if call.left_pool is not None and call.ticket is not None:
            call.left_pool.learn(call.ticket, used_tokens=used, served=record.first_byte_s is not None)
        (state.remote_counters or state.counters).settle(
            call.tenant,
            reserved_tokens=call.cost_tokens,
            used_tokens=call.cost_tokens if used is None else used,
            reserved_s=call.reserved_unix_s,
            now_s=time.time(),
        )
        self._count(call, record)
        state.recent.add(record)
        if call.span is not None and state.tracer is not None:
            state.tracer.finish(call.span, record)

    def _count(self, call: Call, record: Record) -> None:
        assert call.series is not None
        prompt, completion, cached = record.prompt_tokens, record.completion_tokens, record.cached_tokens
        call.series.done(
            record.outcome,
            record.first_byte_s,
            record.ended_s,
            record.queue_s,
            prompt,
            completion,
            cached,
            record.retries,
        )
        self._state.usage.add(
            record.tenant,
            call.pool,
            now_s=call.reserved_unix_s,
            prompt_tokens=prompt or 0,
            completion_tokens=completion or 0,
            cached_tokens=cached or 0,
        )


def _record(call: Call, ended_s: float, clocks_s: float, *, status: int, outcome: str, code: str) -> Record:
    """ended_s: monotonic; clocks_s: Unix time less monotonic time"""
    request = call.request
    received_s = request.received_s
    usage = call.measured() or _UNKNOWN
    fields = (
        request.request_id,
        call.tenant.name,
        call.plan.path_text if call.plan is not None else request.path_text(),
        call.requested,
        call.pool,
        call.why,
        received_s + clocks_s,
        call.decided_s - received_s,
        None if call.queued_s is None else call.queued_s - received_s,
        None if call.granted_s is None else call.granted_s - received_s,
        call.attempts,
        None if call.first_byte_s is None else call.first_byte_s - received_s,
        ended_s - received_s,
        status,
        outcome,
        code,
        call.bytes_out,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
    )
    return tuple.__new__(Record, fields)  # as Record(*fields), which is a function in Python
