"""Reads the KV events of an engine's core (vLLM's format over ZeroMQ), without a gap, into the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from longboat_vllm.prefixes.book import PrefixBook

__all__ = ("EventReader",)

_END = (-1).to_bytes(8, "big", signed=True)
_REPLAY_S = 5.0
_TIERS = (None, "GPU", "gpu")  # where blocks are that a prefill can use as they are; others are further tiers
_GROUPS = (None, 0)


class EventReader:
    """The reader of one core's events."""

    def __init__(self, book: PrefixBook, endpoint: str, replay_endpoint: str, drop_every: int = 0) -> None:
        """drop_every: the distance between batches that are lost on purpose, for tests; 0: none is"""
        self._book = book
        self._drop_every = drop_every
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._next = 0  # number of the batch that comes next
        self.num_lost = 0  # times that batches could not be had again

    async def run(self) -> None:
        """Read events until the task is cancelled."""
        import zmq
        import zmq.asyncio
        from msgspec import DecodeError, msgpack

        context = zmq.asyncio.Context.instance()
        news = context.socket(zmq.SUB)
        news.set_hwm(100_000)
        news.subscribe(b"")
        news.connect(self._endpoint)
        decoder = msgpack.Decoder()
        try:
            await self._replay(context, zmq, decoder)  # what came before this reader
            while True:
                try:
                    _topic, number, payload = await news.recv_multipart()
                    await self._take(int.from_bytes(number, "big"), payload, context, zmq, decoder)
                except (ValueError, KeyError, TypeError, DecodeError):
                    self._lose()
        finally:
            news.close(linger=0)

    def _drops(self, number: int) -> bool:
        return self._drop_every > 0 and number % self._drop_every == self._drop_every - 1

    async def _take(self, number: int, payload: bytes, context: Any, zmq: Any, decoder: Any) -> None:
        if self._drops(number):
            return
        if number > self._next:
            await self._replay(context, zmq, decoder)
        if number < self._next:
            return
        if number > self._next:
            self._lose()
        self._next = number + 1
        self._apply(decoder.decode(payload))

    async def _replay(self, context: Any, zmq: Any, decoder: Any) -> None:
        """Take the batches from the next one on that the core still has."""
        asking = context.socket(zmq.DEALER)
        asking.connect(self._replay_endpoint)
        try:
            async with asyncio.timeout(_REPLAY_S):
                await asking.send_multipart([b"", self._next.to_bytes(8, "big")])
                while True:
                    _empty, _topic, number, payload = await asking.recv_multipart()
                    if number == _END:
                        return
                    self._take_again(int.from_bytes(number, "big"), payload, decoder)
        except TimeoutError:
            return
        finally:
            asking.close(linger=0)

    def _take_again(self, number: int, payload: bytes, decoder: Any) -> None:
        if self._drops(number):
            return
        if number > self._next:
            self._lose()
        self._next = number + 1
        self._apply(decoder.decode(payload))

    def _lose(self) -> None:
        self.num_lost += 1
        self._book.lose()

    def _apply(self, batch: Sequence[Any]) -> None:
        ledger = self._book.ledger
        for event in batch[1]:
            kind = event["type"]
            if kind == "AllBlocksCleared":
                self._book.clear()
            elif event.get("medium") in _TIERS and event.get("group_idx") in _GROUPS:
                if kind == "BlockStored":
                    _store(ledger, event)
                elif kind == "BlockRemoved":
                    ledger.removed(event["block_hashes"])


def _store(ledger: Any, event: Mapping[str, Any]) -> None:
    if len(event["block_hashes"]) * event["block_size"] != len(event["token_ids"]):
        return  # a sliding window keeps some blocks only, and the event does not say which
    extras = event.get("extra_keys")
    ledger.stored(
        event["block_hashes"],
        event["parent_block_hash"],
        event["token_ids"],
        event["block_size"],
        [hashable(extra) for extra in extras] if extras else None,
    )


def hashable(value: Any) -> Hashable:
    """Return lists as tuples, at every depth."""
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value
