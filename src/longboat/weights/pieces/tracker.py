"""The tracker: which node has which piece, and which piece a node fetches next and from where.

Each piece is read from the storage by one node, and reaches the others from nodes that have it. All state is soft:
a tracker that was lost is replaced by an empty one, and the nodes' next turns fill it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from longboat.weights.pieces.turns import STORAGE, Answer, Failed, Failure, Inventory, Order, Turn

__all__ = ("EXCLUDED_S", "StorageLimits", "Tracker")

SILENT_S: Final = 10.0
"""A node that takes no turn for this long is not a member any more; what it was reading is given to others."""
EXCLUDED_S: Final = 3.0
"""For this long a node is not sent again to a source that failed it."""
MOST_EXCLUDED_S: Final = 48.0
"""The exclusion of a node that fails another one doubles each time, up to this: one that hangs costs 10 s each time."""
MAX_UPLOADS: Final = 6
"""Pieces that one node gives at the same time."""
MAX_WRONG: Final = 3
"""A node that gave this many wrong pieces gives no more."""
SAMPLES: Final = 8
"""Pieces among which the rarest is taken: nearly as good as the rarest of all, and quick for any number of pieces."""
BURST_S: Final = 1.0
"""Seconds of the bandwidth limit that may be used at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLimits:
    """What the storage may be asked for by all nodes together."""

    requests: int = 16  # at the same time
    bytes_per_s: int | None = None  # None: no limit


@dataclass(slots=True)
class _Member:
    """A node in the swarm of one model."""

    heard_at_s: float
    have: int = 0  # bit i: piece i
    # pieces that it has with another hash than the known one: it neither gives them nor gets them
    other: dict[int, str] = field(default_factory=dict)
    wrong: int = 0  # pieces that it has, and that others are not sent to get: they came with wrong bytes
    orders: dict[int, str] = field(default_factory=dict)  # piece that it fetches now → source
    excluded: dict[str, float] = field(default_factory=dict)  # source → until when it is not sent there
    excluded_s: dict[str, float] = field(default_factory=dict)  # node → how long, since it last gave a piece
    num_wrong: int = 0  # wrong pieces that others got from it

    @property
    def holds(self) -> int:
        """The pieces that it does not fetch."""
        return self.have | _bits(self.other)

    @property
    def gives(self) -> int:
        """The pieces that others may get from it."""
        return 0 if self.num_wrong >= MAX_WRONG else self.have & ~self.wrong


class _Swarm:
    """The nodes that have or want one model."""

    def __init__(self, num_pieces: int) -> None:
        self.all = (1 << num_pieces) - 1
        self.members: dict[str, _Member] = {}
        self.hashes: dict[int, str] = {}
        self.num_holders = [0] * num_pieces  # of each piece

    def take_inventory(self, address: str, inventory: Inventory, now_s: float) -> None:
        self.forget(address)
        member = self.members[address] = _Member(heard_at_s=now_s)
        for piece, sha256 in inventory.hashes.items():
            self.has(member, piece, sha256)

    def has(self, member: _Member, piece: int, sha256: str) -> None:
        """Note a piece of a member. A hash that differs from the known one belongs to other bytes: it is not shared."""
        member.orders.pop(piece, None)
        if not self.knows(piece):
            return
        if 1 << piece & member.have:
            return
        member.other[piece] = sha256
        if piece not in self.hashes:  # others may have reported it while a wrong hash was known
            self.hashes[piece] = sha256
            holders = [one for one in self.members.values() if one.other.get(piece) == sha256]
        else:
            holders = [member] if self.hashes[piece] == sha256 else []
        for holder in holders:
            del holder.other[piece]
            holder.have |= 1 << piece
            self.num_holders[piece] += 1

    def knows(self, piece: int) -> bool:
        """Return whether the model has a piece of this number: a report may hold any."""
        return 0 <= piece < len(self.num_holders)

    def failed(self, member: _Member, failure: Failed, now_s: float) -> None:
        member.orders.pop(failure.piece, None)
        self.exclude(member, failure.source, now_s)
        if failure.why is not Failure.WRONG or not self.knows(failure.piece):
            return
        if failure.source == STORAGE:
            # A node says so of a whole file, too. Where its own piece is doubted already, others may have a right one.
            if not member.wrong & 1 << failure.piece:
                self.doubt(failure.piece)
        elif (giver := self.members.get(failure.source)) is not None:
            giver.num_wrong += 1
            giver.wrong |= 1 << failure.piece

    @staticmethod
    def exclude(member: _Member, source: str, now_s: float) -> None:
        """Send a member to other sources for a while. Requests that fail together count once."""
        if source != STORAGE and member.excluded.get(source, now_s) <= now_s:
            before_s = member.excluded_s.get(source, EXCLUDED_S / 2)
            member.excluded_s[source] = min(before_s * 2, MOST_EXCLUDED_S)
        member.excluded[source] = now_s + member.excluded_s.get(source, EXCLUDED_S)

    def doubt(self, piece: int) -> None:
        """Forget a hash that the storage's bytes do not have; the nodes that reported it do not give the piece."""
        self.hashes.pop(piece, None)
        for member in self.members.values():
            member.wrong |= member.have & 1 << piece

    def forget_silent(self, now_s: float) -> None:
        for address in [a for a, m in self.members.items() if now_s - m.heard_at_s > SILENT_S]:
            self.forget(address)

    def forget(self, address: str) -> None:
        if (member := self.members.pop(address, None)) is None:
            return
        for piece in range(len(self.num_holders)):
            self.num_holders[piece] -= member.have >> piece & 1

    def read_now(self) -> int:
        """Return the pieces that members are reading from the storage."""
        reading = 0
        for member in self.members.values():
            for piece, source in member.orders.items():
                if source == STORAGE:
                    reading |= 1 << piece
        return reading

    def num_uploads(self) -> dict[str, int]:
        """Return how many pieces each node is giving."""
        uploads = dict.fromkeys(self.members, 0)
        for member in self.members.values():
            for source in member.orders.values():
                if source in uploads:
                    uploads[source] += 1
        return uploads


class Tracker:
    """The tracker of all models. Its caller gives the time; one turn at a time."""

    def __init__(self, limits: StorageLimits, seed: int = 0) -> None:
        self.limits = limits
        self._random = random.Random(seed)
        self._swarms: dict[str, _Swarm] = {}
        self._allowance = float(limits.bytes_per_s or 0) * BURST_S  # bytes that the storage may be asked for now
        self._allowed_at_s: float | None = None

    def turn(self, key: str, turn: Turn, now_s: float) -> Answer:
        """Note what a node reports and return what it should fetch."""
        swarm = self._swarm(key, turn, now_s)
        if turn.inventory is not None:
            swarm.take_inventory(turn.member, turn.inventory, now_s)
        member = swarm.members.get(turn.member)
        if member is None:
            return Answer(is_member=False)
        member.heard_at_s = now_s
        for done in turn.done:
            swarm.has(member, done.piece, done.sha256)
            member.excluded_s.pop(done.source, None)
        for failure in turn.failed:
            swarm.failed(member, failure, now_s)
        orders = self._orders(swarm, turn, member, now_s)
        others = (other for other in swarm.members.values() if other is not member)
        return Answer(orders=orders, num_hungry=sum(1 for other in others if other.holds != swarm.all))

    def holders(self, key: str) -> dict[str, int]:
        """Return the number of pieces that each member of a swarm has."""
        swarm = self._swarms.get(key)
        return {address: m.have.bit_count() for address, m in swarm.members.items()} if swarm else {}

    def _swarm(self, key: str, turn: Turn, now_s: float) -> _Swarm:
        for name, swarm in list(self._swarms.items()):
            swarm.forget_silent(now_s)
            if not swarm.members:  # also of this model: what its nodes reported may be wrong
                del self._swarms[name]
        return self._swarms.setdefault(key, _Swarm(turn.num_pieces))

    def _orders(self, swarm: _Swarm, turn: Turn, member: _Member, now_s: float) -> tuple[Order, ...]:
        member.excluded = {source: until_s for source, until_s in member.excluded.items() if until_s > now_s}
        orders = self._from_storage(swarm, turn, member, now_s)
        if len(orders) < turn.want:
            orders += self._from_nodes(swarm, turn.member, member, turn.want - len(orders))
        return tuple(orders)

    def _from_storage(self, swarm: _Swarm, turn: Turn, member: _Member, now_s: float) -> list[Order]:
        """Order pieces that no node gives: at most this member's share of the storage's limits."""
        if STORAGE in member.excluded:
            return []
        given = self._reachable(swarm, member)
        candidates = swarm.all & ~member.holds & ~_bits(member.orders) & ~given & ~swarm.read_now()
        own = sum(1 for source in member.orders.values() if source == STORAGE)
        hungry = sum(1 for other in swarm.members.values() if other.holds != swarm.all)
        share = max(1, self.limits.requests // max(1, hungry)) - own
        room = min(turn.want, share, self.limits.requests - self._num_reading())
        orders: list[Order] = []
        while candidates and len(orders) < room and self._may_read(turn.piece_bytes, now_s):
            piece = self._some_bit(candidates)
            candidates &= ~(1 << piece)
            member.orders[piece] = STORAGE
            orders.append(Order(piece=piece, source=STORAGE, sha256=swarm.hashes.get(piece, "")))
        return orders

    def _from_nodes(self, swarm: _Swarm, address: str, member: _Member, room: int) -> list[Order]:
        """Order the rarest of some pieces that other nodes have, each from the node that gives least."""
        uploads = swarm.num_uploads()
        missing = swarm.all & ~member.holds & ~_bits(member.orders)
        free = {
            other: gives
            for other, found in swarm.members.items()
            if other != address and uploads[other] < MAX_UPLOADS and other not in member.excluded
            if (gives := found.gives & missing)
        }
        orders: list[Order] = []
        given = _union(free.values())
        while given and len(orders) < room:
            samples = {self._some_bit(given) for _ in range(SAMPLES)}
            piece = min(sorted(samples), key=swarm.num_holders.__getitem__)
            holders = [other for other, gives in free.items() if gives >> piece & 1]
            source = min(holders, key=lambda other: (uploads[other], self._random.random()))
            uploads[source] += 1
            member.orders[piece] = source
            orders.append(Order(piece=piece, source=source, sha256=swarm.hashes[piece]))
            given &= ~(1 << piece)
            if uploads[source] >= MAX_UPLOADS:
                del free[source]
                given &= _union(free.values())
        return orders

    def _reachable(self, swarm: _Swarm, member: _Member) -> int:
        """Return the pieces that other nodes give this one, now or soon."""
        given = 0
        for address, other in swarm.members.items():
            if other is not member and address not in member.excluded:
                given |= other.gives
        return given

    def _num_reading(self) -> int:
        orders = (m.orders.values() for swarm in self._swarms.values() for m in swarm.members.values())
        return sum(1 for sources in orders for source in sources if source == STORAGE)

    def _may_read(self, num_bytes: int, now_s: float) -> bool:
        """Take a piece from the storage's bandwidth, where there is any left."""
        limit = self.limits.bytes_per_s
        if limit is None:
            return True
        elapsed_s = now_s - self._allowed_at_s if self._allowed_at_s is not None else 0.0
        self._allowed_at_s = now_s
        self._allowance = min(limit * BURST_S, self._allowance + elapsed_s * limit)
        if self._allowance <= 0:
            return False
        self._allowance -= num_bytes
        return True

    def _some_bit(self, bits: int) -> int:
        """Return the position of one of the bits, at random."""
        start = self._random.randrange(bits.bit_length())
        above = bits >> start  # never 0: the highest bit is in it
        return start + (above & -above).bit_length() - 1


def _bits(pieces: Iterable[int]) -> int:
    bits = 0
    for piece in pieces:
        bits |= 1 << piece
    return bits


def _union(sets: Iterable[int]) -> int:
    bits = 0
    for one in sets:
        bits |= one
    return bits
