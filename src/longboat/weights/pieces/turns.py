"""What a node and the tracker say to each other: a node takes turns, and each turn reports and asks."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

__all__ = ("STORAGE", "Answer", "Done", "Failed", "Failure", "Inventory", "Order", "Turn")

STORAGE: Final = ""
"""The source of a piece that no node gives: the storage."""


class Failure(StrEnum):
    """Why a piece did not come."""

    LOST = "lost"  # the connection failed, or the other side does not have the piece
    WRONG = "wrong"  # its bytes have another hash
    REFUSED = "refused"  # the storage takes no request of this node


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A piece that arrived and was checked."""

    piece: int
    source: str  # address of the node that gave it; empty: the storage
    sha256: str  # in hexadecimal digits


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A piece that did not arrive."""

    piece: int
    source: str  # address of the node that was asked; empty: the storage
    why: Failure


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a node has, as it says when a tracker does not know the node."""

    hashes: dict[int, str]  # piece → SHA-256 in hexadecimal digits


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a node in the swarm of one model."""

    member: str  # HOST:PORT at which the node gives pieces
    num_pieces: int
    piece_bytes: int
    want: int = 0  # orders that the node has room for
    done: tuple[Done, ...] = ()
    failed: tuple[Failed, ...] = ()
    inventory: Inventory | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A piece that a node should fetch now."""

    piece: int
    source: str  # address of the node that gives it; empty: the storage
    sha256: str = ""  # hash that the bytes must have; empty: no node knows it yet


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The tracker's answer to a turn."""

    is_member: bool = True  # False: the tracker does not know the node, and the next turn should bring its inventory
    orders: tuple[Order, ...] = ()
    num_hungry: int = 0  # other nodes that still lack pieces
