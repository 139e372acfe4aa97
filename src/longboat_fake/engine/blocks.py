"""The fake engine's KV memory: blocks that requests hold, prefixes that stay cached, and the events of both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

__all__ = ("BlockPool", "BlockStored", "BlocksRemoved", "KvEvent", "Reservation", "block_hashes", "extras_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """The event that consecutive blocks became findable by prefix."""

    hashes: tuple[bytes, ...]
    parent: bytes | None  # hash of the block before them; None at the root
    token_ids: tuple[int, ...]
    block_tokens: int
    extras: tuple[tuple[str, ...] | None, ...] = ()  # for each block, what besides tokens makes its contents


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
    adapter: str = ""
    salt: str = ""
    cached_tokens: int  # prompt tokens that were found in the cache


def block_hashes(
    token_ids: Sequence[int], block_tokens: int, *, adapter: str = "", salt: str = ""
) -> tuple[bytes, ...]:
    """Return the hashes of the full blocks of ``token_ids``, as vLLM's ``sha256_cbor`` algorithm makes them."""
    parent, hashes = _ROOT, []
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        ids = token_ids[start : start + block_tokens]
        more = _cbor_extra(adapter, salt if start == 0 else "")
        parent = sha256(b"\x83" + _cbor_head(2, len(parent)) + parent + _cbor_ints(ids) + more).digest()
        hashes.append(parent)
    return tuple(hashes)


def extras_of(start: int, adapter: str, salt: str) -> tuple[str, ...] | None:
    """Return what besides tokens makes the contents of the block at ``start``, as vLLM's events tell it."""
    return tuple(text for text in (adapter, salt if start == 0 else "") if text) or None


def _cbor_extra(adapter: str, salt: str) -> bytes:
    named = [(name, text) for name, text in (("lora", adapter), ("cache_salt", salt)) if text]
    pairs = b"".join(_cbor_head(4, 2) + _cbor_text(name) + _cbor_text(text) for name, text in named)
    return _cbor_head(4, len(named)) + pairs if named else b"\xf6"


def _cbor_text(text: str) -> bytes:
    return _cbor_head(3, len(text.encode())) + text.encode()


def _cbor_head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes((major << 5 | value,))
    size = next(n for n in (1, 2, 4, 8) if value < 1 << (8 * n))
    return bytes((major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[size],)) + value.to_bytes(size, "big")


def _cbor_ints(ids: Sequence[int]) -> bytes:
    return _cbor_head(4, len(ids)) + b"".join(_cbor_head(0, token_id) for token_id in ids)


_ROOT = sha256(_cbor_text("vllm-none-hash")).digest()


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

    def reserve(
        self, prompt: Sequence[int], total_tokens: int, *, adapter: str = "", salt: str = "", report: bool = False
    ) -> Reservation | None:
        """Reserve the blocks of a whole request (prompt and response); None while they are not free.

        adapter, salt: requests that differ in one of these share no block; report: tell of cached blocks, too
        """
        hashes = block_hashes(prompt, self.block_tokens, adapter=adapter, salt=salt)
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
        # The last token is always computed: the response begins with what the engine makes of it.
        cached_tokens = min(num_hits, (len(prompt) - 1) // self.block_tokens) * self.block_tokens
        reservation = Reservation(
            hashes=hashes, num_private=num_private, cached_tokens=cached_tokens, adapter=adapter, salt=salt
        )
        self._tell_stored(reservation, prompt, hashes, 0 if report else num_hits)
        return reservation

    def release(self, reservation: Reservation, token_ids: Sequence[int]) -> None:
        """Give blocks back; full blocks of ``token_ids`` (prompt and response) stay cached while there is room.

        A prefix is evicted from its end: its last block is the one that was used least recently.
        """
        for block in reservation.hashes:
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
        self._num_private -= reservation.num_private
        mine = {"adapter": reservation.adapter, "salt": reservation.salt}
        hashes = block_hashes(token_ids, self.block_tokens, **mine)
        num_known = next((at for at, block in enumerate(hashes) if not self._has(block, reservation)), len(hashes))
        for block in reversed(hashes):
            if block not in self._held:
                self._idle.pop(block, None)
                self._idle[block] = None
        self._tell_stored(reservation, token_ids, hashes, num_known)
        self._evict()

    def evict_idle(self) -> None:
        """Evict everything that no running request holds."""
        removed = tuple(self._idle)
        self._idle.clear()
        if removed:
            self._on_event(BlocksRemoved(hashes=removed))

    def _has(self, block: bytes, reservation: Reservation) -> bool:
        return block in self._held or block in self._idle or block in reservation.hashes

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

    def _tell_stored(
        self, reservation: Reservation, token_ids: Sequence[int], hashes: tuple[bytes, ...], num_known: int
    ) -> None:
        if num_known == len(hashes):
            return
        start, end = num_known * self.block_tokens, len(hashes) * self.block_tokens
        starts = range(start, end, self.block_tokens)
        self._on_event(
            BlockStored(
                hashes=hashes[num_known:],
                parent=hashes[num_known - 1] if num_known else None,
                token_ids=tuple(token_ids[start:end]),
                block_tokens=self.block_tokens,
                extras=tuple(extras_of(at, reservation.adapter, reservation.salt) for at in starts),
            )
        )
