"""The fake engine's KV memory: blocks that requests hold, prefixes that stay cached, and the events of both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

__all__ = ("BlockPool", "BlockStored", "BlocksRemoved", "KvEvent", "Reservation", "block_hashes")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """The event that consecutive blocks became findable by prefix."""

    hashes: tuple[bytes, ...]
    parent: bytes | None  # hash of the block before them; None at the root
    token_ids: tuple[int, ...]
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRemoved:
    """The event that these blocks were evicted."""

    hashes: tuple[bytes, ...]


KvEvent = BlockStored | BlocksRemoved


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Blocks that one request holds."""

    hashes: tuple[bytes, ...]
    num_private: int
    cached_tokens: int  # prompt tokens that were found in the cache


def block_hashes(token_ids: Sequence[int], block_tokens: int) -> tuple[bytes, ...]:
    """Return the hashes of the full blocks of ``token_ids``, as vLLM's ``sha256_cbor`` algorithm makes them."""
    parent, hashes = _ROOT, []
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        ids = token_ids[start : start + block_tokens]
        parent = sha256(b"\x83" + _cbor_head(2, len(parent)) + parent + _cbor_ints(ids) + b"\xf6").digest()
        hashes.append(parent)
    return tuple(hashes)


def _cbor_head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes((major << 5 | value,))
    size = next(n for n in (1, 2, 4, 8) if value < 1 << (8 * n))
    return bytes((major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[size],)) + value.to_bytes(size, "big")


def _cbor_ints(ids: Sequence[int]) -> bytes:
    return _cbor_head(4, len(ids)) + b"".join(_cbor_head(0, token_id) for token_id in ids)


_ROOT_TEXT = b"vllm-none-hash"
_ROOT = sha256(_cbor_head(3, len(_ROOT_TEXT)) + _ROOT_TEXT).digest()


class BlockPool:
    """A pool of ``num_blocks`` blocks, held by running requests, or by idle prefixes that are evicted on demand."""

    def __init__(self, num_blocks: int, block_tokens: int, on_event: Callable[[KvEvent], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._on_event = on_event or (lambda _event: None)
        self._held: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._num_private = 0

    @property
    def used_ratio(self) -> float:
        """Share of the blocks that running requests hold."""
        return (len(self._held) + self._num_private) / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def reserve(self, prompt: Sequence[int], total_tokens: int) -> Reservation | None:
        """Reserve the blocks of a whole request (prompt and response); None while they are not free."""
        hashes = block_hashes(prompt, self.block_tokens)
        num_private = self.blocks_for(total_tokens) - len(hashes)
        new = sum(1 for block in hashes if block not in self._held)
        if len(self._held) + self._num_private + new + num_private > self.num_blocks:
            return None
        num_hits = self._num_leading_hits(hashes)
        self._num_private += num_private
        for block in hashes:
            self._idle.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        self._evict()
        self._tell_stored(prompt, hashes, num_hits)
        return Reservation(hashes=hashes, num_private=num_private, cached_tokens=num_hits * self.block_tokens)

    def release(self, reservation: Reservation, token_ids: Sequence[int]) -> None:
        """Give blocks back; full blocks of ``token_ids`` (prompt and response) stay cached while there is room."""
        for block in reservation.hashes:
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                self._idle[block] = None
        self._num_private -= reservation.num_private
        hashes = block_hashes(token_ids, self.block_tokens)
        num_known = self._num_leading_hits(hashes)
        for block in hashes[num_known:]:
            if block not in self._held:
                self._idle[block] = None
        self._evict()
        self._tell_stored(token_ids, hashes, num_known)

    def _num_leading_hits(self, hashes: Sequence[bytes]) -> int:
        for index, block in enumerate(hashes):
            if block not in self._held and block not in self._idle:
                return index
        return len(hashes)

    def _evict(self) -> None:
        removed = []
        while self._idle and len(self._held) + len(self._idle) + self._num_private > self.num_blocks:
            removed.append(self._idle.popitem(last=False)[0])
        if removed:
            self._on_event(BlocksRemoved(hashes=tuple(removed)))

    def _tell_stored(self, token_ids: Sequence[int], hashes: tuple[bytes, ...], num_known: int) -> None:
        if num_known == len(hashes):
            return
        start, end = num_known * self.block_tokens, len(hashes) * self.block_tokens
        self._on_event(
            BlockStored(
                hashes=hashes[num_known:],
                parent=hashes[num_known - 1] if num_known else None,
                token_ids=tuple(token_ids[start:end]),
                block_tokens=self.block_tokens,
            )
        )
