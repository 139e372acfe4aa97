"""Mistakes between the names of adapters and other names of the file."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from longboat.core.errors import Problem
from longboat.spec.text.location import Path, show
from longboat.spec.types.source import name_from_source

__all__ = ("adapter_name_problems", "adapter_names", "adapter_places")


def adapter_names(models: object) -> tuple[str, ...]:
    """Return the names of all adapters that can be read. models: plain values, with tuples where the file has lists."""
    return tuple(name for _, name, _ in _named(models))


def adapter_places(models: object) -> Iterator[tuple[int, str]]:
    """Yield the position of each adapter's model, and the adapter's name, where it can be read."""
    return ((index, name) for index, _, name, _ in _numbered(models))


def adapter_name_problems(
    models: object, names: Collection[str], aliases: Collection[str] | None, tenants: Collection[str] | None
) -> Iterator[Problem]:
    """Yield each name of an adapter that means something else already, and each tenant of one that does not exist.

    names: of the models; aliases, tenants: None where one of them cannot be read
    """
    seen: dict[str, Path] = {}
    for path, name, entry in _named(models):
        owner = seen.setdefault(name, path)
        other = (
            "a model"
            if name in names
            else "an alias"
            if name in (aliases or ())
            else show(owner)
            if owner != path
            else ""
        )
        if other:
            what = f"{name!r} is already the name of {other}"
            yield Problem(where=show((*path, "name")), what=what, hint="give one of them another name")
        given = entry.get("tenants")
        for number, tenant in enumerate(given if isinstance(given, tuple) else ()):
            if tenants is not None and isinstance(tenant, str) and tenant not in tenants:
                known = ", ".join(sorted(tenants)[:8])
                hint = f"known: {known}" if known else "leave tenants out: there are none"
                what = f"there is no tenant {tenant!r}"
                yield Problem(where=show((*path, "tenants", number)), what=what, hint=hint)


def _named(models: object) -> Iterator[tuple[Path, str, dict[str, object]]]:
    return ((path, name, entry) for _, path, name, entry in _numbered(models))


def _numbered(models: object) -> Iterator[tuple[int, Path, str, dict[str, object]]]:
    for index, model in enumerate(models if isinstance(models, tuple) else ()):
        section = model.get("adapters") if isinstance(model, dict) else None
        entries = section.get("entries") if isinstance(section, dict) else None
        for number, entry in enumerate(entries if isinstance(entries, tuple) else ()):
            if isinstance(entry, dict) and (name := _name_of(entry)):
                yield index, ("models", index, "adapters", "entries", number), name, entry


def _name_of(entry: dict[str, object]) -> str:
    name, source = entry.get("name"), entry.get("source")
    return name if isinstance(name, str) else name_from_source(source) if isinstance(source, str) else ""
