"""Follows the prefix feeds of engines: what their KV caches hold, how busy they are, and what requests found cached.

Each process of a node follows every engine's load. One of them also takes the names, into the index that all share.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import urlsplit

import httptools
import orjson

from longboat.clock import WALL, until_tick_s
from longboat.core.clock import Clock
from longboat.gateway.prefixes.frames import (
    FEED_PATH,
    FOUND,
    HELLO,
    LOAD,
    REMOVED,
    RESET,
    STORED,
    BadFrameError,
    FrameReader,
    read_found,
    read_load,
)
from longboat.gateway.upstreams.table import LiveTable
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.policies.contract import EngineReport
from longboat.routing.prefixes.accuracy import PrefixAccuracy
from longboat.telemetry import Guard, logger

__all__ = ("FeedState", "FeedTaker", "follow_prefixes")

log = logger("prefixes")

_LOOK_EVERY_S = 0.1
_SILENT_S = 3.0  # a feed says something once a second
_RETRY_S = 0.5
_MISSING_RETRY_S = 30.0  # an engine without the plugin; twice as long after each further try
_MISSING_RETRY_MOST_S = 480.0
_CONNECT_S = 2.0
_HEAL_PAUSE_S = 30.0  # between two snapshots because expectations did not come true
_READ_BYTES = 256 * 1024


class FeedTaker(Protocol):
    """The receiver of what engines tell. Keys are those of upstreams."""

    def named(self, upstream: Upstream, stored: bool, blocks: bytes) -> None:
        """Take names that an engine holds now, or does not hold any more."""

    async def forgotten(self, upstream: Upstream) -> None:
        """Forget what an engine holds, before it says all of it again."""

    def reported(self, upstream: Upstream, report: EngineReport) -> None:
        """Take an engine's load."""

    def found(self, upstream: Upstream, tag: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Take what one request found cached, by the tag that its gateway gave it."""


class FeedState:
    """The state of one engine's feed."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.epoch = ""  # of the engine's API server
        self.number = 0  # of the last frame that changed names
        self.block_tokens = 0  # of its KV cache; 0: unknown yet
        self.capacity_tokens = 0
        self.has_feed = True  # it has not said otherwise
        self.is_live = False
        self.num_resets = 0
        self.accuracy = PrefixAccuracy()
        self.healed_s = -math.inf  # when its names were asked for again (monotonic)
        self.heal_pause_s = _HEAL_PAUSE_S  # before that may be done again; twice as long each time


class _NotThereError(Exception):
    """An engine without this feed."""


async def follow_prefixes(
    table: LiveTable, taker: FeedTaker, *, names: bool = True, states: dict[str, FeedState] | None = None,
    least_replicas: int = 1, clock: Clock = WALL,
) -> None:  # fmt: skip
    """Follow the feeds of engines in the table, until the task is cancelled.

    least_replicas: models with fewer are left out: with one replica, there is nothing to choose
    names: whether this process takes the names, too; states: filled with a state for each upstream's key
    """
    states = {} if states is None else states
    follows: dict[Upstream, asyncio.Task[None]] = {}
    guard = Guard(log, "the look for prefix feeds")
    try:
        while True:
            with guard:
                known = {u for u in _followed(table, least_replicas) if u.address is None and (u.ready or u in follows)}
                for upstream in [u for u in follows if u not in known]:
                    await _end((follows.pop(upstream),))
                    states.pop(upstream.key, None)
                for upstream in known - follows.keys():
                    state = states[upstream.key] = FeedState(upstream)
                    follow = _Follow(state, taker, names, clock)
                    follows[upstream] = asyncio.get_running_loop().create_task(follow.run())
            await asyncio.sleep(until_tick_s(_LOOK_EVERY_S, asyncio.get_running_loop().time()))
    finally:
        await _end(follows.values())


def _followed(table: LiveTable, least_replicas: int) -> list[Upstream]:
    return [upstream for pool in table.pools() if len(pool.upstreams) >= least_replicas for upstream in pool.upstreams]


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Follow:
    """One engine's feed, read again and again."""

    def __init__(self, state: FeedState, taker: FeedTaker, names: bool, clock: Clock) -> None:
        self._state = state
        self._taker = taker
        self._names = names
        self._clock = clock

    async def run(self) -> None:
        state, missing_s = self._state, _MISSING_RETRY_S
        while True:
            pause_s = _RETRY_S
            try:
                await self._read()
            except _NotThereError:
                state.has_feed, pause_s = False, missing_s
                missing_s = min(2.0 * missing_s, _MISSING_RETRY_MOST_S)
            except (OSError, ValueError, TimeoutError, httptools.HttpParserError) as error:
                if state.is_live:
                    log.info("the prefix feed of %s broke off: %s", state.upstream.key, error or type(error).__name__)
            except Exception as error:  # a defect must not end the feed
                log.warning("the prefix feed of %s failed: %r", state.upstream.key, error)
                pause_s = _MISSING_RETRY_S
            finally:
                state.is_live = False
            await asyncio.sleep(pause_s)

    async def _read(self) -> None:
        state, upstream = self._state, self._state.upstream
        parts = urlsplit(upstream.url)
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(parts.hostname or "", parts.port or 80, limit=_READ_BYTES)
        try:
            query = f"?epoch={state.epoch}&from={state.number}" + ("" if self._names else "&names=0")
            head = f"GET {parts.path.rstrip('/')}{FEED_PATH}{query} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            writer.write(f"{head}authorization: Bearer {upstream.api_key}\r\n\r\n".encode("latin-1"))
            await self._take_all(reader)
        except BadFrameError:
            if state.is_live:
                raise
        finally:
            writer.transport.abort()
        if not state.is_live:  # a server that answers other bytes to any path
            raise _NotThereError

    async def _take_all(self, reader: asyncio.StreamReader) -> None:
        state, upstream = self._state, self._state.upstream
        body = _Body()
        parser = httptools.HttpResponseParser(body)
        frames = FrameReader()
        while not body.is_complete:
            async with asyncio.timeout(_SILENT_S):
                data = await reader.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the engine closed it")
            parser.feed_data(data)
            if body.has_head and parser.get_status_code() != 200:
                raise _NotThereError
            for kind, number, payload in frames.feed(body.take()):
                if upstream.gone:
                    return  # its slot may be another replica's by now
                if kind == RESET and self._names:
                    state.num_resets += 1
                    state.number = 0
                    await self._taker.forgotten(upstream)
                self._take(kind, number, payload)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        state, taker, upstream = self._state, self._taker, self._state.upstream
        if kind == LOAD:
            running, waiting, queued, usage = read_load(payload)
            tokens = None if queued < 0 else queued
            now_s = self._clock.monotonic_s()
            report = EngineReport(taken_s=now_s, running=running, waiting=waiting, kv_usage=usage, queued_tokens=tokens)
            taker.reported(upstream, report)
        elif kind == FOUND:
            for tag, prompt_tokens, cached_tokens, expected_tokens in read_found(payload):
                state.accuracy.observe(expected_tokens, cached_tokens, prompt_tokens)
                taker.found(upstream, tag, prompt_tokens, cached_tokens)
            self._heal()
        elif kind == HELLO:
            self._greet(orjson.loads(payload))
        elif kind in (STORED, REMOVED) and self._names:
            if len(payload) % 8:
                raise ValueError(f"names of {len(payload)} bytes")
            taker.named(upstream, kind == STORED, payload)
            state.number = number or state.number

    def _greet(self, hello: dict[str, object]) -> None:
        state = self._state
        state.has_feed = state.is_live = True
        state.epoch = str(hello.get("epoch", ""))
        state.block_tokens = int(str(hello.get("block_tokens", 0)))
        state.capacity_tokens = int(str(hello.get("capacity_tokens", 0)))

    def _heal(self) -> None:
        """Begin with a snapshot again where what was expected does not come true."""
        state = self._state
        now_s = self._clock.monotonic_s()
        if self._names and state.accuracy.heal and now_s - state.healed_s >= state.heal_pause_s:
            if state.healed_s > -math.inf:
                state.heal_pause_s *= 2.0
            state.healed_s = now_s
            state.accuracy.restart()
            state.epoch = ""
            log.warning(
                "the prefixes of %s were not what they seemed to be; asking for all of them", state.upstream.key
            )
            raise ConnectionAbortedError("its names are read again")


class _Body:
    """The body of a chunked response, as its parser delivers it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.has_head = False
        self.is_complete = False

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    # called by the parser

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True
