"""Counters that all gateways of a fleet share through Redis; the node's own ones while Redis is away."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.counters import LocalCounters
from longboat.gateway.limits.redis_exchange import DECIDE_S, Question, RedisExchange
from longboat.gateway.limits.redis_link import RedisLink
from longboat.gateway.limits.redis_news import PendingNews
from longboat.gateway.limits.redis_script import Ask, News, counts_from
from longboat.routing.capacity.quota import MINUTE_S, Denied, Limits, check, limits_of

__all__ = ("RedisCounters",)

_OWN_PAUSE_S, _READ_S = 0.01, 0.01


class RedisCounters:
    """Decides by counts in Redis which requests are let in. Only ``reserve`` waits for Redis, 50 ms at most."""

    def __init__(self, url: str, *, fleet: str, fallback: LocalCounters) -> None:
        """Prepare; ``start`` connects. Raise UserInputError where the URL, or the ``redis`` package, cannot be used.

        url: ``redis://[user:password@]host:port/db``, ``rediss://`` or ``unix://``; it is never shown
        fallback: counts everything too, and decides while Redis is away, by the node's part of the limits
        """
        self._fallback = fallback
        self._news = PendingNews(fleet)
        self._exchange = RedisExchange(
            RedisLink(url), self._news, answered=self._answered, decide_all=lambda: self._expire(all_of_them=True)
        )
        # decides the questions that waited too long
        self._timer: asyncio.TimerHandle | None = None
        # requests that the node decided by itself since the start
        self.num_degraded = 0

    @property
    def degraded(self) -> bool:
        """Whether the node decides by itself now."""
        return self._exchange.degraded

    async def start(self) -> None:
        """Connect. Where Redis is away, it is tried again every second."""
        await self._exchange.start()

    async def stop(self) -> None:
        """Send what is left, take this gateway's running requests off, disconnect: 2 s at most."""
        await self._exchange.stop()

    async def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        """Count one request in, if no limit of its tenant forbids it. tokens: an estimate; now_s: Unix seconds."""
        if limits_of(tenant) == Limits():
            self._begin(tenant, tokens, now_s)
            self._report(tenant).count(1, tokens, now_s)
            return None
        if self.degraded:
            denied = self._decide_here(tenant, tokens, now_s)
            if denied is None:
                self._report(tenant).count(1, tokens, now_s)
            return denied
        return await self._ask(tenant, tokens, now_s)

    def settle(
        self, tenant: TenantPolicy, *, reserved_tokens: int, used_tokens: int, reserved_s: float, now_s: float
    ) -> None:
        """Put what was used in the place of what was reserved at ``reserved_s`` (the ``now_s`` of ``reserve``)."""
        if used_tokens == reserved_tokens:
            return
        self._fallback.settle(
            tenant, reserved_tokens=reserved_tokens, used_tokens=used_tokens, reserved_s=reserved_s, now_s=now_s
        )
        self._report(tenant).correct(used_tokens - reserved_tokens, reserved_s, now_s)

    def release(self, tenant: TenantPolicy) -> None:
        """Count the request no more among those that run."""
        self._fallback.release(tenant)
        self._news.add_running(tenant, -1)
        self._report(tenant)

    async def _ask(self, tenant: TenantPolicy, tokens: int, now_s: float) -> Denied | None:
        loop = asyncio.get_running_loop()
        question = Question(tenant, tokens, now_s, loop)
        self._exchange.ask(question)
        if self._timer is None:
            self._decide_at(loop.time() + DECIDE_S)
        answer = question.answer
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.result() is None:
                self.settle(tenant, reserved_tokens=tokens, used_tokens=0, reserved_s=now_s, now_s=now_s)
                self.release(tenant)
            raise

    def _begin(self, tenant: TenantPolicy, tokens: int, now_s: float) -> None:
        self._fallback.charge(tenant, tokens=tokens, now_s=now_s)
        self._news.add_running(tenant, 1)

    def _decide_here(self, tenant: TenantPolicy, tokens: int, now_s: float) -> Denied | None:
        self.num_degraded += 1
        denied = self._fallback.reserve(tenant, tokens=tokens, now_s=now_s)
        if denied is None:
            self._news.add_running(tenant, 1)
        return denied

    def _expire(self, due_s: float = math.inf, *, all_of_them: bool = False) -> None:
        """Decide the questions that have waited too long, those that Redis has and those that are not sent.

        due_s: when to do so. Where this process itself did not run then, it reads first what has come meanwhile
        """
        self._timer = None
        loop, unsent = asyncio.get_running_loop(), self._exchange.unsent
        if loop.time() - due_s > _OWN_PAUSE_S:
            self._timer = loop.call_later(_READ_S, self._expire)
            return
        until_s = math.inf if all_of_them else loop.time() - DECIDE_S + 0.001
        late = [question for question in self._exchange.sent() if question.asked_s <= until_s]
        for question in late:
            question.admitted = self._decide_late(question)
        while unsent and unsent[0].asked_s <= until_s:
            question = unsent.popleft()
            if not question.answer.done():
                late.append(question)
                if self._decide_late(question):
                    self._report(question.tenant).count(1, question.tokens, question.now_s)
        if late and not all_of_them:
            self._exchange.degrade(f"it took longer than {DECIDE_S * 1000:.0f} ms")
        waiting = [*self._exchange.sent(), *unsent]
        if waiting:
            self._decide_at(waiting[0].asked_s + DECIDE_S)

    def _decide_at(self, due_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(due_s, self._expire, due_s)

    def _decide_late(self, question: Question) -> bool:
        denied = self._decide_here(question.tenant, question.tokens, question.now_s)
        question.answer.set_result(denied)
        return denied is None

    def _answered(self, question: Question, value: Any) -> None:
        """Take Redis's answer to one question. Where it came too late, report to Redis what was decided instead."""
        tenant, tokens, now_s = question.tenant, question.tokens, question.now_s
        granted = value == 0
        if not question.answer.done():
            if granted:
                self._begin(tenant, tokens, now_s)
            question.answer.set_result(None if granted else _denied(question, value))
        elif granted and not question.admitted:  # the node denied it, or its client went away
            self._report(tenant).count(-1, -tokens, now_s)
        elif question.admitted and not granted:
            self._report(tenant).count(1, tokens, now_s)

    def _report(self, tenant: TenantPolicy) -> News:
        """Return the tenant's news, to add to them, and see to it that they go out soon."""
        self._exchange.wake_soon()
        return self._news.of(tenant)


def _denied(ask: Ask, values: list[int]) -> Denied:
    """Name the limit by the node's own arithmetic, from the counts that Redis found."""
    limits = limits_of(ask.tenant)
    counts = counts_from(values)
    began_s = counts.minute * MINUTE_S
    now_s = min(max(ask.now_s, began_s), began_s + MINUTE_S - 1)  # Redis's clock decides which minute it is
    denied = check(limits, counts, tokens=ask.tokens, now_s=now_s)
    return denied or Denied(limit="requests_per_minute", value=counts.requests, limit_value=0, retry_after_s=1)
