"""How long a draining replica waits for its responses, and when other replicas resume them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longboat.core.states import Phase, ReplicaState, ResumeLevel

__all__ = ("DRAIN_S", "LeaveRules", "Leaving", "Stay")

DRAIN_S = 20.0
"""How long responses may take to end unless the file says otherwise."""

MOVE_S = 10.0
"""How long a replica waits until its responses have moved: each needs one prefill on another replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRules:
    """The limits of a drain, in seconds."""

    drain_s: float = DRAIN_S  # for responses that another replica can resume
    limit_s: float = DRAIN_S  # where no other replica of the same revision is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """How one draining replica stays."""

    patience_s: float  # seconds from now that the replica waits for its responses
    moving: bool  # whether other replicas are to resume them now


class Leaving:
    """The replicas that drain. The last one of a revision stays, since no other may resume its responses."""

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}
        self._moved_s: dict[str, float] = {}
        self.looked_s = 0.0
        self._heirs: dict[tuple[str, str, str], set[str]] = {}  # revision → ready replicas that resume its responses

    def look(
        self, states: Iterable[ReplicaState], rules: Callable[[ReplicaState], LeaveRules], now_s: float
    ) -> dict[str, Stay]:
        """Return draining replica → how it stays. states: all replicas of the fleet; rules: of one of them."""
        self.looked_s, states = now_s, tuple(states)
        leaving = {state.replica: state for state in states if state.phase is Phase.DRAINING}
        self._heirs = {}
        for state in states:
            if state.phase is Phase.READY and _resumes(state):
                self._heirs.setdefault(_revision(state), set()).add(state.replica)
        self._began_s = {replica: self._began_s.get(replica, now_s) for replica in leaving}
        self._moved_s = {replica: at_s for replica, at_s in self._moved_s.items() if replica in leaving}
        return {replica: self.stay(state, rules(state), now_s) for replica, state in leaving.items()}

    def stay(self, state: ReplicaState, rules: LeaveRules, now_s: float) -> Stay:
        """Return how a draining replica stays, by the other replicas of the last look."""
        waited_s = now_s - self._began_s.setdefault(state.replica, now_s)
        heirs = self._heirs.get(_revision(state), set())
        heirs.discard(state.replica)  # it was ready at the last look
        if not _resumes(state) or not heirs:
            self._moved_s.pop(state.replica, None)
            return Stay(patience_s=max(0.0, rules.limit_s - waited_s), moving=False)
        if waited_s < rules.drain_s:
            return Stay(patience_s=rules.drain_s - waited_s + MOVE_S, moving=False)
        moved_s = self._moved_s.setdefault(state.replica, now_s)
        return Stay(patience_s=max(0.0, moved_s + MOVE_S - now_s), moving=True)


def _resumes(state: ReplicaState) -> bool:
    return state.resume is not ResumeLevel.NONE


def _revision(state: ReplicaState) -> tuple[str, str, str]:
    """Return what two replicas have in common of which one resumes the other's responses."""
    return state.model, state.revision, state.revision or state.digest
