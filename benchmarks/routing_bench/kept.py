"""Runs that were made before: a peer's figures do not change while our policy does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from routing_bench.stand import Figures, figures_document

__all__ = ("Kept",)

OURS = "cost"


class Kept:
    """Figures by a description of their run, in a file of JSON lines; without a file, nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._figures: dict[str, Figures] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._figures[row["run"]] = Figures(**row["figures"])

    def get(self, run: str, policy: str, make: Callable[[], Figures]) -> Figures:
        """Return kept figures of a peer, or make them."""
        key = f"{policy} {run}"
        kept = self._figures.get(key)
        if kept is not None and policy != OURS:
            return kept
        figures = self._figures[key] = make()
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"run": key, "figures": figures_document(figures)}) + "\n")
        return figures
