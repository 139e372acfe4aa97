"""The site: its navigation, the check of its links, and the whole of it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE_PYTHON = ROOT / "build" / "site-env" / "bin" / "python"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


navigation = load("tools/site/navigation.py")
check_site = load("tools/check_site.py")


def site(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    return folder


def test_groups_are_the_sections_of_the_index() -> None:
    index = "# Docs\n\n## Guides: solve a task\n\n- [One](guides/one.md): x\n- [Two](two.md)\n\n## Empty\n\nNo list.\n"
    assert list(navigation.groups_of(index)) == [("Solve a task", ["guides/one.md", "two.md"])]


def test_each_page_of_the_project_is_in_the_navigation() -> None:
    pages = [page for _, pages in navigation.groups_of((ROOT / "docs" / "index.md").read_text()) for page in pages]
    found = {(ROOT / "docs" / page).resolve() for page in pages}
    wanted = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"}
    assert wanted - {ROOT / "docs" / "index.md"} <= found
    assert len(pages) == len(found)


def test_links_to_the_source_become_names() -> None:
    text = "See [the list](../src/longboat/compiled.py), [`a.yaml`](examples/a.yaml), [a page](index.md#top).\n"
    shown = navigation.pages_only(text, ROOT / "docs" / "page.md", ROOT)
    assert shown == "See the list (`src/longboat/compiled.py`), `a.yaml`, [a page](index.md#top).\n"


def test_blocks_of_code_keep_their_brackets() -> None:
    text = "```\n[words](file.py)\n```\n"
    assert navigation.pages_only(text, ROOT / "docs" / "page.md", ROOT) == text


def test_a_whole_site_has_no_problem(tmp_path: Path) -> None:
    other = '<h1 id="top">Top</h1><a href="https://example.com/">out</a>'
    site(tmp_path, index='<a href="other.html#top">x</a><a href="#here">y</a><p id="here">', other=other)
    assert list(check_site.problems_of(tmp_path)) == []
    assert check_site.main([str(tmp_path)]) == 0
    assert (tmp_path / "external-links.txt").read_text() == "https://example.com/\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="gone.html">x</a>', "index.html: gone.html leads to no file"),
        ('<a href="index.html#gone">x</a>', "index.html: index.html#gone leads to no heading"),
        ('<img src="gone.png">', "index.html: gone.png leads to no file"),
        ('<script src="https://cdn.example/x.js"></script>', "index.html: loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', "index.html: loads //fonts.example/a.css"),
    ],
    ids=["file", "heading", "picture", "script", "font"],
)
def test_problems_are_named(tmp_path: Path, text: str, problem: str) -> None:
    site(tmp_path, index=text)
    assert list(check_site.problems_of(tmp_path)) == [problem]
    assert check_site.main([str(tmp_path)]) == 1


def test_styles_load_nothing_from_other_hosts(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import 'https://fonts.example/x.css'; a { background: url(own.png) }")
    assert list(check_site.problems_of(tmp_path)) == ["a.css: loads https://fonts.example/x.css"]


@pytest.fixture
def site_python() -> Path:
    """Install the site's generator, as ``make site`` does."""
    uv = Path(sys.executable).parent / "uv"
    environment = str(SITE_PYTHON.parent.parent)
    commands = (
        (uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, environment),
        (uv, "pip", "install", "--quiet", "--require-hashes", "--python", SITE_PYTHON, "-r", "requirements/site.txt"),
    )
    for words in commands:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
        if done.returncode != 0:
            pytest.skip(f"the site's generator cannot be installed here: {done.stderr.strip()[-200:]}")
    return SITE_PYTHON


@pytest.mark.timeout(500)
def test_the_site_is_built_without_a_warning(site_python: Path, tmp_path: Path) -> None:
    words = ("-m", "sphinx", "--quiet", "--fail-on-warning", "-n", "-b", "html", "-c", "tools/site", ".", str(tmp_path))
    built = subprocess.run([site_python, *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert built.returncode == 0, built.stderr
    assert list(check_site.problems_of(tmp_path)) == []
    assert '"gang"' in (tmp_path / "searchindex.js").read_text() or "gang" in (tmp_path / "searchindex.js").read_text()
