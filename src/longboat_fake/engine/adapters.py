"""The fake engine's LoRA adapters: names with their contents, of which a few are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ("FakeAdapters",)


class FakeAdapters:
    """The adapters that the engine knows, as ``NAME@REVISION``, and the most recently used ones that it holds."""

    def __init__(self, num_held: int = 0) -> None:
        self.num_held = num_held  # 0: the engine knows no adapters
        self._known: dict[str, str] = {}
        self._held: dict[str, None] = {}  # the last used one last

    def take(self, entries: Sequence[Mapping[str, str]]) -> dict[str, object]:
        """Make these adapters the known ones, and return what is known, held and refused then.

        An adapter whose folder is missing is refused.
        """
        paths = {f"{entry['name']}@{entry['revision']}": entry["path"] for entry in entries}
        self._known = {key: path for key, path in paths.items() if Path(path).is_dir()}
        self._held = {key: None for key in self._held if key in self._known}
        problems = {key: f"there is no folder {path}" for key, path in paths.items() if key not in self._known}
        return {"known": sorted(self._known), "held": sorted(self._held), "problems": problems}

    def use(self, key: str) -> bool:
        """Hold this adapter, in place of the one that was not used for longest. Return whether it is known."""
        if key not in self._known:
            return False
        self._held.pop(key, None)
        self._held[key] = None
        while len(self._held) > self.num_held:
            del self._held[next(iter(self._held))]
        return True
