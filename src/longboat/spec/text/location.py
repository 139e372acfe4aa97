"""Where a value stands in the fleet file, as the user would write it."""

from __future__ import annotations

import re

__all__ = ("Path", "section_of", "show")

Path = tuple[str | int, ...]

PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def show(path: Path) -> str:
    """``("models", 0, "split", "tensor")`` as ``models[0].split.tensor``; odd keys as ``labels["a.b/c"]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def section_of(path: Path) -> tuple[str, ...]:
    """Return the section that a path belongs to: the path without list positions."""
    return tuple(part for part in path if isinstance(part, str))
