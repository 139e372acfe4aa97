"""What the fleet file will say one day: understood, refused with "not yet", never ignored."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.core.errors import Problem
from longboat.spec.text.location import Path, show
from longboat.spec.text.yaml_text import Plain

__all__ = ("take_later",)

ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A part of the file that belongs to later work."""

    path: tuple[str, ...]
    what: str
    hint: str


def _table(owner: tuple[str, ...], what: str, hint: str, *names: str) -> tuple[Later, ...]:
    return tuple(Later(path=(*owner, name), what=what, hint=hint) for name in names)


MODEL = ("models", ANY)

LATER: tuple[Later, ...] = (
    *_table((*MODEL, "split"), "separate prefill and decode", "use replicas", "decode", "prefill"),
    *_table(MODEL, "separate prefill and decode", "use replicas", "decode", "prefill"),
)


def take_later(data: dict[str, Plain]) -> list[Problem]:
    """Take what belongs to later work out of ``data`` (it is changed), and say so for each."""
    problems = []
    for entry in LATER:
        for path, owner, value in _matches(data, entry.path, ()):
            del owner[str(path[-1])]
            written = f" ({value})" if isinstance(value, str) else ""
            problems.append(Problem(where=show(path), what=f"not yet: {entry.what}{written}", hint=entry.hint))
    return problems


def _matches(value: Plain, pattern: tuple[str, ...], done: Path) -> list[tuple[Path, dict[str, Plain], Plain]]:
    """Find every place that the pattern reaches: its path, the mapping that holds it, and the value there."""
    first, rest = pattern[0], pattern[1:]
    if first == ANY:
        items = enumerate(value) if isinstance(value, list) else ()
        return [match for index, item in items for match in _matches(item, rest, (*done, index))]
    if not isinstance(value, dict) or first not in value:
        return []
    if not rest:
        return [((*done, first), value, value[first])]
    return _matches(value[first], rest, (*done, first))
