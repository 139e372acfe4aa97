"""The index of a node with more replicas than the table has slots."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from longboat.routing.prefixes.shared_index import SharedIndex

__all__ = ("OverflowIndex",)


class OverflowIndex:
    """An index with a slot for every replica.

    Those that come when the table is full get a slot outside it: what they hold stays unknown, and their load decides.
    """

    def __init__(self, table: SharedIndex, left_out: Callable[[str], None]) -> None:
        self._table = table
        self._limit = table.max_slots
        self._left_out = left_out  # gets the key of a replica that finds no slot in the table
        self._outside: dict[str, int] = {}  # their slots, in this process alone
        self._depths, self._place = table.depths, table.place  # which compiled code would look up at each call

    def __len__(self) -> int:
        return len(self._table)

    def slot_of(self, key: str) -> int:
        slot = self._outside.get(key)
        if slot is None:
            try:
                return self._table.slot_of(key)
            except IndexError:
                taken = set(self._outside.values())
                slot = self._outside[key] = next(at for at in count(self._limit) if at not in taken)
                self._left_out(key)
        return slot

    def depths(self, blocks: bytes, num_slots: int) -> list[int]:
        return self._depths(blocks, num_slots)

    def place(self, slot: int, blocks: bytes) -> None:
        if slot < self._limit:
            self._place(slot, blocks)

    def remove(self, slot: int, blocks: bytes) -> None:
        if slot < self._limit:
            self._table.remove(slot, blocks)

    def clear(self, slot: int) -> None:
        if slot < self._limit:
            self._table.clear(slot)

    def drop(self, slot: int) -> None:
        if slot < self._limit:
            self._table.drop(slot)
        else:
            self._outside = {key: other for key, other in self._outside.items() if other != slot}

    def tidy(self) -> None:
        """Clear what dropped slots left behind in the table; takes a pass over it."""
        self._table.tidy()
