"""The index of prefixes: which replica holds which block. This one is plain Python, and the oracle of the fast one."""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

from longboat.routing.prefixes.prompt import BLOCK_BYTES

__all__ = ("DictIndex", "PrefixIndex")

_LEAVE_TOGETHER: Final = 64
"""The part of a full index that leaves at once, as a divisor: a search for the oldest blocks passes over holes."""


class PrefixIndex(Protocol):
    """Which replica holds which block. Replicas are numbers from 0, *slots*, that their router gives out."""

    def slot_of(self, key: str) -> int:
        """Return the slot of a replica: an unused one where it has none yet. Raise IndexError where all are in use."""

    def depths(self, blocks: bytes, num_slots: int) -> list[int]:
        """Return, by slot, how many of a prompt's leading blocks each replica holds."""

    def place(self, slot: int, blocks: bytes) -> None:
        """Note that a replica holds these blocks, or will in a moment."""

    def remove(self, slot: int, blocks: bytes) -> None:
        """Note that a replica does not hold these blocks any more."""

    def clear(self, slot: int) -> None:
        """Forget all blocks of a replica that stays."""

    def drop(self, slot: int) -> None:
        """Forget a replica and all of its blocks."""


class DictIndex:
    """An index of at most ``max_blocks`` blocks; beyond that, those that were used least recently go first.

    A plain dict keeps its order too, and takes a third of the time of an ``OrderedDict``.
    """

    def __init__(self, max_blocks: int = 1_000_000) -> None:
        self._max_blocks = max_blocks
        self._holders: dict[bytes, int] = {}  # name of a block → bit set of slots; used least recently first
        self._slots: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def slot_of(self, key: str) -> int:
        slot = self._slots.get(key)
        if slot is None:
            taken = set(self._slots.values())
            slot = self._slots[key] = next(at for at in range(len(taken) + 1) if at not in taken)
        return slot

    def depths(self, blocks: bytes, num_slots: int) -> list[int]:
        found = [0] * num_slots
        holders = self._holders
        alive = (1 << num_slots) - 1
        depth = 0
        for at in range(0, len(blocks), BLOCK_BYTES):
            still = alive & holders.get(blocks[at : at + BLOCK_BYTES], 0)
            if still != alive:
                _note(found, alive & ~still, depth)
            if not still:
                return found
            alive = still
            depth += 1
        _note(found, alive, depth)
        return found

    def place(self, slot: int, blocks: bytes) -> None:
        holders, bit = self._holders, 1 << slot
        for at in range(0, len(blocks), BLOCK_BYTES):
            name = blocks[at : at + BLOCK_BYTES]
            slots = holders.get(name, 0)
            if slots:
                del holders[name]  # it becomes the last one
            holders[name] = slots | bit
        if len(holders) > self._max_blocks:
            leaving = len(holders) - self._max_blocks + self._max_blocks // _LEAVE_TOGETHER
            for name in list(islice(holders, leaving)):
                del holders[name]

    def remove(self, slot: int, blocks: bytes) -> None:
        holders, bit = self._holders, 1 << slot
        for at in range(0, len(blocks), BLOCK_BYTES):
            name = blocks[at : at + BLOCK_BYTES]
            rest = holders.get(name, 0) & ~bit
            if rest:
                holders[name] = rest
            else:
                holders.pop(name, None)

    def clear(self, slot: int) -> None:
        bit = 1 << slot
        for name, slots in list(self._holders.items()):
            if slots & bit:
                self.remove(slot, name)

    def drop(self, slot: int) -> None:
        self.clear(slot)
        self._slots = {key: other for key, other in self._slots.items() if other != slot}


def _note(found: list[int], slots: int, depth: int) -> None:
    """Set the depth of the slots in a bit set; those of depth 0 have it already."""
    if depth:
        bits = bin(slots)[:1:-1]  # the lowest first
        at = bits.find("1")
        while at >= 0:
            found[at] = depth
            at = bits.find("1", at + 1)
