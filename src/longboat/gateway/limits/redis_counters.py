"""Counters that all gateways of a fleet share through Redis; the node's own ones while Redis is away."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import orjson

from longboat.core.errors import UserInputError
from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.counters import LocalCounters
from longboat.gateway.limits.redis_script import SCRIPT, Ask, Batch, News, counts_from, write_batch
from longboat.routing.capacity.quota import MINUTE_S, Counts, Denied, check, limits_of
from longboat.telemetry import logger

__all__ = ("RedisCounters",)

log = logger("gateway")

DECIDE_S = 0.05
"""No request waits longer for Redis."""
CALL_S = 1.0
RETRY_S = 1.0
HEARTBEAT_S = 5.0
_NEWS_DELAY_S = 0.02  # what was used may wait so long for a request that is sent to Redis anyway
_MAX_ASKS = 500


class _Question(Ask):
    """An ask with the request that waits for its answer."""

    __slots__ = ("answer", "asked_s")

    def __init__(self, tenant: TenantPolicy, tokens: int, now_s: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(tenant, tokens, now_s)
        self.answer: asyncio.Future[Denied | None] = loop.create_future()
        self.asked_s = loop.time()


class RedisCounters:
    """Same methods as ``LocalCounters``; only ``reserve`` is awaited (50 ms at most). The others never wait.

    Requests that come while a call to Redis is under way share the next one. A call whose answer is lost is repeated,
    and carried out once. What was decided without Redis is told to it when it is back.

    fallback: counts everything too, and decides while Redis is away, by the node's part of the limits
    """

    def __init__(self, url: str, *, fleet: str, fallback: LocalCounters) -> None:
        """url: ``redis://[user:password@]host:port/db``, ``rediss://`` or ``unix://``; it is never shown.

        :raises UserInputError: the URL is none, or the ``redis`` extra is not installed
        """
        self._redis, self._failures, self._no_script = _client(url)
        self._place = urlsplit(url).hostname or "its socket"
        self._fallback = fallback
        self._prefix = f"{{longboat:{fleet}}}"
        self._gateway = secrets.token_hex(8)
        self._number = 0
        self._script: str | None = None
        self._questions: deque[_Question] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tenants: dict[str, TenantPolicy] = {}
        self._running: dict[str, int] = {}
        self._news: dict[str, News] = {}
        self._changed: set[str] = set()
        self._unanswered: Batch | None = None
        self._sent: list[_Question] = []  # of the unanswered batch
        self._wake = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.degraded = False
        """Whether the node decides by itself now."""
        self.num_degraded = 0
        """Requests that the node decided by itself since the start."""

    @property
    def num_gateways(self) -> int:
        """Nodes that share each limit while Redis is away."""
        return self._fallback.num_gateways

    @num_gateways.setter
    def num_gateways(self, count: int) -> None:
        self._fallback.num_gateways = count

    async def start(self) -> None:
        """Connect. A Redis that is away is no error: it is asked again every second."""
        self._unanswered = self._batch()
        await self._call_once()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send what is left, take this gateway's running requests off, disconnect: 2 s at most."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._expire(all_of_them=True)
        if self._unanswered is not None and not self.degraded:
            await self._call_once()
        if not self.degraded:
            self._running.clear()
            self._changed.update(self._tenants)
            self._unanswered = self._batch(leaves=True)
            await self._call_once()
        with suppress(*self._failures):  # TimeoutError is an OSError
            async with asyncio.timeout(CALL_S):
                await self._redis.aclose()

    async def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        """Count one request in, if no limit of its tenant forbids it. tokens: an estimate; now_s: Unix seconds."""
        if _is_free(tenant):
            self.charge(tenant, tokens=tokens, now_s=now_s)
            return None
        if self.degraded:
            denied = self._decide_here(tenant, tokens, now_s)
            if denied is None:
                self._tell(tenant).count(1, tokens, now_s)
            return denied
        loop = asyncio.get_running_loop()
        question = _Question(tenant, tokens, now_s, loop)
        self._questions.append(question)
        if self._timer is None:
            self._timer = loop.call_later(DECIDE_S, self._expire)
        self._wake.set()
        try:
            return await question.answer
        except asyncio.CancelledError:
            if question.answer.done() and not question.answer.cancelled() and question.answer.result() is None:
                self.settle(tenant, reserved_tokens=tokens, used_tokens=0, reserved_s=now_s, now_s=now_s)
                self.release(tenant)
            raise

    def charge(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> None:
        self._begin(tenant, tokens, now_s)
        self._tell(tenant).count(1, tokens, now_s)

    def settle(
        self, tenant: TenantPolicy, *, reserved_tokens: int, used_tokens: int, reserved_s: float, now_s: float
    ) -> None:
        if used_tokens == reserved_tokens:
            return
        self._fallback.settle(
            tenant, reserved_tokens=reserved_tokens, used_tokens=used_tokens, reserved_s=reserved_s, now_s=now_s
        )
        self._tell(tenant).correct(used_tokens - reserved_tokens, reserved_s, now_s)

    def release(self, tenant: TenantPolicy) -> None:
        self._fallback.release(tenant)
        self._running[tenant.name] = self._running.get(tenant.name, 0) - 1
        self._tell(tenant)

    def counts_of(self, tenant: str, now_s: float) -> Counts:
        """The node's own counts: for the admin API; the fleet's are in Redis."""
        return self._fallback.counts_of(tenant, now_s)

    def restore_today(self, tokens: Mapping[str, int], *, now_s: float) -> None:
        """For the node's own counts: Redis keeps the fleet's."""
        self._fallback.restore_today(tokens, now_s=now_s)

    # decisions

    def _decide_here(self, tenant: TenantPolicy, tokens: int, now_s: float) -> Denied | None:
        self.num_degraded += 1
        denied = self._fallback.reserve(tenant, tokens=tokens, now_s=now_s)
        if denied is None:
            self._running[tenant.name] = self._running.get(tenant.name, 0) + 1
        return denied

    def _begin(self, tenant: TenantPolicy, tokens: int, now_s: float) -> None:
        self._fallback.charge(tenant, tokens=tokens, now_s=now_s)
        self._running[tenant.name] = self._running.get(tenant.name, 0) + 1

    def _expire(self, *, all_of_them: bool = False) -> None:
        """Decide here what has waited too long: asked of Redis, or still to be asked."""
        self._timer = None
        loop = asyncio.get_running_loop()
        until_s = math.inf if all_of_them else loop.time() - DECIDE_S + 0.001
        late = [question for question in self._asked() if question.asked_s <= until_s]
        for question in late:
            question.admitted = self._decide_late(question)
        while self._questions and self._questions[0].asked_s <= until_s:
            question = self._questions.popleft()
            if not question.answer.done():
                late.append(question)
                if self._decide_late(question):
                    self._tell(question.tenant).count(1, question.tokens, question.now_s)
        if late and not all_of_them:
            self._degrade(f"it took longer than {DECIDE_S * 1000:.0f} ms")
        waiting = [*self._asked(), *self._questions]
        if waiting:
            self._timer = loop.call_at(waiting[0].asked_s + DECIDE_S, self._expire)

    def _asked(self) -> list[_Question]:
        """Those in Redis's hands that still wait."""
        return [question for question in self._sent if not question.answer.done()]

    def _decide_late(self, question: _Question) -> bool:
        denied = self._decide_here(question.tenant, question.tokens, question.now_s)
        question.answer.set_result(denied)
        return denied is None

    def _answered(self, question: _Question, value: Any) -> None:
        """Redis's word on one request. Where it came too late, Redis is told what was done instead."""
        tenant, tokens, now_s = question.tenant, question.tokens, question.now_s
        granted = value == 0
        if not question.answer.done():
            if granted:
                self._begin(tenant, tokens, now_s)
            question.answer.set_result(None if granted else _denied(question, value))
        elif granted and not question.admitted:  # denied here, or its client went away
            self._tell(tenant).count(-1, -tokens, now_s)
        elif question.admitted and not granted:
            self._tell(tenant).count(1, tokens, now_s)

    # what Redis is told

    def _tell(self, tenant: TenantPolicy) -> News:
        name = tenant.name
        self._tenants[name] = tenant
        self._changed.add(name)
        if self._wake_timer is None and not self.degraded:
            self._wake_timer = asyncio.get_running_loop().call_later(_NEWS_DELAY_S, self._wake_now)
        news = self._news.get(name)
        if news is None:
            news = self._news[name] = News()
        return news

    def _wake_now(self) -> None:
        self._wake_timer = None
        self._wake.set()

    def _batch(self, *, leaves: bool = False) -> Batch:
        asks = [self._questions.popleft() for _ in range(min(len(self._questions), _MAX_ASKS))]
        for ask in asks:
            self._tenants[ask.tenant.name] = ask.tenant
        names = self._changed | {ask.tenant.name for ask in asks}
        news, self._news = self._news, {}
        tenants = {name: (self._tenants[name], self._running.get(name, 0), news.get(name, News())) for name in names}
        self._changed = set()
        self._sent = asks
        self._number += 1
        return write_batch(self._prefix, self._gateway, self._number, tenants=tenants, asks=asks, leaves=leaves)

    async def _run(self) -> None:
        while True:
            if self.degraded:
                await asyncio.sleep(RETRY_S)
            elif self._unanswered is None and not self._questions:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
            self._wake.clear()
            if self._unanswered is None:
                self._unanswered = self._batch()
            await self._call_once()

    async def _call_once(self) -> None:
        """Send the batch. It stays where no answer came: nobody knows whether it was carried out."""
        batch = self._unanswered
        assert batch is not None
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(CALL_S):
                answer = orjson.loads(await self._evaluate(batch))
        except self._failures as error:
            self._degrade(type(error).__name__)
            return
        sent, self._sent, self._unanswered = self._sent, [], None
        for question, value in zip(sent, answer["answers"], strict=True):
            self._answered(question, value)
        if not answer["known"]:  # to Redis this gateway was dead, or is new
            self._changed.update(name for name, running in self._running.items() if running)
        if asyncio.get_running_loop().time() - began_s < DECIDE_S:
            self._recover()
        if self._changed or self._questions:
            self._wake.set()

    async def _evaluate(self, batch: Batch) -> bytes:
        if self._script is None:
            self._script = str(await self._redis.script_load(SCRIPT))
        try:
            return bytes(await self._redis.evalsha(self._script, len(batch.keys), *batch.keys, batch.document))
        except self._no_script:  # it was started anew
            self._script = None
            return await self._evaluate(batch)

    def _degrade(self, why: str) -> None:
        if not self.degraded:
            self.degraded = True
            what = "each node keeps to its part of the limits until it is back"
            log.warning("Redis at %s is away (%s): %s", self._place, why, what)
        self._expire(all_of_them=True)

    def _recover(self) -> None:
        if self.degraded:
            self.degraded = False
            log.warning("Redis at %s is back", self._place)


def _is_free(tenant: TenantPolicy) -> bool:
    """Whether it has no limit that Redis would have to be asked for."""
    return (
        tenant.requests_per_minute is None
        and tenant.tokens_per_minute is None
        and tenant.tokens_per_day is None
        and tenant.concurrent_requests is None
    )


def _denied(ask: Ask, values: list[int]) -> Denied:
    """What the node's own arithmetic says of the counts that Redis found."""
    limits = limits_of(ask.tenant)
    counts = counts_from(values)
    counts.roll(ask.now_s)
    now_s = max(ask.now_s, counts.minute * MINUTE_S)
    denied = check(limits, counts, tokens=ask.tokens, now_s=now_s)
    return denied or Denied(limit="requests_per_minute", value=counts.requests, limit_value=0, retry_after_s=1)


def _client(url: str) -> tuple[Any, tuple[type[Exception], ...], type[Exception]]:
    """The client, what its calls raise, and what a call of a script that Redis does not know raises."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import NoScriptError, RedisError
    except ImportError:
        hint = "install it: pip install 'longboat[redis]'"
        raise UserInputError("counting in Redis needs the package redis", hint=hint) from None
    try:
        client = Redis.from_url(url, socket_timeout=CALL_S, socket_connect_timeout=CALL_S, retry=Retry(NoBackoff(), 0))
    except ValueError:  # its text may hold parts of the password
        hint = "write redis://[user:password@]host:port/db, rediss://… or unix://path"
        raise UserInputError("the Redis URL cannot be used", hint=hint) from None
    return client, (RedisError, OSError), NoScriptError
