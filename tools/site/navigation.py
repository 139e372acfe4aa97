"""The site's navigation comes from docs/index.md: one group for each of its sections, in its order.

Links that lead to files of the source are shown as names, because the site has pages only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

__all__ = ("groups_of", "pages_only", "setup", "with_navigation")

_INDEX = "docs/index"
_DECISIONS = "docs/decisions/README"
_SECTION = re.compile(r"^## (?:[^\n:]*: )?([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^(?:- |\| *)\[([^\]]+)\]\(([^)#\s]+\.md)\)", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def groups_of(index: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each section's title and the pages that its list names."""
    for title, text in _SECTION.findall(index):
        if pages := [path for _, path in _LINE.findall(text)]:
            yield title.capitalize(), pages


def with_navigation(index: str) -> str:
    """Return the text with hidden tables of contents after it, which make the site's navigation."""
    blocks = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"])
        for title, pages in groups_of(index)
    )
    return "\n\n".join([index, *blocks]) + "\n"


def pages_only(text: str, page: Path, root: Path) -> str:
    """Return the text whose links lead to pages and pictures; a link to another file becomes its words and its path."""

    def shown(match: re.Match[str]) -> str:
        words, target, _ = match.groups()
        path = (page.parent / target).resolve()
        if path.is_dir() and (path / "README.md").exists() and path.is_relative_to(root / "docs"):
            return f"[{words}]({target.rstrip('/')}/README.md)"
        if path.suffix == ".md" and not (path.is_relative_to(root / "deploy") or path.is_relative_to(root / "tests")):
            return match[0]
        name = str(path.relative_to(root))
        return words if name in words or words.strip("`") == path.name else f"{words} (`{name}`)"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(shown, part) for part in parts)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    root = Path(app.srcdir)
    text = pages_only(source[0], root / f"{name}.md", root)
    if name == _INDEX:
        text = with_navigation(text)
    if name == _DECISIONS:
        pages = [path for _, path in re.findall(r"\[([^\]]+)\]\((\d[^)#\s]+\.md)\)", text)]
        text += "\n" + "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"]) + "\n"
    source[0] = text


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
