"""The number of replicas of each model: observed once a second, decided by the scaler, applied by the controller. Pure.

The numbers in force are Serve's own, so that a controller that starts again continues with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from longboat.cluster.counts.book import CountBook
from longboat.cluster.counts.by_hand import Hold, read_holds
from longboat.cluster.counts.cold_starts import ColdStarts
from longboat.cluster.counts.history import History
from longboat.cluster.counts.room import missing_label, missing_nodes, room_of, taken_by
from longboat.cluster.counts.tally import Tally
from longboat.core.scaling import Decision, ModelObservation, ScaledModel, StartingReplica
from longboat.core.states import Asleep, Phase, ReplicaState, StartTimes
from longboat.gateway.records.metrics import ITL_BOUNDS_S, REQUEST_BOUNDS_S
from longboat.scaling.scaler import Scaler

__all__ = ("Change", "CountKeeper")

PLACE_S = 15.0
"""A wanted replica that is not heard of after this time found no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A number of replicas that Serve is to have from now on."""

    model: str
    replicas: int
    why: str


class CountKeeper:  # size: observations, decisions and what they lead to depend on each other
    """The counts of one fleet. Times are Unix seconds."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._models: dict[str, ScaledModel] = {}
        self._holds: dict[str, Hold] = {}
        self._scaler: Scaler | None = None
        self._in_force: dict[str, int] = {}  # what Serve has, as far as is known
        self._bundles: dict[str, list[dict[str, float]]] = {}  # model → what a replica takes of each of its nodes
        self._labels: dict[str, list[dict[str, str]]] = {}  # model → what each of a replica's nodes must carry
        self._short_since_s: dict[str, float] = {}  # model → since when some wanted replicas are not heard of
        self._starts = ColdStarts()
        self._asked: set[str] = set()  # sleeping models that a request asked for since the last look
        self._updating: frozenset[str] = frozenset()  # models whose replicas are exchanged now
        self._unproven: set[str] = set()  # models that were deployed or woken, and had no ready replica yet
        self._adopts = True  # Serve's numbers count, as a command may have changed them
        self._observed_s: float | None = None
        self.short: dict[str, int] = {}  # model → replicas with and without room, while some model's find none
        self.has_asked = False  # whether Ray's autoscaler was asked for nodes for them
        self.book = CountBook()
        self.history = History()

    def take(self, models: Sequence[ScaledModel], values: Mapping[str, Any]) -> None:
        """Take over a fleet. values: the controller's"""
        before, self._models = self._models, {m.name: self._with_takes(m) for m in models if m.max_replicas > 0}
        self._holds = read_holds(values)
        self._updating = frozenset(values.get("rollouts", {}))
        self._adopts = True
        self.book.keep(self._models)
        if self._scaler is not None and self._models != before:
            self._scaler.replace(tuple(self._models.values()))
            self.history.begins(tuple(self._models.values()), self._in_force, is_whole=False)

    def _with_takes(self, model: ScaledModel) -> ScaledModel:
        return replace(model, takes=taken_by(self._bundles.get(model.name, ())))

    @property
    def models(self) -> Mapping[str, ScaledModel]:
        return self._models

    @property
    def start_times(self) -> Mapping[str, Mapping[str, StartTimes]]:
        """Return model → node → how long its newest start there took."""
        return {name: times for name in self._models if (times := self._starts.by_node(name))}

    @property
    def is_complete(self) -> bool:
        """Whether Serve's number is known for every model."""
        return self._models.keys() <= self._in_force.keys()

    def found(
        self,
        in_force: Mapping[str, int],
        bundles: Mapping[str, list[dict[str, float]]] = MappingProxyType({}),
        labels: Mapping[str, list[dict[str, str]]] = MappingProxyType({}),
    ) -> None:
        """Take in what Serve has.

        in_force: model → replicas; bundles, labels: model → what one takes of each of its nodes, and asks of it
        """
        self._bundles, self._labels = dict(bundles), dict(labels)
        self._models = {name: self._with_takes(model) for name, model in self._models.items()}
        before, self._in_force = self._in_force, dict(in_force)
        deployed = {name for name in in_force if name in self._models and (self._adopts or name not in before)}
        self._adopts = False
        models = tuple(self._models.values())
        if self._scaler is None:
            self._scaler = Scaler(models, counts=self._in_force)
            self.history.begins(models, self._in_force)
        self._scaler.replace(models, counts=self._in_force)
        counts = self.book.counts
        changed = {name for name in deployed if name in counts and counts[name].wanted != in_force[name]}
        if changed:
            self._scaler.replace([model for model in models if model.name not in changed])
            self._scaler.replace(models, counts=self._in_force)
            self.history.begins(models, self._in_force, is_whole=len(changed) == len(models))
        self._unproven |= {name for name in deployed if in_force[name] and (name in changed or name not in before)}

    def woken(self, models: Iterable[str]) -> list[str]:
        """Take in that requests wait for sleeping models; return those that this is news for.

        A model whose first replica was ordered already is not among these.
        """
        asleep = (model for model in models if model in self._models and not self._in_force.get(model, 0))
        news = [model for model in asleep if model not in self._asked]
        self._asked.update(news)
        return news

    def look(
        self,
        states: Iterable[ReplicaState],
        now_s: float,
        *,
        partial: bool,
        nodes: Sequence[Mapping[str, float]] = (),
        labels: Sequence[Mapping[str, str]] = (),
    ) -> list[Change]:
        """Observe, decide, and return what Serve is to be asked for.

        states: all replicas; partial: more of them may live than this controller has heard
        nodes, labels: what each node has, and carries
        """
        states = tuple(states)
        self._starts.see(states, now_s)
        self._unproven -= {state.model for state in states if state.phase is Phase.READY}
        if self._scaler is None:
            return []
        seconds = 1.0 if self._observed_s is None else max(0.001, now_s - self._observed_s)
        self._observed_s = now_s
        names = [name for name in self._models if name in self._in_force]
        seen = [self._observation(name, states, now_s, seconds) for name in names]
        self._asked.clear()
        if partial:  # of a model with replicas, not all are heard yet
            seen = [one for one in seen if self._in_force[one.model] == 0 or one.paused or one.asked is not None]
        self._scaler.observe(now_s, seen)
        room = room_of(nodes) if nodes else None
        decided = {one.model: one for one in self._scaler.decide(now_s, room)}
        self.history.adds(now_s, seen, decided.values(), room)
        unplaced = {name: 0 if partial else self._unplaced(name, states, now_s) for name in names}
        lacks = any(unplaced[name] or decided[name].short for name in names)
        self.short = {name: decided[name].replicas + decided[name].short for name in names} if lacks else {}
        changes = [self._change(decided[name], now_s, unplaced[name], nodes, labels) for name in names]
        return [change for change in changes if change is not None]

    def more_in(self, change: Change) -> int:
        """Return how many replicas a change adds; negative where it removes some."""
        return change.replicas - self._in_force.get(change.model, 0)

    def applied(self, change: Change, now_s: float) -> None:
        """Note that Serve took a change."""
        before = self._in_force.get(change.model, 0)
        self._in_force[change.model] = change.replicas
        self._starts.ordered(change.model, before, change.replicas, now_s)
        if not change.replicas:
            self._unproven.discard(change.model)
        elif not before:
            self._unproven.add(change.model)

    def asleep(self, states: Iterable[ReplicaState]) -> dict[str, Asleep]:
        """Return how models sleep that have no ready replica, and may have none. Others are awake."""
        awake = {state.model for state in states if state.phase is Phase.READY}
        return {
            name: self._asleep(model)
            for name, model in self._models.items()
            if name not in awake and name in self._in_force and self._may_sleep(model)
        }

    def _may_sleep(self, model: ScaledModel) -> bool:
        return model.min_replicas == 0 or self._hold(model.name).paused or self._in_force.get(model.name) == 0

    def _asleep(self, model: ScaledModel) -> Asleep:
        orders = self._starts.waiting(model.name)
        runs = self._in_force.get(model.name, 0) > 0
        return Asleep(
            paused=self._hold(model.name).paused,
            cold_start_s=self._starts.newest(model.name),
            ordered_s=orders[0] if orders and runs else None,
        )

    def shift(self, seconds: float) -> None:
        """Note that the wall clock was set. Decisions begin again with the numbers in force."""
        self._starts.shift(seconds)
        self._short_since_s.clear()
        self._observed_s = None
        if self._scaler is not None:
            models = tuple(self._models.values())
            self._scaler = Scaler(models, counts=self._in_force)
            self.history.begins(models, self._in_force)

    def _hold(self, model: str) -> Hold:
        return self._holds.get(model, Hold())

    def _observation(self, name: str, states: Sequence[ReplicaState], now_s: float, seconds: float) -> ModelObservation:
        tally, hold = self.tally.take(name), self._hold(name)
        is_awaited = name in self._asked or name in self._updating or name in self._unproven
        grown = {field: int(value) for field, value in tally.grown.items()}
        mine = [state for state in states if state.model == name]
        ready = sum(state.phase is Phase.READY for state in mine)
        missing = max(0, self._in_force[name] - ready)
        orders = self._starts.waiting(name)
        ages = [now_s - at_s for at_s in orders[:missing]] + [0.0] * max(0, missing - len(orders))
        return ModelObservation(
            model=name,
            seconds=seconds,
            arrived=max(grown.get("arrived", 0), 1 if name in self._asked else 0),
            prompt_tokens=grown.get("prompt_tokens", 0),
            cached_tokens=grown.get("cached_tokens", 0),
            output_tokens=grown.get("completion_tokens", 0),
            ended=grown.get("ended", 0),
            lengths=tally.lengths(),
            running=tally.running,
            waiting=max(tally.waiting, 1 if is_awaited else 0),  # a command waits for its replica as a request does
            ready=ready,
            starting=tuple(StartingReplica(age_s=age_s) for age_s in ages),
            draining=sum(state.phase is Phase.DRAINING for state in mine),
            latencies=tally.latencies(REQUEST_BOUNDS_S, ITL_BOUNDS_S, self._models[name].target),
            cold_start_s=self._starts.newest(name),
            paused=hold.paused,
            asked=hold.asked,
        )

    def _unplaced(self, name: str, states: Sequence[ReplicaState], now_s: float) -> int:
        """Return the wanted replicas that found no room: they are not heard of for some time."""
        living = sum(s.model == name and s.phase not in (Phase.GONE, Phase.DRAINING) for s in states)
        missing = self._in_force[name] - living
        if missing <= 0:
            self._short_since_s.pop(name, None)
            return 0
        return missing if now_s - self._short_since_s.setdefault(name, now_s) >= PLACE_S else 0

    def _change(
        self,
        decision: Decision,
        now_s: float,
        unplaced: int,
        nodes: Sequence[Mapping[str, float]],
        labels: Sequence[Mapping[str, str]],
    ) -> Change | None:
        name = decision.model
        decision = self._with_minimum(decision)
        self.book.note(
            decision, self._models[name], self._hold(name), now_s, self._in_force[name], self._starts.newest(name)
        )
        if missing := max(unplaced, decision.short):
            label = missing_label(self._labels.get(name, ()), labels) if labels else ""
            num_nodes = missing_nodes(missing, self._bundles.get(name, ()), nodes)
            problem = _no_room(missing, f"a node with {label}" if label else _more_like_the_largest(num_nodes))
            problem += "; Ray's autoscaler was asked for nodes" if self.has_asked else ""
            self.book.lacks(name, missing, problem)
        if decision.replicas == self._in_force[name]:
            return None
        return Change(model=name, replicas=decision.replicas, why=decision.reason)

    def _with_minimum(self, decision: Decision) -> Decision:
        """Return a decision that lacks room, but not below the model's minimum: Serve waits for a place for that."""
        least = min(self._models[decision.model].min_replicas, decision.replicas + decision.short)
        return replace(decision, replicas=max(decision.replicas, least))


def _no_room(num_replicas: int, needed: str) -> str:
    what = "1 replica finds no room" if num_replicas == 1 else f"{num_replicas} replicas find no room"
    return f"{what}: needs {needed}" if needed else what


def _more_like_the_largest(num_nodes: int) -> str:
    return f"{num_nodes} more node{'s' if num_nodes > 1 else ''} like the largest one" if num_nodes else ""
