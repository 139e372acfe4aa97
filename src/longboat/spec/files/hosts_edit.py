"""Changes of a hosts file that leave its comments and its order alone: one host more, one host less."""

from __future__ import annotations

import yaml

from longboat.core.errors import UserInputError

__all__ = ("with_host", "without_host")

BY_HAND = "write a '- HOST' line below hosts: for each host, or change the list by hand"


def with_host(text: str, host: str) -> str:
    """Return the file with one worker more, behind the last host. Raises UserInputError for a list in one line."""
    items = _items(text)
    lines = text.splitlines(keepends=True)
    first, last = items[0].start_mark, items[-1]
    at = _end_line(last, lines)
    dash = lines[first.line][: first.column]
    if not lines[at - 1].endswith("\n"):
        lines[at - 1] += "\n"
    return "".join((*lines[:at], f"{dash}{host}\n", *lines[at:]))


def without_host(text: str, index: int) -> str:
    """Return the file without one of its hosts. Raises UserInputError for a list in one line."""
    item = _items(text)[index]
    lines = text.splitlines(keepends=True)
    return "".join((*lines[: item.start_mark.line], *lines[_end_line(item, lines) :]))


def _items(text: str) -> list[yaml.Node]:
    """Return the nodes of the list of hosts, which has a line for each host."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    for key, value in pairs:
        if key.value == "hosts" and isinstance(value, yaml.SequenceNode) and not value.flow_style:
            return list(value.value)
    what = "hosts: is a list in one line, and only one with a line for each host is edited"
    raise UserInputError(what, hint=BY_HAND)


def _end_line(node: yaml.Node, lines: list[str]) -> int:
    """Return the number of the first line behind a host; a block's end mark stands behind blank lines and comments."""
    end = node.end_mark
    at: int = end.line if end.column == 0 else end.line + 1
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        at = end.line
        while at > node.start_mark.line + 1 and lines[at - 1].strip()[:1] in ("", "#"):
            at -= 1
    return min(at, len(lines))
