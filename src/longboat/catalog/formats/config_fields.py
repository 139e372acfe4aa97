"""Reads the fields of a config.json with their types; a field of the wrong type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping

from longboat.core.errors import UserInputError

__all__ = ("EXPERT_FIELDS", "Fields")

EXPERT_FIELDS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Synonyms for the number of routed experts in a sparse layer."""


class Fields:
    """The fields of one section of a config. Several names are synonyms: the first that exists counts."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values

    def count(self, *names: str, default: int = 0) -> int:
        """Return a positive whole number."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return default

    def need(self, *names: str) -> int:
        """Return the number as ``count`` does. Raises UserInputError where there is none."""
        if found := self.count(*names):
            return found
        raise UserInputError(
            f"config.json has no {' or '.join(names)}",
            hint="plan from the folder with the model's safetensors or GGUF files: their headers list the weights",
        )

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        return value if isinstance(value, bool) else default

    def word(self, *names: str) -> str:
        return next((value for name in names if isinstance(value := self.values.get(name), str) and value), "")

    def words(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list) else ()

    def section(self, *names: str) -> Fields:
        """Return the first of these sections with content; an empty one where there is none."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, dict) and value:
                return Fields(value)
        return Fields({})

    def sections(self, name: str) -> tuple[Fields, ...]:
        value = self.values.get(name)
        return tuple(Fields(item) for item in value if isinstance(item, dict)) if isinstance(value, list) else ()

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None
