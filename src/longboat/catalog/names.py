"""Finds an entry by the name that a person wrote: ``rtx 4090``, ``RTX4090`` and ``4090`` are one card."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

__all__ = ("find_name", "nearest_names", "normal_name")

# Words that do not distinguish entries.
EMPTY_WORDS = ("nvidia", "geforce", "amd", "radeon", "instinct", "intel", "apple", "quadro", "tesla", "gpu", "instruct")
# Families whose number alone identifies the card.
SHORT_WORDS = ("rtx", "gtx")
MAX_SUGGESTIONS = 3


def normal_name(name: str) -> str:
    """Reduce a name to lower-case letters and digits, without the vendor's name.

    The owner before a slash (``Qwen/…``) is removed too.
    """
    words = re.sub(r"[^a-z0-9.]+", " ", name.lower().rsplit("/", 1)[-1]).split()
    kept = [word for word in words if word not in EMPTY_WORDS] or words
    return "".join(kept)


def find_name(wanted: str, known: Mapping[str, str]) -> str | None:
    """Return the entry that ``wanted`` names, or None.

    known: normal name or alias → name of the entry. The exact normal name is tried first, then the name without words
    such as ``rtx``, then a name that begins with it, if there is only one.
    """
    normal = normal_name(wanted)
    if normal in known:
        return known[normal]
    short = _without_short_words(normal)
    by_short = {_without_short_words(name): entry for name, entry in known.items()}
    if short in by_short:
        return by_short[short]
    beginning = {entry for name, entry in known.items() if short and _without_short_words(name).startswith(short)}
    return beginning.pop() if len(beginning) == 1 else None


def nearest_names(wanted: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names most similar to ``wanted``, best first."""
    by_normal = {normal_name(name): name for name in names}
    normal = normal_name(wanted)
    inside = [name for key, name in by_normal.items() if normal and (normal in key or key in normal)]
    close = [by_normal[key] for key in difflib.get_close_matches(normal, by_normal, n=MAX_SUGGESTIONS, cutoff=0.4)]
    return tuple(dict.fromkeys([*inside, *close]))[:MAX_SUGGESTIONS]


def _without_short_words(normal: str) -> str:
    for word in SHORT_WORDS:
        if normal.startswith(word) and len(normal) > len(word):
            return normal.removeprefix(word)
    return normal
