"""The stream of server-sent events of one answer, with the journal's lines where the gateway asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from longboat_fake.api.generation import Update
from longboat_fake.http.carry import SILENCE_S
from longboat_fake.http.server import Exchange

__all__ = ("EventStream",)


class EventStream:
    """Sends the events of ``num_choices`` choices. Used as a context: what it does beside ends with the block.

    With a journal each event is preceded by the ids of tokens that came since the last one, and by an id that counts
    all of them; a stream that is silent tells the engine's ``steps`` once a second. All of it are SSE lines that
    clients pass over.
    """

    def __init__(self, exchange: Exchange, num_choices: int, steps: Callable[[], int]) -> None:
        self._exchange = exchange
        self._has_journal = exchange.terms.has_journal
        self._counts = [0] * num_choices
        self._untold: dict[int, list[int]] = {}
        self._steps = steps
        self._is_silent = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> EventStream:
        self._exchange.start_stream(b"x-longboat-journal: 1\r\n" if self._has_journal else b"")
        if self._has_journal:
            self._wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def send(self, events: Sequence[bytes], update: Update | None = None, tail: bytes = b"") -> None:
        """Events in one piece. ``update``: what the last one of them tells; ``tail``: sent as it is, after them.

        Where there is no event for an update its ids wait for the next one.
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

    def end(self) -> None:
        """Nothing more will come."""
        self._exchange.end_stream()

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
            self._exchange.send_now(b": steps %d\n\n" % self._steps())
        self._wait()
