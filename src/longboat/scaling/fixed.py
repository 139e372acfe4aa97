"""A count that no load changes."""

from __future__ import annotations

from longboat.core.scaling import ModelObservation
from longboat.scaling.rule import Rule, Want

__all__ = ("FixedRule",)


class FixedRule(Rule):
    """Wants the model's minimum; the schedule may raise it."""

    def __init__(self, replicas: int) -> None:
        self._want = Want(replicas=replicas, reason="the file says so")

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Ignore the load."""

    def want(self, now_s: float, current: int) -> Want:
        """Return the count of the file."""
        return self._want
