"""Requests at replicas, as routing counts them, and what engines tell about these."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from longboat.compiled import mypyc_attr
from longboat.gateway.prefixes.feed import FeedState
from longboat.gateway.prefixes.frames import MAX_NAMED_BLOCKS, prefix_header
from longboat.routing.prefixes.placed import PlacedPrompts

if TYPE_CHECKING:
    from longboat.gateway.records.routed import Routed
    from longboat.gateway.upstreams.table import LiveTable
    from longboat.gateway.upstreams.upstream import Upstream
    from longboat.routing.policies.contract import EngineReport
    from longboat.routing.prefixes.overflow import OverflowIndex
    from longboat.routing.router import Router

__all__ = ("Trip", "Trips")

_MAX_TOLD: Final = 4096


@mypyc_attr(acyclic=True)
class Trip:
    """One request at one replica, from the moment that it was sent to the moment that it left."""

    __slots__ = ("_cached_tokens", "_routed", "_tag", "num_output_tokens")

    def __init__(self, routed: Routed, now_s: float, tag: int = 0) -> None:
        """tag: by which the engine tells about it; 0: it does not"""
        self._routed = routed
        self._tag = tag
        self._cached_tokens: int | None = None  # of the estimated prompt; None: the engine has not told
        self.num_output_tokens = 0
        cached = routed.expected_cached_tokens
        routed.router.sent(routed.prompt, routed.key, cached_tokens=cached, now_s=now_s)

    def header(self) -> bytes:
        """Return the header line that names its blocks to the engine; empty where that tells nothing about them."""
        if not self._tag:
            return b""
        routed = self._routed
        return prefix_header(self._tag, routed.depth, routed.prompt.blocks, routed.prompt.ends)

    def first_token(self, now_s: float) -> None:
        """Note that the first token came."""
        routed = self._routed
        routed.router.first_token(routed.prompt, cached_tokens=self._cached_tokens, now_s=now_s)

    def found(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Take what the engine tells with the first token, which a response that comes whole shows in no other way."""
        routed = self._routed
        routed.found_tokens = cached_tokens
        if prompt_tokens:
            self._cached_tokens = cached_tokens * routed.prompt.num_tokens // prompt_tokens
            routed.compare(prompt_tokens, cached_tokens)
        self.first_token(time.monotonic())

    def progressed(self, output_tokens: int) -> None:
        """Note how many tokens of output there are."""
        if output_tokens != self.num_output_tokens:
            self.num_output_tokens = output_tokens
            self._routed.router.progressed(self._routed.prompt, output_tokens)

    def end(self, now_s: float) -> None:
        """Note that the request ended there."""
        routed = self._routed
        routed.router.ended(routed.prompt, output_tokens=self.num_output_tokens, now_s=now_s)


class Trips:
    """The trips that engines may still tell about, and where what they tell goes (a ``prefixes.feed.FeedTaker``)."""

    def __init__(self, index: OverflowIndex) -> None:
        self.feeds: dict[str, FeedState] = {}  # by the replica's key
        self.table: LiveTable | None = None  # set once it is made
        self._index = index
        self._placed: dict[str, PlacedPrompts] = {}  # of engines that do not tell, by the replica's key
        self._told: OrderedDict[int, Trip] = OrderedDict()  # by tag
        self._tag = int.from_bytes(os.urandom(4)) << 32  # those of other processes begin elsewhere

    def begin(self, routed: Routed, now_s: float) -> Trip:
        """Count a request at its replica."""
        prompt, feed = routed.prompt, self.feeds.get(routed.key)
        is_told = feed is not None and feed.is_live
        if not prompt.blocks or (is_told and prompt.num_blocks > MAX_NAMED_BLOCKS):
            return Trip(routed, now_s)
        if not is_told:
            trip = Trip(routed, now_s)
            placed = self._placed.get(routed.key)
            if placed is None:
                placed = self._placed[routed.key] = PlacedPrompts()
            self._give_up(routed, placed.sent(prompt))
            return trip
        self._tag += 1
        trip = self._told[self._tag] = Trip(routed, now_s, self._tag)
        if len(self._told) > _MAX_TOLD:
            self._told.popitem(last=False)
        return trip

    def answered(self, routed: Routed, prompt_tokens: int, cached_tokens: int) -> None:
        """Compare what was expected of a replica's cache with what its response says that the engine found there."""
        if routed.found_tokens is not None:
            return  # the engine told it beside the answer, and it is counted
        routed.compare(prompt_tokens, cached_tokens)
        placed = self._placed.get(routed.key)
        if placed is not None and not routed.router.load_of(routed.key).tells:
            own_count = cached_tokens * routed.prompt.num_tokens // prompt_tokens
            self._give_up(routed, placed.found(routed.prompt, routed.depth, own_count))

    def keep(self, keys: set[str]) -> None:
        """Forget all replicas but these."""
        self._placed = {key: placed for key, placed in self._placed.items() if key in keys}

    def _give_up(self, routed: Routed, blocks: bytes) -> None:
        if blocks:
            self._index.remove(routed.router.load_of(routed.key).slot, blocks)

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
        router = self._router_of(upstream)
        return None if router is None else router.load_of(upstream.key).slot

    def _router_of(self, upstream: Upstream) -> Router | None:
        pool = self.table.pool(upstream.model) if self.table is not None and not upstream.gone else None
        return None if pool is None else pool.router

    def reported(self, upstream: Upstream, report: EngineReport) -> None:
        """Take an engine's load."""
        router = self._router_of(upstream)
        if router is not None:
            router.reported(upstream.key, report, tells=True)

    def found(self, upstream: Upstream, tag: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Take what one request found cached."""
        trip = self._told.pop(tag, None)
        if trip is not None:
            trip.found(prompt_tokens, cached_tokens)
