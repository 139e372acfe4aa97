"""The newest looks of the scaler: what it saw and what it decided, so that a decision can be computed again. Pure."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from longboat.core.scaling import Decision, ModelObservation, ScaledModel

__all__ = ("History",)

MAX_LOOKS = 600
MAX_OBSERVATIONS = 20_000


class _Look(NamedTuple):
    at_s: float
    seen: tuple[ModelObservation, ...]
    replicas: dict[str, int]  # what was decided, by model
    room: Mapping[str, float] | None  # what all nodes have


class History:
    """The looks since the models or the counts were set from outside, of ten minutes at most."""

    def __init__(self) -> None:
        self._models: list[dict[str, Any]] = []
        self._counts: dict[str, int] = {}
        self._is_whole = True
        self._looks: deque[_Look] = deque()

    def begins(self, models: Sequence[ScaledModel], counts: Mapping[str, int], *, is_whole: bool = True) -> None:
        """Begin again with other models or counts. is_whole: the scaler knows nothing of any of them yet"""
        self._models = [dataclasses.asdict(model) for model in models]
        self._counts = dict(counts)
        self._looks.clear()
        self._is_whole = is_whole

    def adds(
        self,
        now_s: float,
        seen: Iterable[ModelObservation],
        decided: Iterable[Decision],
        room: Mapping[str, float] | None,
    ) -> None:
        """Add one look."""
        most = max(1, min(MAX_LOOKS, MAX_OBSERVATIONS // max(1, len(self._models))))
        self._is_whole = self._is_whole and len(self._looks) < most
        while len(self._looks) >= most:
            self._looks.popleft()
        self._looks.append(_Look(now_s, tuple(seen), {one.model: one.replicas for one in decided}, room))

    def copied(self) -> History:
        """Return a copy that another thread may read."""
        other = copy.copy(self)
        other._looks = self._looks.copy()
        return other

    def document(self) -> dict[str, Any]:
        """Return everything as values of JSON. is_whole: a new scaler decides the same from these looks"""
        return {
            "models": self._models,
            "counts": self._counts,
            "is_whole": self._is_whole,
            "looks": [
                {**look._asdict(), "seen": [dataclasses.asdict(one) for one in look.seen]} for look in self._looks
            ],
        }
