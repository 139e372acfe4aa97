"""Consistent hashing with bounded loads: equal beginnings go to one replica until it is too busy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from typing import Final
from zlib import crc32

from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt

__all__ = ("ConsistentHash",)

POINTS: Final = 160  # of each replica on the ring
LOAD_FACTOR: Final = 1.25  # most requests of a replica, in mean numbers of requests
KEY_TOKENS: Final = 1024  # of a prompt's beginning that are hashed, where its session is unknown


class ConsistentHash(RoutingPolicy):
    """Hashes the session, or the prompt's beginning, to a ring of replicas, and passes over those that are too busy.

    Source: V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016), with the factor
    1.25 of SMG's ``prefix_hash`` and KubeAI. SMG hashes the first 256 tokens; here it is 1,024 in whole blocks, because
    prompts with one template share the first 256. Their weights for unequal replicas are left out.
    """

    name = "consistent_hash"
    terms: tuple[str, ...] = ("requests",)
    reads_prefixes = True

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._points: list[int] = []  # sorted
        self._owners: list[int] = []  # by point: index into the keys

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the first replica after the key's place on the ring that has room under the bound."""
        keys = [replica.key for replica in replicas]
        if keys != self._keys:
            self._build(keys)
        bound = ceil(LOAD_FACTOR * (sum([replica.requests for replica in replicas]) + 1) / len(replicas))
        start = bisect_right(self._points, crc32(_key_of(prompt)))
        for step in range(len(self._points)):
            owner = self._owners[(start + step) % len(self._owners)]
            if replicas[owner].requests < bound:
                return Choice(owner, _FIRST if step == 0 else _NEXT)
        return Choice(turn % len(replicas), _NEXT)

    def _build(self, keys: list[str]) -> None:
        ring = sorted((crc32(f"{key}#{point}".encode()), at) for at, key in enumerate(keys) for point in range(POINTS))
        self._keys = keys
        self._points = [point for point, _ in ring]
        self._owners = [owner for _, owner in ring]


def _key_of(prompt: Prompt) -> bytes:
    if prompt.session:
        return prompt.session.encode()
    depth = 1
    while depth < prompt.num_blocks and prompt.tokens_at(depth) < KEY_TOKENS:
        depth += 1
    return prompt.blocks[(depth - 1) * BLOCK_BYTES : depth * BLOCK_BYTES] or prompt.key.encode()


_FIRST: Final = "its place on the ring"
_NEXT: Final = "next on the ring with room"
