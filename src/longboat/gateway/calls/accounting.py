"""What is written down about every request: quota, metrics, access log, usage, traces, each exactly once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from longboat.core.policy import Policy
from longboat.gateway.api.usage import Usage
from longboat.gateway.calls.lease import Lease
from longboat.gateway.calls.wallets import Wallets
from longboat.gateway.http.error_responses import quota_refused
from longboat.gateway.http.responses import Refusal
from longboat.gateway.native.leaf_work import named
from longboat.gateway.records.access_log import access_line
from longboat.gateway.records.recent import Record

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.calls.trip import Trips
    from longboat.gateway.http.request import Request
    from longboat.gateway.limits.counters import LocalCounters
    from longboat.gateway.limits.redis_counters import RedisCounters
    from longboat.gateway.records.access_log import AccessLog
    from longboat.gateway.records.metrics import Metrics, Series
    from longboat.gateway.records.newest_answers import NewestAnswers
    from longboat.gateway.records.recent import RecentRequests
    from longboat.gateway.records.routed import Routed
    from longboat.gateway.records.trace_recorder import TraceRecorder
    from longboat.gateway.records.tracing import Tracer
    from longboat.gateway.records.usage_store import Response, UsageStore
    from longboat.routing.capacity.quota import Denied

__all__ = ("FAILED", "Accounting")

_REFUSED: Final = "refused"
FAILED: Final = frozenset((_REFUSED, "expired", "engine_error", "client_error"))
"""Outcomes for which no tenant pays tokens: no engine did the work that was asked for."""

_UNKNOWN: Final = Usage()
_OK: Final = "ok"
_MAX_ENDED: Final = 64
_unix_s: Final = time.time
_named: Final = named  # what is imported from C, compiled code would look up by its name each time


class Accounting:
    """The accounts of requests: each is opened once and closed once, however the request ends."""

    __slots__ = (
        "_ended", "access_log", "counters", "in_flight", "metrics", "recent", "recorder", "remote_counters", "tracer",
        "trips", "usage", "wallets",
    )  # fmt: skip

    def __init__(
        self,
        counters: LocalCounters,
        metrics: Metrics,
        recent: RecentRequests,
        usage: UsageStore,
        access_log: AccessLog | None = None,
        recorder: TraceRecorder | None = None,
    ) -> None:
        self.counters = counters
        self.remote_counters: RedisCounters | None = None  # replaces ``counters`` where nodes share them
        self.metrics = metrics
        self.recent = recent
        self.usage = usage
        self.recorder = recorder
        self.trips: Trips | None = None  # set where requests are routed
        self.access_log = access_log
        self.tracer: Tracer | None = None
        self.wallets = Wallets(Policy())  # as the policy in force has them
        self.in_flight = 0  # leases that are open
        self._ended: list[tuple[Call, float, int, str, str]] = []

    def open(self, call: Call) -> Refusal | None:
        """Count the request in, and reserve what it may cost; a refusal where its tenant has no room for it."""
        call.reserved_unix_s = _unix_s()
        denied = self._reserve(call)
        if denied is not None and self._ended:  # some of them may have used less than was reserved for them
            self.flush()
            denied = self._reserve(call)
        return self._opened(call, denied, self.counters)

    async def open_remotely(self, call: Call) -> Refusal | None:
        """Open the account where other processes, or Redis, must be asked for room first."""
        remote, local = self.remote_counters, self.counters
        call.reserved_unix_s = time.time()
        self.flush()
        denied = await self.wallets.reserve_remotely(call, local, remote) if self.wallets.are_limited else None
        if denied is None:
            reserve = local.reserve_after_division if remote is None else remote.reserve
            try:
                denied = await reserve(call.tenant, tokens=call.cost_tokens, now_s=call.reserved_unix_s)
            except BaseException:
                self.wallets.settle(call, 0)
                raise
        return self._opened(call, denied, remote or local)

    def close(self, call: Call, now_s: float, *, status: int, outcome: str, code: str = "") -> None:
        """End a request's account; the second time, do nothing.

        All that the request held is free at once. Records are written together with those of other requests, within
        100 ms and before they are read: that halves their cost.

        now_s: monotonic; status: of the HTTP answer, 499 where the client left; outcome: one of ``metrics.OUTCOMES``
        """
        if self.free(call, now_s):
            self.note_end(call, now_s, status=status, outcome=outcome, code=code)

    def free(self, call: Call, now_s: float) -> bool:
        """Give back all that an open request holds; return False for others. The caller owes its ``note_end``."""
        lease = call.lease
        if lease is None or not lease.is_open:
            return False
        lease.close(now_s)
        self.in_flight -= 1
        return True

    def note_end(self, call: Call, now_s: float, *, status: int, outcome: str, code: str = "") -> None:
        """Note how a request ended whose places are free."""
        ended = self._ended
        ended.append((call, now_s, status, outcome, code))
        if len(ended) >= _MAX_ENDED:
            self.flush()

    def flush(self) -> None:
        """Write down all requests that ended. Call it before counts are read, and ten times a second."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        now_s = time.time()
        clocks_s = now_s - time.monotonic()
        log, lines = self.access_log, []
        responses: list[Response] = []
        for call, ended_s, status, outcome, code in ended:
            try:
                record = _record(call, ended_s, clocks_s, status=status, outcome=outcome, code=code)
                self._write_down(call, record, now_s, responses)
                if log is not None:
                    lines.append(access_line(record))
            except Exception as error:  # a defect must not lose the others
                report = {"message": "a request could not be written down", "exception": error}
                asyncio.get_running_loop().call_exception_handler(report)
        self.usage.add_responses(responses)
        if log is not None:
            log.write_lines(lines)

    def refused(self, request: Request, refusal: Refusal, *, tenant: str = "", model: str | None = None) -> None:
        """Record an answer of the gateway to a request whose account was never opened."""
        self.flush()  # so that the log keeps their order
        self.metrics.refused(refusal.code, tenant)
        if self.access_log is None:
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
            _REFUSED,
            refusal.code,
            0,
            None,
            None,
            None,
        )
        self.access_log.write_lines([access_line(record)])

    def _reserve(self, call: Call) -> Denied | None:
        """Reserve the call's money, then its tokens: a refused request counts nowhere."""
        counters = self.counters
        if self.wallets.are_limited:
            denied = self.wallets.reserve(call, counters)
            if denied is not None:
                return denied
        denied = counters.reserve(call.tenant, tokens=call.cost_tokens, now_s=call.reserved_unix_s)
        if denied is not None:
            self.wallets.settle(call, 0)
        return denied

    def _opened(self, call: Call, denied: Denied | None, counters: LocalCounters | RedisCounters) -> Refusal | None:
        if denied is not None:
            self.wallets.settle(call, 0)
            return quota_refused(denied, call.tenant.name, self.wallets.currency)
        call.series = series = self._series(call)
        call.lease = Lease(counters, call.tenant, series)
        self.in_flight += 1
        if self.tracer is not None:
            noted = call.request.noted
            call.span = span = self.tracer.start(noted.get(b"traceparent"), noted.get(b"tracestate"))
            span.method = call.method
        return None

    def _series(self, call: Call) -> Series:
        """Return the metrics of the call's model and tenant."""
        plan, model = call.plan, call.pools[0]
        if plan is None:
            return self.metrics.series(model, call.tenant_name)
        series = plan.series
        if series is None or plan.counted != model:
            plan.counted, series = model, self.metrics.series(model, call.tenant_name)
            plan.series = series
        return series

    def _write_down(self, call: Call, record: Record, now_s: float, responses: list[Response]) -> None:
        used = call.used_tokens(failed=record.outcome in FAILED or not record.attempts)
        if call.lease is not None:
            call.lease.settle(used_tokens=used, served=record.first_byte_s is not None)
        (self.remote_counters or self.counters).settle(
            call.tenant,
            reserved_tokens=call.cost_tokens,
            used_tokens=call.cost_tokens if used is None else used,
            reserved_s=call.reserved_unix_s,
            now_s=now_s,
        )
        cost_nanos = self._count(call, record, responses)
        if call.routed is not None:
            self._compare(call, call.routed, record)
        if self.recorder is not None and self.recorder.is_on:
            self.recorder.add(record, call.prompt, time.monotonic())
        if call.outside is not None or call.bill is not None:  # it may have ended between both
            cost_nanos += self._count_outside(call, record, used)
        if call.money is not None:
            self.wallets.settle(call, cost_nanos)
        if call.routed is not None:
            call.routed.forget_blocks()
        self.recent.add(record)
        if call.span is not None and self.tracer is not None:
            self.tracer.finish(call.span, record)

    def _compare(self, call: Call, routed: Routed, record: Record) -> None:
        """Compare what was expected of the replica's cache with what the engine found there."""
        prompt_tokens, cached = record.prompt_tokens, record.cached_tokens
        if self.trips is None or cached is None or not prompt_tokens or len(record.attempts) != 1:
            return
        self.trips.answered(routed, prompt_tokens, cached)
        if call.series is not None:
            call.series.compared(routed.expected_of(prompt_tokens), cached)

    def _count_outside(self, call: Call, record: Record, used: int | None) -> int:
        """Count what an external address answered, and close its bill. Return what that cost, in billionths."""
        bill, call.bill = call.bill, None
        if call.outside is not None and record.attempts and record.attempts[-1].replica in call.outside.labels:
            self.metrics.answered_outside(record.attempts[-1].replica, record.outcome)
        if bill is None:
            return 0
        prompt, completion = record.prompt_tokens or 0, record.completion_tokens or 0
        cost = None if used is None else bill.cost(prompt, completion) if used else bill.cost(0, 0)
        bill.settle(self.usage, call.tenant.name, cost)
        price = bill.outside.model.price
        if price is None:
            return 0
        nanos = (cost or bill.estimate).nanos if bill.num_sent else 0
        self.metrics.paid(bill.outside.model.name, price.currency, nanos)
        self.metrics.charged(call.tenant.name, price.currency, nanos)
        return nanos

    def _count(self, call: Call, record: Record, responses: list[Response]) -> int:
        """Count the request, and what tokens of the fleet's own models cost. Return that, in billionths."""
        assert call.series is not None
        prompt, completion, cached = record.prompt_tokens, record.completion_tokens, record.cached_tokens
        # A property of a named tuple runs in the interpreter: these two are made of the call.
        queued_s, ended_s, retries = call.queued_s, record.ended_s, len(call.attempts) - 1
        queue_s: float | None = None if record.outcome == _REFUSED else 0.0
        if queued_s is not None:
            queue_s = (ended_s + call.request.received_s if call.granted_s is None else call.granted_s) - queued_s
        first_byte_s = record.first_byte_s
        generated = call.api.weighs_completion and record.outcome not in FAILED
        call.series.done(
            record.outcome,
            first_byte_s if generated else None,
            None if first_byte_s is None else ended_s,
            queue_s,
            prompt,
            completion,
            cached,
            retries if retries > 0 else 0,
        )
        answers = self.metrics.answers
        if answers.is_on and generated and completion and first_byte_s is not None:
            _keep(answers, call, (prompt or 0) - (cached or 0), completion, first_byte_s, ended_s)
        if prompt is None and completion is None:
            prompt, completion = _estimated(call, record)
        cost_nanos = 0
        price = self.wallets.own.get(call.pool) if self.wallets.own else None
        if price is not None and record.outcome not in FAILED:
            cost_nanos = price.nanos(prompt or 0, completion or 0)
            self.metrics.charged(record.tenant, price.currency, cost_nanos)
        prompt, completion, cached = prompt or 0, completion or 0, cached or 0
        currency, unix_s = self.wallets.currencies.get(call.pool, ""), call.reserved_unix_s
        responses.append((record.tenant, call.pool, unix_s, prompt, completion, cached, cost_nanos, currency))
        return cost_nanos


def _keep(
    answers: NewestAnswers, call: Call, computed: int, generated: int, first_byte_s: float, ended_s: float
) -> None:
    """Keep a response's lengths and times, if replicas of the requested model made all of it."""
    facts = call.facts
    if call.at_pool or call.outside is not None or call.comes_back is not None or facts is None:
        return
    itl_s: float | None = None
    if facts.stream and facts.n == 1:  # several choices come beside each other
        itl_s = (ended_s - first_byte_s) / (generated - 1) if generated > 1 else 0.0
    answers.add(call.pools[0], call.tenant.priority, (max(0, computed), generated, first_byte_s, itl_s))


def _estimated(call: Call, record: Record) -> tuple[int, int]:
    """Return the tokens to charge for an answer whose engine told none: those that were reserved where it generates."""
    facts = call.facts
    if facts is None or record.outcome != _OK or not call.api.weighs_completion or call.comes_back is not None:
        return 0, 0
    prompt = facts.num_prompt_tokens_estimate
    return prompt, max(0, call.cost_tokens - prompt)


def _record(call: Call, ended_s: float, clocks_s: float, *, status: int, outcome: str, code: str) -> Record:
    """ended_s: monotonic; clocks_s: Unix time less monotonic time"""
    request = call.request
    received_s = request.received_s
    usage = call.measured() or _UNKNOWN
    cached_tokens = usage.cached_tokens
    if cached_tokens is None and call.routed is not None:
        cached_tokens = call.routed.found_tokens
    fields = (
        request.request_id,
        call.tenant_name,
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
        cached_tokens,
        call.decisions,
        call.routed,
    )
    return _named(Record, fields)
