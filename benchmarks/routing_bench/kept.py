"""Runs that were made before: a peer's figures do not change while our policy does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kept_values import KeptValues

from routing_bench.stand import Figures, figures_document

__all__ = ("Kept",)

OURS = "cost"


class Kept:
    """Figures by a description of their run."""

    def __init__(self, path: Path | None) -> None:
        self._values = KeptValues(path)

    def get(self, run: str, policy: str, make: Callable[[], Figures]) -> Figures:
        """Return kept figures of a peer, or make them."""
        key = f"{policy} {run}"
        return Figures(**self._values.get(key, lambda: figures_document(make()), again=policy == OURS))
