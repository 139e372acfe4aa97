"""Requests at replicas, as routing counts them, and what engines tell about these."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from longboat.gateway.prefixes.feed import FeedState
from longboat.gateway.prefixes.frames import MAX_NAMED_BLOCKS, prefix_header
from longboat.routing.prefixes.placed import PlacedPrompts

if TYPE_CHECKING:
    from longboat.gateway.records.routed import Routed
    from longboat.gateway.upstreams.table import LiveTable
    from longboat.gateway.upstreams.upstream import Upstream
    from longboat.routing.policies.contract import EngineReport
    from longboat.routing.prefixes.shared_index import SharedIndex
    from longboat.routing.router import Router

__all__ = ("Trip", "Trips")

_MAX_TOLD: Final = 4096


class Trip:
    """One request at one replica, from the moment that it was sent to the moment that it left."""

    __slots__ = ("_cached_tokens", "_depth", "_router", "num_output_tokens", "prompt", "routed", "tag")

    def __init__(self, router: Router, routed: Routed, key: str, *, tag: int = 0, depth: int = 0) -> None:
        """key: of the replica; depth: leading blocks that it is expected to have"""
        self._router = router
        self.routed = routed
        self.prompt = routed.prompt
        self.tag = tag  # by which the engine tells about it; 0: it does not
        self._depth = depth
        self._cached_tokens: int | None = None  # of the estimated prompt; None: the engine has not told
        self.num_output_tokens = 0
        router.sent(self.prompt, key, cached_tokens=routed.expected_cached_tokens, now_s=time.monotonic())

    def header(self) -> bytes:
        """Return the header line that names its blocks to the engine; empty where that tells nothing about them."""
        if not self.tag:
            return b""
        return prefix_header(self.tag, self._depth, self.prompt.blocks, self.prompt.ends)

    def first_token(self, now_s: float) -> None:
        """Note that the first token came."""
        self._router.first_token(self.prompt, cached_tokens=self._cached_tokens, now_s=now_s)

    def found(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Take what the engine tells with the first token, which a response that comes whole shows in no other way."""
        routed, key = self.routed, self.routed.key
        routed.found_tokens = cached_tokens
        if prompt_tokens:
            self._cached_tokens = cached_tokens * self.prompt.num_tokens // prompt_tokens
            expected = routed.expected_of(prompt_tokens)
            self._router.answered(
                key, expected_tokens=expected, cached_tokens=cached_tokens, prompt_tokens=prompt_tokens
            )
        self.first_token(time.monotonic())

    def progressed(self, output_tokens: int) -> None:
        """Note how many tokens of output there are."""
        if output_tokens != self.num_output_tokens:
            self.num_output_tokens = output_tokens
            self._router.progressed(self.prompt, output_tokens)

    def end(self) -> None:
        """Note that the request ended there."""
        self._router.ended(self.prompt, output_tokens=self.num_output_tokens, now_s=time.monotonic())


class Trips:
    """The trips that engines may still tell about, and where what they tell goes (a ``prefixes.feed.FeedTaker``)."""

    def __init__(self, index: SharedIndex) -> None:
        self.feeds: dict[str, FeedState] = {}  # by the replica's key
        self.table: LiveTable | None = None  # set once it is made
        self._index = index
        self._placed: dict[str, PlacedPrompts] = {}  # of engines that do not tell, by the replica's key
        self._told: OrderedDict[int, Trip] = OrderedDict()  # by tag
        self._tag = int.from_bytes(os.urandom(4)) << 32  # those of other processes begin elsewhere

    def begin(self, router: Router, routed: Routed, upstream: Upstream) -> Trip:
        """Count a request at a replica."""
        key, prompt, feed = upstream.key, routed.prompt, self.feeds.get(upstream.key)
        if not prompt.blocks:
            return Trip(router, routed, key)
        if feed is not None and feed.is_live and prompt.num_blocks > MAX_NAMED_BLOCKS:
            return Trip(router, routed, key)
        if feed is None or not feed.is_live:
            trip = Trip(router, routed, key)
            self._give_up(router, key, self._placed.setdefault(key, PlacedPrompts()).sent(prompt))
            return trip
        self._tag += 1
        depth = router.depth_of(prompt, key)
        trip = self._told[self._tag] = Trip(router, routed, key, tag=self._tag, depth=depth)
        if len(self._told) > _MAX_TOLD:
            self._told.popitem(last=False)
        return trip

    def answered(self, router: Router, routed: Routed, prompt_tokens: int, cached_tokens: int) -> None:
        """Compare what was expected of a replica's cache with what its response says that the engine found there."""
        if routed.found_tokens is not None:
            return  # the engine told it beside the answer, and it is counted
        key, prompt, expected = routed.key, routed.prompt, routed.expected_of(prompt_tokens)
        router.answered(key, expected_tokens=expected, cached_tokens=cached_tokens, prompt_tokens=prompt_tokens)
        placed = self._placed.get(key)
        if placed is not None and not router.load_of(key).tells:
            own_count = cached_tokens * prompt.num_tokens // prompt_tokens
            self._give_up(router, key, placed.found(prompt, routed.expected_depth, own_count))

    def keep(self, keys: set[str]) -> None:
        """Forget all replicas but these."""
        self._placed = {key: placed for key, placed in self._placed.items() if key in keys}

    def _give_up(self, router: Router, key: str, blocks: bytes) -> None:
        if blocks:
            self._index.remove(router.load_of(key).slot, blocks)

    # what engines tell

    def named(self, upstream: Upstream, stored: bool, blocks: bytes) -> None:
        """Take names that an engine holds now, or does not hold any more."""
        slot = self._slot_of(upstream)
        if slot is not None:
            (self._index.place if stored else self._index.remove)(slot, blocks)

    async def forgotten(self, upstream: Upstream) -> None:
        """Forget what an engine holds. The pass over the table is made in a thread."""
        slot = self._slot_of(upstream)
        if slot is not None:
            self._index.clear(slot)
            await asyncio.to_thread(self._index.tidy)

    def _slot_of(self, upstream: Upstream) -> int | None:
        """Return the slot of an endpoint; None once it has left, so that it does not get another one."""
        pool = self.table.pool(upstream.model) if self.table is not None and not upstream.gone else None
        return None if pool is None else pool.router.load_of(upstream.key).slot

    def reported(self, upstream: Upstream, report: EngineReport) -> None:
        """Take an engine's load."""
        pool = self.table.pool(upstream.model) if self.table is not None and not upstream.gone else None
        if pool is not None:
            pool.router.reported(upstream.key, report, tells=True)

    def found(self, upstream: Upstream, tag: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Take what one request found cached."""
        trip = self._told.pop(tag, None)
        if trip is not None:
            trip.found(prompt_tokens, cached_tokens)
