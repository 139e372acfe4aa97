"""Exchanges of a model's replicas for others: are they done, is there no room, must they be taken back. Pure.

Serve does the exchange itself, replica by replica. What it does not do is to go back: it stops trying, and leaves the
model with what was not exchanged yet.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from longboat.cluster.protocol.messages import Announcement
from longboat.core.states import Phase, ReplicaState

__all__ = ("FAILURES", "SERVED_S", "Rollout", "Rollouts", "Step", "StepKind", "read_rollouts")

FAILURES = 3
"""An update is rolled back after this number of replicas did not start."""

SERVED_S = 60.0
"""A replica that was ready for this long did start: the update is not to blame for what ended it later."""

PLACE_S = 30.0
"""A replica without a place after this time gets the place of an old one."""


class StepKind(enum.StrEnum):
    """What is to be done about an update."""

    DONE = "done"
    ONE_BY_ONE = "one by one"
    TAKE_BACK = "take back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do now. why: the reason, for people, where an update is rolled back"""

    kind: StepKind
    model: str
    digest: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """An update in progress.

    digest: of what replicas are exchanged for; previous: the model's application before; surge: a new replica starts
    before an old one ends; ready_s: longest time between one new replica that is ready and the next
    """

    model: str
    digest: str
    previous: Mapping[str, Any]
    replicas: int
    surge: bool
    ready_s: float


@dataclass(slots=True)
class _Seen:
    """What was seen of one update.

    ready_s: new replica → since when it was ready; failed: replica → why
    placed_s: when a new replica last had, or got, a place
    """

    since_s: float
    placed_s: float
    num_ready: int = 0
    ready_s: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Rollouts:
    """All updates of a fleet. A restarted controller counts from zero."""

    def __init__(self) -> None:
        self._rollouts: tuple[Rollout, ...] = ()
        self._seen: dict[tuple[str, str], _Seen] = {}

    def take(self, rollouts: Iterable[Rollout], now_s: float) -> None:
        """Take over the updates in progress."""
        self._rollouts = tuple(rollouts)
        names = [(r.model, r.digest) for r in self._rollouts]
        self._seen = {name: self._seen.get(name) or _Seen(now_s, now_s) for name in names}

    def hear(self, announcement: Announcement, now_s: float) -> None:
        """Take in what a supervisor says."""
        state = announcement.state
        seen = self._seen.get((state.model, state.digest))
        if seen is None:
            return
        if state.phase is Phase.READY:
            seen.ready_s.setdefault(state.replica, now_s)
        elif state.phase is Phase.FAILED and now_s - seen.ready_s.get(state.replica, now_s) < SERVED_S:
            seen.failed[state.replica] = _why(announcement)

    def steps(
        self, states: Iterable[ReplicaState], now_s: float, wanted: Mapping[str, int] = MappingProxyType({})
    ) -> list[Step]:
        """Return what is to be done now.

        states: all replicas of the fleet; wanted: model → replicas, where that is not as when the update began
        """
        states = tuple(states)
        rollouts = [replace(one, replicas=wanted.get(one.model, one.replicas)) for one in self._rollouts]
        found = (self._step(rollout, states, now_s) for rollout in rollouts)
        return [step for step in found if step is not None]

    def _step(self, rollout: Rollout, states: Iterable[ReplicaState], now_s: float) -> Step | None:
        seen = self._seen[rollout.model, rollout.digest]
        step = _steps_of(rollout)
        mine = [state for state in states if state.model == rollout.model]
        new = [state for state in mine if state.digest == rollout.digest]
        num_ready = sum(state.phase is Phase.READY for state in new)
        if num_ready > seen.num_ready:
            seen.num_ready, seen.since_s = num_ready, now_s
        if len(seen.failed) >= FAILURES:
            return step(StepKind.TAKE_BACK, f"{len(seen.failed)} replicas failed: {list(seen.failed.values())[-1]}")
        if num_ready >= rollout.replicas and all(s.digest == rollout.digest or _is_over(s) for s in mine):
            return step(StepKind.DONE)
        waited_s = now_s - seen.since_s
        if waited_s > rollout.ready_s and num_ready < rollout.replicas:
            if num_ready and not seen.failed and all(s.phase is Phase.READY for s in new if not _is_over(s)):
                left = [state for state in mine if state.digest != rollout.digest and not _is_over(state)]
                if not left:
                    return step(StepKind.DONE)  # nothing is left to exchange, and the missing ones have no place
                if all(state.phase is Phase.DRAINING for state in left):
                    seen.since_s = now_s  # a missing one may get their places
                    return None
            return step(StepKind.TAKE_BACK, f"no further replica was ready within {rollout.ready_s:.0f} s")
        return step(StepKind.ONE_BY_ONE) if rollout.surge and _lacks_room(seen, rollout, mine, now_s) else None


def _lacks_room(seen: _Seen, rollout: Rollout, mine: Iterable[ReplicaState], now_s: float) -> bool:
    """Return whether no place was found for one replica more. Where new ones fail, places are not what is missing."""
    for state in mine:
        is_new = state.digest == rollout.digest
        if state.phase is Phase.DRAINING or (is_new and not _is_over(state) and state.phase is not Phase.READY):
            seen.placed_s = now_s
    missing = seen.num_ready < rollout.replicas
    return missing and not seen.failed and now_s - max(seen.placed_s, seen.since_s) > PLACE_S


def read_rollouts(values: Mapping[str, Any]) -> list[Rollout]:
    """Read the updates in the controller's values (``serve_config.controller_document``)."""
    rules = values.get("updates", {})
    return [
        Rollout(
            model=model,
            digest=entry["digest"],
            previous=entry["previous"],
            replicas=int(rules[model]["replicas"]),
            surge=bool(entry["surge"]),
            ready_s=float(rules[model]["ready_s"]),
        )
        for model, entry in values.get("rollouts", {}).items()
        if model in rules
    ]


def _steps_of(rollout: Rollout) -> Callable[..., Step]:
    def step(kind: StepKind, why: str = "") -> Step:
        return Step(kind=kind, model=rollout.model, digest=rollout.digest, why=why)

    return step


def _is_over(state: ReplicaState) -> bool:
    return state.phase in (Phase.FAILED, Phase.GONE)


def _why(announcement: Announcement) -> str:
    words = [announcement.state.detail, *(line for line in announcement.log_tail if line.strip())]
    return "; ".join(dict.fromkeys(word.strip() for word in (words[0], words[-1]) if word.strip()))[:1000]
