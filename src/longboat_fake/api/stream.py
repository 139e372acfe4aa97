"""The stream of server-sent events of one response, with the journal's lines where the gateway asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing

from longboat_fake.api.generation import Update, updates_of
from longboat_fake.api.requests import Choice
from longboat_fake.engine.generator import FakeEngine
from longboat_fake.http.carry import SILENCE_S
from longboat_fake.http.server import Exchange

__all__ = ("stream_updates",)


async def stream_updates(
    engine: FakeEngine,
    exchange: Exchange,
    choices: tuple[Choice, ...],
    of: Callable[[Update], Iterable[bytes]],
    end: Callable[[], Iterable[bytes]],
    *,
    start: Iterable[bytes] = (),
    tail: bytes = b"",
) -> None:
    """Generate ``choices`` and stream them: the events ``start``, those ``of`` each update, those of the ``end``."""
    stream = _EventStream(exchange, len(choices), engine)
    try:
        await stream.send([*start])
        async with aclosing(updates_of(engine, choices)) as updates:
            async for update in updates:
                await stream.send([*of(update)], update)
        await stream.send([*end()], tail=tail)
        exchange.end_stream()
    finally:
        stream.close()


class _EventStream:
    """The sender of the events of ``num_choices`` choices, until it is closed.

    With a journal, each event is preceded by the ids of the tokens since the last one, and by an event id that counts
    all of them; a silent stream sends the engine's steps once a second. Clients ignore all of these lines.
    """

    def __init__(self, exchange: Exchange, num_choices: int, engine: FakeEngine) -> None:
        self._exchange = exchange
        self._has_journal = exchange.terms.has_journal
        self._counts = [0] * num_choices
        self._untold: dict[int, list[int]] = {}
        self._engine = engine
        self._is_silent = False
        self._timer: asyncio.TimerHandle | None = None
        exchange.start_stream(b"x-longboat-journal: 1\r\n" if self._has_journal else b"")
        if self._has_journal:
            self._wait()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    async def send(self, events: Sequence[bytes], update: Update | None = None, tail: bytes = b"") -> None:
        """Send events in one piece. ``update``: what the last event reports; ``tail``: sent unchanged after them.

        Where an update has no event, its ids wait for the next one.
        """
        if not self._has_journal:
            data = b"".join(events) + tail
        else:
            data = b"".join(self._marks() + event for event in events[:-1])
            if update is not None:
                self._note(update)
            data += b"".join(self._marks() + event for event in events[-1:]) + tail
        if data:
            self._is_silent = False
            await self._exchange.send(data)

    def _note(self, update: Update) -> None:
        index = update.choice.index
        self._untold.setdefault(index, []).extend(update.batch)
        self._counts[index] += len(update.batch)

    def _marks(self) -> bytes:
        lines = [f": ids {index} {','.join(map(str, ids))}\n" for index, ids in self._untold.items() if ids]
        self._untold.clear()
        return f"{''.join(lines)}id: {'.'.join(map(str, self._counts))}\n".encode()

    def _wait(self) -> None:
        self._is_silent = True
        self._timer = asyncio.get_running_loop().call_later(SILENCE_S, self._beat)

    def _beat(self) -> None:
        if self._is_silent:
            self._exchange.send_now(b": steps %d\n\n" % self._engine.num_steps)
        self._wait()
