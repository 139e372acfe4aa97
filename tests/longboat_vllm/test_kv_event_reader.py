"""The reader of KV events, against a publisher in vLLM's format: what came before it, gaps, and lost events."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped,unused-ignore]
import zmq

from longboat_fake.engine.blocks import BlockPool
from longboat_fake.engine.kv_events import Publisher
from longboat_vllm.prefixes.book import PrefixBook
from longboat_vllm.prefixes.events import EventReader
from longboat_vllm.prefixes.header import NamedPrompt

B = 4


class Source:
    """A publisher, a KV memory that it tells of, and a reader with its book."""

    def __init__(self, folder: Path) -> None:
        endpoint = f"ipc://{folder}/kv"
        self.publisher = Publisher(zmq, msgpack.packb, endpoint)
        self.pool = BlockPool(100, B, self.publisher.publish)
        self.book = PrefixBook(B, 400)
        self.reader = EventReader(self.book, endpoint, endpoint + ".replay")
        self.names: list[bytes] = []

    def run(self, first: int) -> None:
        """Run a request of two blocks, and name it."""
        tokens = [first] * 2 * B
        name = first.to_bytes(8, "little")
        self.names.append(name)
        self.book.note(NamedPrompt(1, 0, (name,), array("I", [10])), tokens)
        taken = self.pool.reserve(tokens, len(tokens))
        assert taken is not None
        self.pool.release(taken, tokens)

    def skip(self) -> None:
        """Lose what would be published next, for subscribers."""
        kept, self.publisher._pub = self.publisher._pub, _Silent()
        self.run(1000 + len(self.names))
        self.publisher._pub = kept

    async def know(self, names: list[bytes]) -> None:
        async with asyncio.timeout(20):
            while sorted(self.book.ledger.held_names()) != sorted(names):  # noqa: ASYNC110 a test's patience
                await asyncio.sleep(0.01)


class _Silent:
    def send_multipart(self, _frames: Any) -> None:
        pass


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Source]:
    source = Source(folder)
    source.run(1)  # before the reader is there
    task = asyncio.create_task(source.reader.run())
    try:
        await source.know(source.names)
        number = 2
        while source.reader._next < source.publisher._next or number < 4:  # until the subscription has reached it
            source.run(number)
            number += 1
            await asyncio.sleep(0.2)
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        source.publisher._task.cancel()
        source.publisher._pub.close(linger=0)
        source.publisher._replay.close(linger=0)


async def test_a_gap_is_filled_from_the_replay(tmp_path: Path) -> None:
    async with reading(tmp_path) as source:
        await source.know(source.names)
        source.skip()
        source.run(500)
        await source.know(source.names)
        assert source.reader.num_lost == 0
        source.pool.evict_idle()
        await source.know([])


async def test_a_gap_that_cannot_be_filled_starts_from_nothing_and_gateways_hear_of_it(tmp_path: Path) -> None:
    async with reading(tmp_path) as source:
        await source.know(source.names)
        source.skip()
        source.publisher._kept.clear()
        source.run(500)
        await source.know(source.names[-1:])
        assert source.reader.num_lost == 1
        assert source.book.ledger.unsure
        frames = source.book.feed.frames(source.book.feed.epoch, 1)
        assert b"RESET" not in (data := await anext(frames))
        assert data[data.index(b"}") + 1 + 4] == 2  # the kind of the second frame: RESET
        await frames.aclose()


async def test_an_event_that_makes_no_sense_counts_as_lost(tmp_path: Path) -> None:
    async with reading(tmp_path) as source:
        await source.know(source.names)
        source.publisher._packb = lambda _batch: msgpack.packb([0, [{"type": "BlockStored"}]])
        source.run(400)
        source.publisher._packb = msgpack.packb
        source.run(500)
        await source.know(source.names[-1:])
        assert source.reader.num_lost == 1
