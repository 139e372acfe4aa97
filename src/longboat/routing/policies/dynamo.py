"""Dynamo's KV router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.policies.overlap import cached_tokens
from longboat.routing.prefixes.index import DictIndex
from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt

__all__ = ("Dynamo",)

BLOCK_TOKENS: Final = 16  # vLLM's


class Dynamo(RoutingPolicy):
    """Takes the lowest sum of prompt blocks to compute and blocks that active requests hold, both in one unit.

    Source: ``lib/kv-router/src/scheduling/selector.rs`` of NVIDIA Dynamo with its default weights and temperature 0:
    ``max(0, queued prefill + prompt - overlap) + decode blocks with this request``. Blocks that several active requests
    of a replica share count once. Requests are taken off the prefill at their first token and off the blocks at their
    end. Left out: tiers beneath the device, taints, replica synchronisation, and what is off by default: decay of the
    overlap's credit, weights for active requests, output blocks, and the queue in the router.
    """

    name = "dynamo"
    terms: tuple[str, ...] = ("prefill_blocks", "decode_blocks")
    reads_prefixes = True

    def __init__(self) -> None:
        self._active = DictIndex(max_blocks=10_000_000)  # blocks of requests in flight, by slot
        self._counts: dict[tuple[int, bytes], int] = {}  # requests in flight that hold a block there
        self._tokens: dict[int, int] = {}  # by slot: tokens of the blocks of requests in flight, shared ones once
        self._requests: dict[str, int] = {}  # slots of requests in flight

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the lowest cost in blocks."""
        count, isl = len(replicas), prompt.num_tokens
        cached = cached_tokens(prompt, replicas, view)
        depths = self._active.depths(prompt.blocks, view.num_slots)
        best, lowest = 0, -1.0
        for step in range(count):
            at = (step + turn) % count
            replica = replicas[at]
            prefill = max(0, replica.prefill_tokens + isl - cached[at])
            decode = self._tokens.get(replica.slot, 0) + isl - prompt.tokens_at(depths[replica.slot])
            cost = prefill / BLOCK_TOKENS + -(-decode // BLOCK_TOKENS)
            if lowest < 0 or cost < lowest:
                best, lowest = at, cost
        return Choice(best, _LOWEST, cached_tokens=cached[best])

    def sent(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int, now_s: float) -> None:
        """Count its blocks as active."""
        self._requests[prompt.key] = replica.slot
        self._tokens[replica.slot] = self._tokens.get(replica.slot, 0) + self._count(prompt, replica.slot, 1)
        self._active.place(replica.slot, prompt.blocks)

    def ended(self, prompt: Prompt, replica: ReplicaLoad, *, output_tokens: int, now_s: float) -> None:
        """Take its blocks off, except those that others hold."""
        slot = self._requests.pop(prompt.key, -1)
        if slot >= 0 and slot in self._tokens:
            self._tokens[slot] -= self._count(prompt, slot, -1)

    def left(self, replica: ReplicaLoad) -> None:
        """Forget what was active there."""
        self._tokens.pop(replica.slot, None)
        self._active.drop(replica.slot)
        for place in [place for place in self._counts if place[0] == replica.slot]:
            del self._counts[place]
        self._requests = {key: slot for key, slot in self._requests.items() if slot != replica.slot}

    def _count(self, prompt: Prompt, slot: int, change: int) -> int:
        """Count a request's blocks in or out, and return the tokens of those that no other request has there."""
        if not prompt.blocks:
            return prompt.num_tokens
        counts, tokens = self._counts, 0
        for depth in range(prompt.num_blocks):
            name = prompt.blocks[depth * BLOCK_BYTES : (depth + 1) * BLOCK_BYTES]
            before = counts.get((slot, name), 0)
            if before + change > 0:
                counts[slot, name] = before + change
            else:
                counts.pop((slot, name), None)
                self._active.remove(slot, name)
            if min(before, before + change) <= 0:
                tokens += prompt.tokens_at(depth + 1) - prompt.tokens_at(depth)
        return tokens


_LOWEST: Final = "lowest cost in blocks"
