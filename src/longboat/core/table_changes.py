"""Differences of endpoint tables, for receivers that have an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from longboat.core.states import Endpoint, EndpointTable

__all__ = ("TableKeeper", "TableSender", "TableUpdate")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpdate:
    """A step of one receiver's table: the whole table, or what changed since the one with the number ``base``."""

    epoch: str  # names one life of the sender; numbers are compared within it
    number: int  # of the table that results; 0: the sender does not number its tables
    base: int = 0  # number of the table that this one changes; 0: the update is whole
    # the rows that changed, or all of them; with everything of the table except endpoints
    table: EndpointTable
    slots: Mapping[str, int | None] = field(default_factory=dict)  # key → its capacity, where only that changed
    gone: tuple[str, ...] = ()  # keys of endpoints that left

    @property
    def is_whole(self) -> bool:
        return not self.base

    @property
    def is_empty(self) -> bool:
        """Whether the receiver has this table already."""
        return self.base == self.number


class TableSender:
    """Makes the updates of one receiver. It keeps the last table that it made an update of."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._number = 0
        self._last: EndpointTable | None = None

    @property
    def number(self) -> int:
        """The number of the newest table."""
        return self._number

    def update(self, table: EndpointTable, known: int) -> TableUpdate:
        """Return the update that brings a receiver to this table.

        known: number of the table that the receiver reported in this epoch; 0: none, so that it gets the whole one
        """
        last, base = self._last, self._number
        if last is not None and (last is table or last == table):
            table = last
        else:
            self._last, self._number = table, base + 1
        if last is None or not known or known != base:
            return TableUpdate(epoch=self._epoch, number=self._number, table=table)
        if table is last:
            return TableUpdate(epoch=self._epoch, number=base, base=base, table=replace(table, endpoints=()))
        return _difference(self._epoch, last, table, base)


class TableKeeper:
    """The receiver's side: the table as its sender made it, and its number."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.number = 0
        self.table: EndpointTable | None = None

    def take(self, update: TableUpdate) -> bool:
        """Take an update. Return False where it changes a table that is not the present one: the whole is needed."""
        if update.is_whole:
            self.epoch, self.number, self.table = update.epoch, update.number, update.table
            return True
        if self.table is None or update.epoch != self.epoch or update.base != self.number:
            return False
        if not update.is_empty:
            self.table = _changed(self.table, update)
            self.number = update.number
        return True

    def known_in(self, epoch: str) -> int:
        """Return the number of the table, for a sender of this epoch; 0: none of its tables."""
        return self.number if epoch == self.epoch else 0

    def whole(self) -> TableUpdate | None:
        """Return the table as a whole update, for a receiver that has none; None where there is no table."""
        if self.table is None or self.epoch is None:
            return None
        return TableUpdate(epoch=self.epoch, number=self.number, table=self.table)


def _difference(epoch: str, old: EndpointTable, new: EndpointTable, base: int) -> TableUpdate:
    """Return the step between two tables; the whole where endpoints stand in another order.

    Endpoints that did not change are usually the same objects, so most of them are compared by identity.
    """
    stay = {id(e) for e in old.endpoints} & {id(e) for e in new.endpoints}
    before = {e.key: e for e in old.endpoints if id(e) not in stay}
    made = {e.key: e for e in new.endpoints if id(e) not in stay}
    rows: list[Endpoint] = []
    slots: dict[str, int | None] = {}
    for key, endpoint in made.items():
        known = before.get(key)
        if known is not None and known != endpoint and replace(known, capacity=endpoint.capacity) == endpoint:
            slots[key] = endpoint.capacity
        elif known != endpoint:
            rows.append(endpoint)
    expected = [e if id(e) in stay else made.pop(e.key) for e in old.endpoints if id(e) in stay or e.key in made]
    if (*expected, *made.values()) != new.endpoints:
        return TableUpdate(epoch=epoch, number=base + 1, table=new)
    gone = tuple(key for key in before if key not in {e.key for e in new.endpoints if id(e) not in stay})
    changes = replace(new, endpoints=tuple(rows))
    return TableUpdate(epoch=epoch, number=base + 1, base=base, table=changes, slots=slots, gone=gone)


def _changed(old: EndpointTable, step: TableUpdate) -> EndpointTable:
    if not (step.table.endpoints or step.slots or step.gone):
        return replace(step.table, endpoints=old.endpoints)
    rows = {e.key: e for e in step.table.endpoints}
    gone = set(step.gone)
    kept = [_row(e, rows, step.slots) for e in old.endpoints if e.key not in gone]
    return replace(step.table, endpoints=(*kept, *rows.values()))


def _row(endpoint: Endpoint, rows: dict[str, Endpoint], slots: Mapping[str, int | None]) -> Endpoint:
    """Return an endpoint as it is now; one that did not change stays the same object."""
    key = endpoint.key
    if key in rows:
        return rows.pop(key)
    return replace(endpoint, capacity=slots[key]) if key in slots else endpoint
