"""Brings a gateway's questions and news to Redis, one batch after another, and the answers back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.redis_link import RedisLink
from longboat.gateway.limits.redis_news import PendingNews
from longboat.gateway.limits.redis_script import Ask, Batch
from longboat.routing.capacity.quota import Denied
from longboat.telemetry import Guard, logger

__all__ = ("DECIDE_S", "Question", "RedisExchange")

log = logger("gateway")

DECIDE_S = 0.05
"""No request waits longer for Redis."""
RETRY_S = 1.0
HEARTBEAT_S = 5.0
_NEWS_DELAY_S = 0.02  # news wait up to this long for a request that is sent to Redis anyway
_MAX_ASKS = 500


class Question(Ask):
    """An ask with the request that waits for its answer."""

    __slots__ = ("answer", "asked_s")

    def __init__(self, tenant: TenantPolicy, tokens: int, now_s: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(tenant, tokens, now_s)
        self.answer: asyncio.Future[Denied | None] = loop.create_future()
        self.asked_s = loop.time()


class RedisExchange:
    """Requests that come during a call to Redis share the next one.

    A call whose reply is lost is repeated, and carried out once. While Redis is away, it is tried every second.
    """

    def __init__(
        self,
        link: RedisLink,
        news: PendingNews,
        *,
        answered: Callable[[Question, Any], None],
        decide_all: Callable[[], None],
    ) -> None:
        """answered: takes the script's answer to a question; decide_all: answers all questions without Redis"""
        self._link = link
        self._news = news
        self._answered = answered
        self._decide_all = decide_all
        # questions for the next batch
        self.unsent: deque[Question] = deque()
        # the batch that Redis has not replied to, and its questions
        self.unanswered: Batch | None = None
        self._sent: list[Question] = []
        self._guard = Guard(log, f"the exchange with Redis at {self._link.place}")
        self._wake = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        # whether the node decides by itself now
        self.degraded = False

    async def start(self) -> None:
        """Connect. Where Redis is away, it is tried again later."""
        self.unanswered = self._batch()
        await self._call_once()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send what is left, take this gateway's running requests off, disconnect: 2 s at most."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._decide_all()
        if self.unanswered is not None and not self.degraded:
            await self._call_once()
        if not self.degraded:
            self._news.end_running()
            self.unanswered = self._batch(leaves=True)
            await self._call_once()
        await self._link.close()

    def ask(self, question: Question) -> None:
        """Send a question with the next batch."""
        self.unsent.append(question)
        self._wake.set()

    def wake_soon(self) -> None:
        """Send a batch soon: there are news."""
        if self._wake_timer is None and not self.degraded:
            self._wake_timer = asyncio.get_running_loop().call_later(_NEWS_DELAY_S, self._wake_now)

    def sent(self) -> list[Question]:
        """Return the questions that Redis has and that still wait."""
        return [question for question in self._sent if not question.answer.done()]

    def degrade(self, why: str) -> None:
        """Let the node decide by itself until Redis is back."""
        if not self.degraded:
            self.degraded = True
            what = "each node keeps to its part of the limits until it is back"
            log.warning("Redis at %s is away (%s): %s", self._link.place, why, what)
        self._decide_all()

    def _wake_now(self) -> None:
        self._wake_timer = None
        self._wake.set()

    def _batch(self, *, leaves: bool = False) -> Batch:
        self._sent = [self.unsent.popleft() for _ in range(min(len(self.unsent), _MAX_ASKS))]
        return self._news.batch(self._sent, leaves=leaves)

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # the client of Redis may take a cancellation for a failure of its call
            if self.degraded:
                await asyncio.sleep(RETRY_S)
            elif self.unanswered is None and not self.unsent:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
            self._wake.clear()
            if self.unanswered is None:
                self.unanswered = self._batch()
            await self._call_once()

    async def _call_once(self) -> None:
        """Send the batch. A reply that cannot be used is as good as none."""
        with self._guard:
            await self._send()
        if self._guard.is_failing:
            self.degrade("its reply cannot be used")

    async def _send(self) -> None:
        """Send the batch. Without a reply it stays, since Redis may have carried it out or not."""
        assert self.unanswered is not None
        began_s = asyncio.get_running_loop().time()
        try:
            reply = await self._link.send(self.unanswered)
        except self._link.failures as error:
            self.degrade(type(error).__name__)
            return
        sent, self._sent, self.unanswered = self._sent, [], None
        for question, value in zip(sent, reply["answers"], strict=True):
            self._answered(question, value)
        if not reply["known"]:
            self._news.repeat_running()
        if asyncio.get_running_loop().time() - began_s < DECIDE_S:
            self._recover()
        if self._news.changed or self.unsent:
            self._wake.set()

    def _recover(self) -> None:
        if self.degraded:
            self.degraded = False
            log.warning("Redis at %s is back", self._link.place)
