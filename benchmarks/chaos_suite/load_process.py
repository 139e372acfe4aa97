"""The load as a process: ``python load_process.py`` takes orders as JSON lines, and tells each answer as a line.

First order: what to ask (``asks``, ``addresses``, ``concurrency``, ``deadline_s``, ``reference``, ``engine_key``).
Then phases: ``{"phase": "reference"}`` keeps what unfaulted answers say; any other name compares with them, for
``streams`` answers and on until the order ``{"finish": true}`` came.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos_suite.answer import Facts, differences, read_stream, read_whole, seed_of
from chaos_suite.asks import Ask
from chaos_suite.shapes import unfit
from chaos_suite.streams import Client, Taken, as_line

MAX_LINE_BYTES = 1 << 26


class Load:
    """Asks, and what unfaulted answers to them say."""

    def __init__(self, order: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._asks = [Ask(**fields) for fields in order["asks"]]
        self._addresses = [(host, port) for host, port in order["addresses"]]
        self._concurrency = int(order["concurrency"])
        self._deadline_s = float(order["deadline_s"])
        self._reference = [(host, port) for host, port in order["reference"]]
        self._engine_key = str(order["engine_key"])
        self._tell = tell
        self._known: dict[int, Facts] = {}
        self.finishing = asyncio.Event()

    async def run(self, phase: str, num_streams: int, concurrency: int | None = None) -> None:
        """All answers of one phase; a line for each. concurrency: where it is not that of all phases."""
        numbers = iter(range(len(self._asks))) if phase == "reference" else self._numbers(num_streams)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency or self._concurrency):
                group.create_task(self._ask_always(phase, numbers))

    def _numbers(self, num_streams: int) -> Iterator[int]:
        for number in itertools.count():
            if number >= num_streams and self.finishing.is_set():
                return
            yield number

    async def _ask_always(self, phase: str, numbers: Iterator[int]) -> None:
        for number in numbers:
            place = number % len(self._asks)
            ask = self._asks[place]
            taken = await Client(self._addresses, number, self._deadline_s).ask(ask)
            failure, wrongs, facts = judged(ask, taken)
            if not failure and phase == "reference" and ask.is_repeatable:
                self._known[place] = facts
            elif not failure:
                expected = await self._expected(place, taken)
                if expected is not None:
                    wrongs += differences(facts, expected)
            self._tell(as_line(number, taken, phase=phase, kind=ask.kind, failure=failure, wrongs=wrongs[:4]))

    async def _expected(self, place: int, taken: Taken) -> Facts | None:
        """None where nobody knows, since the answer hangs on a seed that was not told."""
        ask = self._asks[place]
        if ask.is_repeatable:
            return self._known.get(place)
        seed = taken.seed if taken.seed is not None else seed_of(taken.events)
        if seed is None:
            return None
        if self._reference:
            private = {"x-longboat-seed": str(seed)}
            again = await Client(self._reference, 0, self._deadline_s, self._engine_key).ask(ask, private)
        else:
            named = dataclasses.replace(ask, document={**ask.document, "seed": seed})
            again = await Client(self._addresses, 0, self._deadline_s).ask(named)
        return judged(ask, again)[2] or None


def judged(ask: Ask, taken: Taken) -> tuple[str, list[str], Facts]:
    """Why it failed (empty: it did not), what is wrong with its form, and what it says."""
    if taken.is_hung:
        return "hung", [], {}
    if taken.status != 200:
        return f"status {taken.status}: {taken.body[:200].decode(errors='replace')}", [], {}
    try:
        if ask.is_streamed:
            facts, wrongs = read_stream(ask.path, taken.events)
        else:
            facts, wrongs = read_whole(ask.path, taken.body), []
        wrongs += unfit(ask, facts)
    except (ValueError, KeyError, TypeError) as error:
        return f"unreadable: {error!r}", [], {}
    reported = next((wrong for wrong in wrongs if wrong.startswith("an error in the stream")), "")
    return reported, wrongs, facts


async def _orders() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _tell(line: Mapping[str, Any]) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)


async def main() -> None:
    """Until stdin ends."""
    orders = await _orders()
    load = Load(json.loads(await orders.readline()), _tell)
    _tell({"ready": True})
    while line := await orders.readline():
        order = json.loads(line)
        load.finishing.clear()
        phase = asyncio.create_task(load.run(order["phase"], order.get("streams", 0), order.get("concurrency")))
        if order["phase"] != "reference" and json.loads(await orders.readline() or b"{}").get("finish"):
            load.finishing.set()
        await phase
        _tell({"ended": order["phase"]})


if __name__ == "__main__":
    asyncio.run(main())
