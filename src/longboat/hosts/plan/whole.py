"""Whether a fleet has its replicas again, from the document of ``longboat status --json``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

__all__ = ("lacking", "living_replicas")


def living_replicas(document: Mapping[str, Any]) -> dict[str, int]:
    """Return how many replicas of each model are ready, those included of which a part is silent right now."""
    return _counted(document, "ready", "suspect")


def lacking(before: Mapping[str, int], document: Mapping[str, Any]) -> dict[str, int]:
    """Return how many replicas each model lacks of those that lived before and are still wanted."""
    ready, wanted = _counted(document, "ready"), document["wanted"]
    needed = {model: min(number, wanted.get(model, 0)) for model, number in before.items()}
    return {model: number - ready.get(model, 0) for model, number in needed.items() if number > ready.get(model, 0)}


def _counted(document: Mapping[str, Any], *phases: str) -> dict[str, int]:
    return dict(Counter(replica["model"] for replica in document["replicas"] if replica["phase"] in phases))
