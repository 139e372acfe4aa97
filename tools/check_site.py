"""Check the built site: ``tools/check_site.py build/site``. ``make site`` runs it after Sphinx.

Every link inside the site must lead to a file and an anchor, and no page may load anything from another host. Addresses
outside are listed in ``external-links.txt`` beside the pages, and not visited.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

__all__ = ("main", "problems_of")

_LOADS = {
    ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("audio", "src"), ("video", "src"),
    ("link", "href"), ("embed", "src"), ("object", "data"),
}  # fmt: skip
_OUTSIDE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_OTHER_SCHEME = re.compile(r"(?:mailto|data|javascript):", re.IGNORECASE)
_STYLE_LOADS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)", re.IGNORECASE)
_PLAIN_ADDRESS = "http://www.w3.org/"  # names of XML vocabularies, which no browser fetches


@dataclass(slots=True)
class _Page(HTMLParser):
    """The anchors, links and loads of one page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) in _LOADS:
                self.loads.append(value)
            elif tag == "a" and name == "href":
                self.links.append(value)


def main(words: list[str]) -> int:
    """Print what is wrong and the number of pages; return the exit status."""
    if len(words) != 1 or not (folder := Path(words[0])).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    folder = folder.resolve()
    pages = _pages(folder)
    problems = list(problems_of(folder))
    for problem in problems:
        print(problem)
    outside = sorted({link for page in pages.values() for link in page.links if _OUTSIDE.match(link)})
    (folder / "external-links.txt").write_text("".join(f"{link}\n" for link in outside))
    num_links = sum(len(page.links) for page in pages.values())
    print(f"{len(pages)} pages, {num_links} links, {len(problems)} problems")
    print(f"{len(outside)} addresses outside, not visited: {folder / 'external-links.txt'}")
    return int(bool(problems))


def problems_of(folder: Path) -> Iterator[str]:
    """Yield one line for each broken link, and for each file that a page would load from another host."""
    folder = folder.resolve()
    pages = _pages(folder)
    for path, page in pages.items():
        name = path.relative_to(folder)
        yield from (f"{name}: loads {load}" for load in page.loads if _OUTSIDE.match(load))
        inside = (
            link for link in (*page.links, *page.loads) if not (_OUTSIDE.match(link) or _OTHER_SCHEME.match(link))
        )
        yield from (f"{name}: {why}" for link in dict.fromkeys(inside) if (why := _broken(link, path, pages)))
    for style in sorted(folder.rglob("*.css")):
        found = (load for load in _STYLE_LOADS.findall(style.read_text()) if not load.startswith(_PLAIN_ADDRESS))
        yield from (f"{style.relative_to(folder)}: loads {load}" for load in found)


def _pages(folder: Path) -> dict[Path, _Page]:
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
    return pages


def _broken(link: str, page: Path, pages: dict[Path, _Page]) -> str:
    """Return why a link leads nowhere; empty where it does not. page: the file that has the link"""
    target, anchor = urldefrag(link)
    file = (page.parent / unquote(target.partition("?")[0])).resolve() if target else page
    if file.is_dir():
        file /= "index.html"
    if not file.is_file():
        return f"{link} leads to no file"
    if anchor and file in pages and unquote(anchor) not in pages[file].anchors:
        return f"{link} leads to no heading"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
