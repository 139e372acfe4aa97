"""What people and metrics see of the numbers of replicas: who wants which since when, the newest decisions. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Container
from dataclasses import replace
from typing import Any

from longboat.cluster.counts.by_hand import Hold
from longboat.cluster.protocol.messages import ModelCount
from longboat.core.scaling import Decision, ScaledModel

__all__ = ("MAX_DECISIONS", "CountBook")

MAX_DECISIONS = 200


class CountBook:
    """The newest number of each model, and the newest decisions."""

    def __init__(self) -> None:
        self._counts: dict[str, ModelCount] = {}
        self._decisions: deque[dict[str, Any]] = deque(maxlen=MAX_DECISIONS)
        self._raised: Counter[str] = Counter()  # model → how often its number was raised
        self._lowered: Counter[str] = Counter()
        self._places: dict[str, str] = {}  # model → why its newest replicas went to some nodes

    @property
    def counts(self) -> dict[str, ModelCount]:
        """Return model → its number, for people."""
        return dict(self._counts)

    @property
    def decisions(self) -> tuple[dict[str, Any], ...]:
        """Return the newest changes, oldest first."""
        return tuple(self._decisions)

    def figures(self) -> dict[str, dict[str, float]]:
        """Return the figures of each model's count, for metrics."""
        return {name: self._figures(name, count) for name, count in self._counts.items()}

    def _figures(self, name: str, count: ModelCount) -> dict[str, float]:
        start = {} if count.cold_start_s is None else {"cold_start_s": count.cold_start_s}
        return {
            "wanted": count.wanted,
            "minimum": count.minimum,
            "maximum": count.maximum,
            "by_hand": float(count.by not in ("file", "scaling")),
            "paused": float(count.paused),
            "unplaced": count.unplaced,
            "raised": self._raised[name],
            "lowered": self._lowered[name],
            **start,
        }

    def keep(self, models: Container[str]) -> None:
        """Forget all other models."""
        self._counts = {name: count for name, count in self._counts.items() if name in models}

    def note(
        self,
        decision: Decision,
        model: ScaledModel,
        hold: Hold,
        now_s: float,
        in_force: int,
        cold_start_s: float | None,
    ) -> None:
        """Note a decision. It is news where its number is another one than before; at first, than Serve's."""
        name = decision.model
        follows = model.max_replicas > model.min_replicas or bool(model.schedule)
        by = hold.by if hold.paused or hold.asked is not None else "scaling" if follows else "file"
        old = self._counts.get(name)
        is_same = old is not None and (old.wanted, old.by, old.paused) == (decision.replicas, by, hold.paused)
        held_s = hold.since_s if by == hold.by else now_s
        self._counts[name] = ModelCount(
            wanted=decision.replicas,
            by=by,
            since_s=old.since_s if old is not None and is_same else held_s,
            seen_s=now_s,
            held_s=hold.since_s,
            why=decision.reason,
            minimum=model.min_replicas,
            maximum=model.max_replicas,
            paused=hold.paused,
            cold_start_s=cold_start_s,
            placement=self._places.get(name, ""),
        )
        if decision.replicas != (before := in_force if old is None else old.wanted):
            document = dataclasses.asdict(decision)
            (self._raised if decision.replicas > before else self._lowered)[name] += 1
            self._decisions.append({**document, "before": before, "by": by})

    def placed(self, model: str, reason: str) -> None:
        """Note why the newest replicas of a model go to some nodes; empty: they go anywhere."""
        if model not in self._counts:  # it left the fleet meanwhile
            return
        self._places[model] = reason
        self._counts[model] = replace(self._counts[model], placement=reason)
        if newest := next((one for one in reversed(self._decisions) if one["model"] == model), None):
            newest["placement"] = reason

    def lacks(self, model: str, replicas: int, problem: str) -> None:
        """Note that some wanted replicas of a model find no room, and why."""
        self._counts[model] = replace(self._counts[model], unplaced=replicas, problem=problem)
