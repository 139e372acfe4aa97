"""The catalog as a whole: the data files of this package, and the user's own files merged over them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TypeVar

import msgspec

from longboat.catalog.entries import (
    Accelerator,
    ApiPrice,
    CatalogFile,
    CloudPrice,
    Electricity,
    Engine,
    Entry,
    Link,
    ModelEntry,
)
from longboat.catalog.names import find_name, nearest_names, normal_name
from longboat.core.errors import Problem, UserInputError

__all__ = ("Library", "Shelf", "built_in_library", "load_library")

E = TypeVar("E", bound=Entry)
# Words in names of machines that are known by the name of their chip.
MACS = re.compile(r"\b(i?macs?|macbooks?|apple silicon)\b", re.IGNORECASE)
CHIP = re.compile(r"M\d (Pro|Max|Ultra)")


@dataclass(frozen=True, slots=True)
class Shelf(Mapping[str, E]):
    """Entries of one kind by name, found by any spelling of it."""

    kind: str  # what messages call one entry (``accelerator``)
    entries: Mapping[str, E] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> E:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, name: str, *, where: str = "") -> E:
        """Return the entry that ``name`` means. ``where``: path of the value, for the message.

        Raises UserInputError with the nearest names where it means none, or several.
        """
        found = find_name(name, self.known)
        if found is not None:
            return self.entries[found]
        near = _chips(name, self.entries) or nearest_names(name, self.entries)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "longboat plan list cards (models, networks, engines, prices) shows the known names; "
            "add others in a catalog file: docs/guides/plan.md"
        )
        what = f"unknown {self.kind} {name!r}"
        raise UserInputError(what, hint=hint, problems=(Problem(where=where, what=what, hint=hint),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Everything in the catalog."""

    accelerators: Shelf[Accelerator]
    links: Shelf[Link]
    engines: Shelf[Engine]
    electricity: Shelf[Electricity]
    apis: Shelf[ApiPrice]
    clouds: Shelf[CloudPrice]
    models: Shelf[ModelEntry]

    def published_as(self, hub: str) -> ModelEntry | None:
        """Return the model that its publisher put on the hub as ``owner/name``, in any case of letters."""
        return next((entry for entry in self.models.values() if entry.hub.lower() == hub.lower()), None)


@cache
def built_in_library() -> Library:
    """Return the catalog that comes with Longboat."""
    return load_library(built_in_files())


def built_in_files() -> list[tuple[str, str]]:
    """Return the name and text of each data file of this package."""
    folder = resources.files("longboat.catalog") / "data"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return [(file.name, file.read_text(encoding="utf-8")) for file in files]


def load_library(files: Iterable[tuple[str, str]]) -> Library:
    """Merge the entries of all files (origin and text each); a later entry replaces an earlier one of the same name.

    Raises UserInputError that names the file and the path of the mistake in it.
    """
    told = [read_catalog_file(text, origin) for origin, text in files]
    return Library(
        accelerators=_shelf("accelerator", (entry for file in told for entry in file.accelerator)),
        links=_shelf("network or bus", (entry for file in told for entry in file.link)),
        engines=_shelf("engine", (entry for file in told for entry in file.engine)),
        electricity=_shelf("electricity price", (entry for file in told for entry in file.electricity)),
        apis=_shelf("API price", (entry for file in told for entry in file.api)),
        clouds=_shelf("cloud price", (entry for file in told for entry in file.cloud)),
        models=_shelf("model", (entry for file in told for entry in file.model)),
    )


def read_catalog_file(text: str, origin: str) -> CatalogFile:
    """Read one file. Raises UserInputError; ``origin`` names the file in its message."""
    try:
        return msgspec.toml.decode(text, type=CatalogFile)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        where = path.strip("`").removeprefix("$").removeprefix(".")
        problem = Problem(where=f"{origin}: {where}" if where else origin, what=what, hint="see docs/guides/plan.md")
    except ValueError as error:
        problem = Problem(where=origin, what=f"not TOML: {error}", hint="see docs/guides/plan.md")
    raise UserInputError(str(problem), hint=problem.hint, problems=(problem,))


def _chips(name: str, entries: Iterable[str]) -> tuple[str, ...]:
    """Return the chips that the name of a Mac may mean; none for other names."""
    return tuple(filter(CHIP.fullmatch, entries)) if MACS.search(name) else ()


def _shelf(kind: str, entries: Iterable[E]) -> Shelf[E]:
    by_name: dict[str, E] = {}
    known: dict[str, str] = {}
    for entry in entries:
        by_name[entry.name] = entry
        for name in (entry.name, *entry.aliases):
            known[normal_name(name)] = entry.name
    return Shelf(kind, by_name, known)
