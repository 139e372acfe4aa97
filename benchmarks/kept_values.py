"""Values that cost a long run, kept in a file: what does not change between two runs is made once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ("KeptValues",)


class KeptValues:
    """Values by name in a file of JSON lines, of which the last of a name counts; without a file, nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        rows = [json.loads(line) for line in lines]
        self._known: dict[str, Any] = {row["name"]: row["value"] for row in rows if "name" in row}

    def get(self, name: str, make: Callable[[], Any], *, again: bool = False) -> Any:
        """Return a value that is known, or make it. again: make it in any case"""
        if again or name not in self._known:
            self._known[name] = value = make()
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps({"name": name, "value": value}) + "\n")
        return self._known[name]
