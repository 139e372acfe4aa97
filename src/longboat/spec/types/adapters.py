"""The LoRA adapters of a model in the fleet file, and the room that each replica has for them."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationInfo

from longboat.spec.types.gateway_values import Word
from longboat.spec.types.section import Section, mistake
from longboat.spec.types.source import UNUSABLE, is_local_path

__all__ = ("DEFAULT_RANK", "MAX_ADAPTERS", "RANKS", "AdapterSpec", "AdaptersSpec", "least_rank")

MAX_ADAPTERS: Final = 1000
RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks for which engines make room."""
DEFAULT_RANK: Final = 16
"""The rank for which room is made where there is no adapter yet."""

DIGEST = re.compile(r"[0-9a-f]{16}")


def _folder(value: str) -> str:
    if not is_local_path(value) or not value.strip("/"):
        raise mistake(
            f"{value!r} is not an absolute path", "write the adapter's folder as the nodes see it: /adapters/support"
        )
    if UNUSABLE.search(value) or "\n" in value:
        raise mistake(f"{value!r} has a character that a path cannot have", "write one absolute path")
    return value


def _digest(value: str) -> str:
    if not DIGEST.fullmatch(value):
        raise mistake(
            f"{value!r} is not a revision: 16 digits of 0-9 and a-f",
            "leave it out, and longboat adapters list shows the present one",
        )
    return value


def _rank(value: int) -> int:
    if value not in RANKS:
        near = least_rank(value)
        raise mistake(f"engines do not support rank {value}", f"write {near}" if near else f"write {RANKS[-1]}")
    return value


def _held(value: int | None, info: ValidationInfo) -> int | None:
    slots = info.data.get("slots")
    if value is not None and slots is not None and value < slots:
        raise mistake(f"{value} held, and {slots} computed with at once", f"write held: {slots}, or fewer slots")
    return value


def least_rank(rank: int) -> int | None:
    """Return the least rank of ``RANKS`` that has room for ``rank``; None where there is none."""
    return next((known for known in RANKS if known >= rank), None)


class AdapterSpec(Section):
    """One adapter, or just its folder."""

    name: Word
    """Name that clients use; by default it is the folder's name."""
    source: Annotated[str, AfterValidator(_folder)]
    """Folder with adapter_config.json and adapter_model.safetensors, as the nodes see it."""
    revision: Annotated[str, AfterValidator(_digest)] | None = None
    """What the folder must hold: 16 digits of its digest; null takes what it holds when the fleet comes up."""
    tenants: tuple[Word, ...] | None = Field(default=None, min_length=1, max_length=MAX_ADAPTERS)
    """Tenants that may use it; null lets every tenant use it that may use the model."""


class AdaptersSpec(Section):
    """The adapters of a model, and the room that each replica has for them; a list is short for ``entries``."""

    slots: int = Field(default=8, ge=1, le=1024)
    """Adapters that a replica computes with at the same time; each takes memory beside the weights."""
    held: Annotated[Annotated[int, Field(ge=1, le=10_000)] | None, AfterValidator(_held)] = None
    """Adapters that a replica keeps in its host's memory; others are read when a request names them; null: slots."""
    rank: Annotated[int, AfterValidator(_rank)] | None = None
    """Highest rank of an adapter; null follows from the adapters."""
    entries: tuple[AdapterSpec, ...] = Field(default=(), max_length=MAX_ADAPTERS)
    """The adapters."""

    @property
    def num_held(self) -> int:
        """Adapters that a replica keeps in its host's memory."""
        return self.held or self.slots

    def named(self, name: str) -> AdapterSpec | None:
        """Return the adapter of this name."""
        return next((entry for entry in self.entries if entry.name == name), None)
