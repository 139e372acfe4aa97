"""Runs the choices of one request to the fake engine side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

from longboat_fake.api.requests import Choice, RefusedError
from longboat_fake.engine.generator import FakeEngine, Job
from longboat_fake.http.carry import SILENCE_S
from longboat_fake.http.server import Exchange

__all__ = ("Update", "check_room", "run_to_end", "updates_of")


class Update(NamedTuple):
    """The growth of a choice, and its state then: it may have grown further since."""

    choice: Choice
    text: str  # what may be sent for it now
    batch: tuple[int, ...]  # the tokens behind the text
    first: int  # position of the first of these tokens
    finish_reason: str | None  # None where more is to come
    is_reasoning: bool  # the text is reasoning


def check_room(engine: FakeEngine, *jobs: Job) -> None:
    """Raise RefusedError where one of the jobs can never run."""
    for job in jobs:
        if reason := engine.too_long(job):
            raise RefusedError(400, reason)


async def run_to_end(engine: FakeEngine, choices: tuple[Choice, ...], exchange: Exchange | None = None) -> None:
    """Let every choice grow until it is complete.

    exchange: where tokens are sent as they come, if the gateway asks for that, with the engine's steps once a second
    """
    told = exchange if exchange is not None and exchange.terms.tells_whole else None
    telling = asyncio.create_task(_tell_steps(engine, told))
    try:
        async with aclosing(updates_of(engine, choices)) as updates:
            async for update in updates:
                if told is not None:
                    told.tell(update.choice.index, update.batch)
    finally:
        telling.cancel()


async def _tell_steps(engine: FakeEngine, exchange: Exchange | None) -> None:
    while exchange is not None:
        await asyncio.sleep(SILENCE_S)
        if exchange.is_telling:
            exchange.send_now(b": steps %d\n\n" % engine.num_steps)


async def updates_of(engine: FakeEngine, choices: tuple[Choice, ...]) -> AsyncGenerator[Update, None]:
    """Yield the updates of all choices, in the order in which they are made."""
    if len(choices) == 1:
        async with aclosing(_updates_of_one(engine, choices[0])) as updates:
            async for update in updates:
                yield update
        return
    queue: asyncio.Queue[Update] = asyncio.Queue(maxsize=64)
    tasks = [asyncio.create_task(_feed(engine, choice, queue)) for choice in choices]
    everything = asyncio.gather(*tasks)
    try:
        while not (everything.done() and queue.empty()):
            getting = asyncio.ensure_future(queue.get())
            waited: set[asyncio.Future[Any]] = {getting, everything}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                yield getting.result()
            else:
                getting.cancel()
        await everything
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(engine: FakeEngine, choice: Choice, queue: asyncio.Queue[Update]) -> None:
    async with aclosing(_updates_of_one(engine, choice)) as updates:
        async for update in updates:
            await queue.put(update)


async def _updates_of_one(engine: FakeEngine, choice: Choice) -> AsyncGenerator[Update, None]:
    async with aclosing(engine.generate(choice.job, lambda: choice.is_stopped)) as batches:
        async for batch in batches:
            for part in _parts(choice, batch):
                first = choice.num_tokens
                is_reasoning = first < choice.job.num_reasoning
                yield Update(choice, choice.take(part), part, first, choice.finish_reason, is_reasoning)


def _parts(choice: Choice, batch: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Cut a batch where the reasoning ends."""
    left = choice.job.num_reasoning - choice.num_tokens
    if 0 < left < len(batch):
        yield batch[:left]
        batch = batch[left:]
    yield batch
