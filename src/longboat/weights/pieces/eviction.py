"""Which weights leave a node's disk so that others have room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat.core.errors import ClusterError
from longboat.core.sizes import readable_size

__all__ = ("Room", "StoredSize", "choose_evictions")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSize:
    """What one model takes on the disk."""

    key: str
    num_bytes: int
    used_at_s: float  # time of the last use, in seconds since 1970
    is_pinned: bool  # whether a process uses it, or fetches it


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room of a node's disk."""

    free_bytes: int  # of the file system
    budget_bytes: int | None = None  # for all weights together; None: what the disk has
    spare_bytes: int = 0  # that weights leave free


def choose_evictions(stored: Sequence[StoredSize], need_bytes: int, room: Room) -> tuple[str, ...]:
    """Return what must go before ``need_bytes`` more are written: the least recently used first, no more than needed.

    Raises ClusterError where even everything that may go is not enough; then nothing should go.
    """
    missing = _missing_bytes(sum(entry.num_bytes for entry in stored), need_bytes, room)
    chosen = []
    for entry in sorted(stored, key=lambda entry: entry.used_at_s):
        if missing <= 0:
            break
        if not entry.is_pinned and entry.num_bytes:
            chosen.append(entry.key)
            missing -= entry.num_bytes
    if missing > 0:
        raise _too_full(stored, need_bytes, missing, room)
    return tuple(chosen)


def _missing_bytes(used: int, need: int, room: Room) -> int:
    on_disk = need - max(0, room.free_bytes - room.spare_bytes)
    in_budget = need + used - room.budget_bytes if room.budget_bytes is not None else 0
    return max(on_disk, in_budget)


def _too_full(stored: Sequence[StoredSize], need: int, missing: int, room: Room) -> ClusterError:
    pinned = sum(entry.num_bytes for entry in stored if entry.is_pinned)
    limit = f", the budget is {readable_size(room.budget_bytes)}" if room.budget_bytes is not None else ""
    return ClusterError(
        f"the disk is too full for {readable_size(need)} of weights: {readable_size(missing)} are missing "
        f"({readable_size(max(0, room.free_bytes))} free{limit}, weights in use take {readable_size(pinned)})",
        hint="raise weights.disk, free the disk, or put LONGBOAT_HOME on a larger one",
    )
