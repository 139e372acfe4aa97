"""Measures how long replicas take from the order to the first token, for each model and node. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from longboat.core.states import Phase, ReplicaState, StartTimes

__all__ = ("ColdStarts",)

LONGEST_S = 86_400.0
BEFORE_S = 15.0
"""What may pass at most between an order and the first phase of its replica, where there is room for it."""
NO_START = (Phase.PLACING.value, Phase.READY.value)
"""Phases that do not count as a start: in the first one, a replica waits for accelerators."""


class ColdStarts:
    """The newest start of each model on each node, and the orders whose replicas are not ready yet."""

    def __init__(self) -> None:
        self._ordered: dict[str, deque[float]] = {}  # model → when each replica was ordered, oldest first
        self._ready: set[str] = set()  # replicas whose start is measured
        self._measured: dict[str, dict[str, StartTimes]] = {}  # model → node → its newest start there
        self._newest: dict[str, float] = {}

    def ordered(self, model: str, before: int, after: int, now_s: float) -> None:
        """Note that a model is to have another number of replicas."""
        orders = self._ordered.setdefault(model, deque())
        orders.extend([now_s] * max(0, after - before))
        while len(orders) > after:
            orders.pop()

    def see(self, states: Iterable[ReplicaState], now_s: float) -> None:
        """Measure the replicas that became ready since the last call."""
        present = set()
        for state in states:
            present.add(state.replica)
            if state.phase is Phase.READY and state.replica not in self._ready:
                self._ready.add(state.replica)
                self._measure(state, now_s)
        self._ready &= present

    def shift(self, seconds: float) -> None:
        """Change the times of orders, because the clock was set."""
        self._ordered = {model: deque(at_s + seconds for at_s in orders) for model, orders in self._ordered.items()}

    def newest(self, model: str) -> float | None:
        """Return the newest measured seconds of a model; None where none was measured."""
        return self._newest.get(model)

    def by_node(self, model: str) -> dict[str, StartTimes]:
        """Return node → how long the newest start there took."""
        return dict(self._measured.get(model, {}))

    def waiting(self, model: str) -> tuple[float, ...]:
        """Return when each replica was ordered that is not ready yet, oldest first."""
        return tuple(self._ordered.get(model, ()))

    def _measure(self, state: ReplicaState, now_s: float) -> None:
        orders = self._ordered.get(state.model)
        phase_s = {phase: seconds for phase, seconds in state.phase_s.items() if phase not in NO_START}
        own_s = sum(phase_s.values())
        ready_s = min(now_s, (state.announced_at_s or now_s)) - state.phase_s.get(Phase.READY.value, 0.0)
        began_s = orders.popleft() if orders else ready_s - own_s
        seconds = min(LONGEST_S, max(own_s, min(ready_s - began_s, own_s + BEFORE_S)))
        self._newest[state.model] = round(seconds, 3)
        times = StartTimes(total_s=round(seconds, 3), phase_s=phase_s)
        self._measured.setdefault(state.model, {})[state.node] = times
