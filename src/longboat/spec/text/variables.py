"""``${NAME}`` in a file: text from the environment in place of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ("MARK", "filled")

MARK = "${"
"""What a value must hold before anything in it is replaced."""

# A literal, a name with or without a default, or a beginning without an end.
PATTERN = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{")
UNREADABLE = "${"


def filled(text: str, variables: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the text with each ``${NAME}`` replaced, and the names that are missing.

    ``${NAME:-default}`` takes the default where the variable is missing or empty; ``$${`` stands for ``${`` itself.
    A ``${`` that begins no name is among the missing names as it is written.
    """
    missing: list[str] = []

    def put(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return MARK
        name, default = found[1], found[3]
        if name is None:
            missing.append(UNREADABLE)
            return found[0]
        value = variables.get(name)
        if found[2] is not None and not value:
            return str(default)
        if value is None:
            missing.append(name)
            return found[0]
        return value

    return PATTERN.sub(put, text), tuple(missing)
