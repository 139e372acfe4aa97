"""Reads the fields of a config.json with their types; a field of the wrong type counts as absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from longboat.core.errors import UserInputError

__all__ = ("EXPERT_FIELDS", "Fields")

EXPERT_FIELDS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Synonyms for the number of routed experts in a sparse layer."""


class Fields:
    """The fields of one section of a config. Several names are synonyms: the first that exists counts."""

    __slots__ = ("defaults", "seen", "values")

    def __init__(
        self, values: Mapping[str, object], defaults: Mapping[str, object] | None = None, seen: set[str] | None = None
    ) -> None:
        self.values = values
        self.defaults = defaults or {}  # what the family's config class sets where the config says nothing
        self.seen = set() if seen is None else seen  # names that were asked for

    def at(self, index: int, names: Iterable[str]) -> Fields:
        """Return the fields of one layer: of ``names``, lists with an item for each layer count as that item."""
        lists = {name: value for name in names if isinstance(value := self.values.get(name), list) and value}
        if not lists:
            return self
        self.seen.update(lists)
        own = {name: value[min(index, len(value) - 1)] for name, value in lists.items()}
        return Fields({**self.values, **own}, self.defaults, self.seen)

    def count(self, *names: str, default: int = 0) -> int:
        """Return a positive whole number."""
        self.seen.update(names)
        for values in (self.values, self._unsaid()):
            for name in names:
                value = values.get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return default

    def _unsaid(self) -> Mapping[str, object]:
        """Return the family's defaults of fields that the config does not mention; null is a mention."""
        if not self.defaults:
            return self.defaults
        return {name: value for name, value in self.defaults.items() if name not in self.values}

    def _get(self, name: str) -> object:
        self.seen.add(name)
        return self.values[name] if name in self.values else self.defaults.get(name)

    def need(self, *names: str) -> int:
        """Return the number as ``count`` does. Raises UserInputError where there is none."""
        if found := self.count(*names):
            return found
        if wrong := next((name for name in names if self.values.get(name) is not None), ""):
            value = self.values[wrong]
            number = int(value) if isinstance(value, str) and value.strip().isdecimal() else 0
            raise UserInputError(
                f"config.json has {wrong}: {repr(value)[:40]}, which is not a whole number above 0",
                hint=f'write it without quotes: "{wrong}": {number}' if number else "write a whole number above 0",
            )
        raise UserInputError(
            f"config.json has no {' or '.join(names)}",
            hint="plan from the folder with the model's safetensors or GGUF files: their headers list the weights",
        )

    def number(self, name: str, default: float = 0.0) -> float:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            return default
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name)
        return value if isinstance(value, bool) else default

    def word(self, *names: str) -> str:
        return next((value for name in names if isinstance(value := self._get(name), str) and value), "")

    def words(self, name: str) -> tuple[str, ...]:
        value = self._get(name)
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self._get(name)
        return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list) else ()

    def section(self, *names: str) -> Fields:
        """Return the first of these sections with content; an empty one where there is none."""
        for name in names:
            value = self._get(name)
            if isinstance(value, dict) and value:
                return Fields(value)
        return Fields({})

    def sections(self, name: str) -> tuple[Fields, ...]:
        value = self._get(name)
        return tuple(Fields(item) for item in value if isinstance(item, dict)) if isinstance(value, list) else ()

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, name: str) -> bool:
        return self._get(name) is not None
