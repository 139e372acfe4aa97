"""What no file of the project may hold: places of one machine, addresses of package registries, work left undone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = (".ci", "benchmarks", "docs", "examples", "requirements", "src", "tests", "tools")
BINARY = {".pyc", ".safetensors", ".so"}

# `/opt/vllm` is the documents' example of a place on a user's nodes.
PLACE = re.compile(r"(?<![\w.}>/-])/(?:home|Users|root|mnt|media|work|workspace|builds|opt/(?!vllm\b)\w+)\b[^\s\"'`)]*")
REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|anaconda\.org|/simple/?[\"'\s]")
UNDONE = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def files(*parts: str) -> list[Path]:
    found = [path for part in parts for path in sorted((ROOT / part).rglob("*")) if path.is_file()]
    return [path for path in found if path.suffix not in BINARY]


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if found := pattern.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0]}"


def all_files() -> list[Path]:
    top = [path for path in sorted(ROOT.iterdir()) if path.suffix in (".md", ".toml") or path.name == "Makefile"]
    found = [*top, *files(*PARTS)]
    assert len(found) > 200
    return found


def test_no_file_names_a_place_of_one_machine() -> None:
    assert list(lines_with(PLACE, all_files())) == []


def test_no_file_names_a_package_registry() -> None:
    assert list(lines_with(REGISTRY, all_files())) == []


def test_locks_hold_no_address() -> None:
    locks = [*files("requirements"), *(ROOT / "src/longboat/engines").glob("*/locks/*.txt")]
    assert len(locks) >= 6
    assert list(lines_with(re.compile(r"\S*://\S*|--(?:extra-)?index\S*|--find-links"), locks)) == []


def test_nothing_in_the_source_is_left_undone() -> None:
    assert list(lines_with(UNDONE, files("src", "tools", "benchmarks"))) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (PLACE, "see /" + "home/anna/models"),
        (PLACE, "FOLDER='/" + "opt/wheels'"),
        (PLACE, "--python=/" + "root/x"),
        (REGISTRY, "https://pypi" + ".org/project/x"),
        (REGISTRY, "'http://mirror.example/" + "simple/'"),
        (UNDONE, "# TODO: later"),
    ],
)
def test_search_finds_what_it_looks_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)
