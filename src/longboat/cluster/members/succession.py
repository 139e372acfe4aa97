"""Which of several replicas that claim the same slot serves. Pure: the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.cluster.protocol.messages import Announcement
from longboat.core.states import Endpoint, Phase, ReplicaState

__all__ = ("SILENCE_S", "Member", "Succession")

SILENCE_S = 5.0
"""A replica that announced nothing for this long takes no new requests until it is heard again.

One that announces itself less often than once a second has that much longer: its node's relay watches it meanwhile.
"""


@dataclass(slots=True)
class Member:
    """One replica, as it was heard last."""

    announcement: Announcement
    heard_at_s: float
    order: float  # grows with every replica heard for the first time; seldom depends on the nodes' clocks
    was_lost: bool = False
    times_heard: int = 0
    doubted_at_s: float | None = None  # first heard beside a live newer generation in its slot
    is_settled: bool = False  # its place in the order is sure; generations say nothing more
    is_silent: bool = False  # at the last look
    is_unwatched: bool = False  # the node of its first rank left since it was heard, and its relay with it
    endpoint: Endpoint | None = None  # as made last; the same object while nothing of it changes

    @property
    def is_newcomer(self) -> bool:
        return not (self.was_lost or self.is_settled)

    @property
    def state(self) -> ReplicaState:
        return self.announcement.state

    @property
    def silence_s(self) -> float:
        return SILENCE_S if self.is_unwatched else SILENCE_S + max(0.0, self.announcement.every_s - 1.0)

    def is_heard(self, now_s: float) -> bool:
        return now_s - self.heard_at_s <= self.silence_s

    def lives(self, now_s: float) -> bool:
        return self.state.phase not in (Phase.FAILED, Phase.GONE) and self.is_heard(now_s)

    def serves(self, now_s: float) -> bool:
        """Return whether it answers requests. A draining replica does: its requests run on."""
        works = self.state.phase is Phase.READY or (self.state.phase is Phase.DRAINING and bool(self.state.url))
        return works and self.is_heard(now_s)


class Succession:
    """The order of replicas, and those that claim each slot."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, str, int], dict[str, Member]] = {}  # those that say they hold a slot
        self._order = 0

    def next_order(self) -> int:
        """Return the place of a replica that is heard for the first time."""
        self._order += 1
        return self._order

    def place(self, member: Member, announcement: Announcement) -> None:
        """Put a member among the holders of the slot that it announces now."""
        replica, old, new = announcement.state.replica, slot_of(member.announcement), slot_of(announcement)
        if old != new:
            self._unplace(replica, old)
        self._slots.setdefault(new, {})[replica] = member

    def _unplace(self, replica: str, slot: tuple[str, str, int]) -> None:
        holders = self._slots.get(slot, {})
        holders.pop(replica, None)
        if not holders:
            self._slots.pop(slot, None)

    def leave(self, member: Member) -> None:
        """Forget what a replica claims."""
        self._unplace(member.state.replica, slot_of(member.announcement))

    def settle(self, member: Member, now_s: float) -> None:
        """Find out whether a newcomer is an old replica that this controller, started since, never heard.

        It is one when a newer generation in its slot is heard between two of its announcements. Once is not enough:
        siblings swap slots, and a clock that is ahead makes a replica that just died look newer than its substitute.
        """
        newer = self._newer_generations(member, now_s)
        if newer and member.doubted_at_s is None:
            member.doubted_at_s = now_s
            member.order = min(other.order for other in newer) - 0.5
        elif newer:
            member.was_lost = any(other.heard_at_s > (member.doubted_at_s or 0.0) for other in newer)
        elif member.times_heard > 1:
            member.is_settled = True
            if member.doubted_at_s is not None:
                member.order = self.next_order()

    def _newer_generations(self, member: Member, now_s: float) -> list[Member]:
        return [r for r in self._rivals(member, now_s) if r.state.generation > member.state.generation]

    def _rivals(self, member: Member, now_s: float) -> list[Member]:
        """Return the live replicas of the same make that say they hold the same slot."""
        holders = self._slots.get(slot_of(member.announcement), {})
        return [other for other in holders.values() if other is not member and other.lives(now_s)]

    def is_held_back(self, member: Member, now_s: float) -> bool:
        """Return whether a replica may not serve now: it may be older than another that claims its slot."""
        doubtful = member.is_newcomer and bool(self._newer_generations(member, now_s))
        return doubtful or self.is_superseded(member, now_s)

    def is_superseded(self, member: Member, now_s: float) -> bool:
        """Return whether a newer replica has the slot. Only a lost one is: living siblings may swap slots."""
        return member.was_lost and any(other.order > member.order for other in self._rivals(member, now_s))


def slot_of(announcement: Announcement) -> tuple[str, str, int]:
    """Return what rivals have in common: replicas of the same make that say they hold the same slot."""
    return announcement.state.model, announcement.state.digest, announcement.slot
