"""What the pages name exists: links, commands, options, variables; and what exists is in the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from longboat.cli.app import app
from longboat.cli.shared.error_text import print_error
from longboat.cli.shared.gateway_notes import LIMITS
from longboat.core.errors import UserInputError
from longboat.routing.queue.queue_entry import RejectedReason
from longboat.spec.files.load import load_fleet, read_files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *DOCS.rglob("*.md")])
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
MAX_DECISION_LINES = 60

# The file of which the README shows what `longboat up fleet.yaml` says.
WRONG_FLEET = """
models:
  - {source: builtin:tiny, split: {tensor: 2, prefill: 2}, replica: 2}
  - {source: 'hf:Qwen/Qwen3-0.6B', engine: {version: 0.32}, replicas: '2'}
gateway: {port: 99999}
"""

_FLEET = re.compile(r"^```yaml\n((?:apiVersion|models):.*?)^```", re.MULTILINE | re.DOTALL)
_FILLED = re.compile(r"\$\{(\w+)")
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?<![\w./:-])longboat((?: [^\s#;&()]+)+)")
_QUOTED = re.compile(r'"[^"]*"')  # machines, or another program's command
_OPTION = re.compile(r"--?[a-zA-Z][\w-]*")
_VARIABLE = re.compile(r"\bLONGBOAT_[A-Z_]*[A-Z]\b")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_lines(text: str) -> Iterator[str]:
    """Lines of code blocks, and code within sentences."""
    for block in _FENCE.findall(text):
        yield from block.splitlines()
    yield from _CODE.findall(_FENCE.sub("", text))


def commands_in(text: str) -> Iterator[list[str]]:
    """Words after ``longboat`` wherever code calls it."""
    for line in code_lines(text):
        for words in _COMMAND.findall(_QUOTED.sub('"…"', line)):
            if not words.startswith((" is", " gateway:", " keeper:")):
                yield words.split()


def all_commands(group: Any, path: str = "") -> dict[str, Any]:
    """``node start`` → the command, for all that are no groups."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        full = f"{path} {name}".strip()
        found |= all_commands(command, full) if hasattr(command, "commands") else {full: command}
    return found


def options_of(command: Any) -> set[str]:
    given = {word for param in command.params for word in param.opts if word.startswith("-")}
    return given | {"--help", "-h"}


def mistakes_in(words: list[str], root: Any) -> list[str]:
    """What of a command line does not exist."""
    command, path = root, "longboat"
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        if name.isupper():  # a placeholder
            return []
        path = f"{path} {name}"
        if name not in command.commands and (default := getattr(command, "default_command", "")):
            command = command.commands[default]
            continue
        if name not in command.commands:
            return [f"no command {path}"]
        command = command.commands[name]
    used = {option for word in words for option in _OPTION.findall(word) if word.lstrip("[").startswith("-")}
    return [f"{path} has no option {option}" for option in sorted(used - options_of(command))]


@pytest.fixture(scope="module")
def cli() -> Any:
    return typer.main.get_command(app)


def anchors_of(page: Path) -> set[str]:
    """Anchors of the headings, as the usual renderers make them."""
    text = _FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_exist_and_say_in_words_what_they_show(page: Path) -> None:
    pictures = _PICTURE.findall(_FENCE.sub("", page.read_text()))
    assert not [target for words, target in pictures if not words or not (page.parent / target).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_stay_inside_the_project(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
    outside = [link for link in links if not (page.parent / link).resolve().is_relative_to(ROOT)]
    assert not outside


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_exist(page: Path, cli: Any) -> None:
    mistakes = [mistake for words in commands_in(page.read_text()) for mistake in mistakes_in(words, cli)]
    assert not mistakes


def test_unknown_commands_and_options_are_found(cli: Any) -> None:
    text = "Call `longboat sink FILE`, or:\n```\nlongboat up FILE --fast  # now\nlongboat status -w\n```\n"
    mistakes = [mistake for words in commands_in(text) for mistake in mistakes_in(words, cli)]
    assert mistakes == ["longboat up has no option --fast", "no command longboat sink"]


def test_reference_has_a_section_for_each_command(cli: Any) -> None:
    headings = re.findall(r"^## `longboat ([^`]+)`$", (DOCS / "reference" / "cli.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(all_commands(cli))


def test_reference_has_each_option_in_its_section(cli: Any) -> None:
    _, *sections = re.split(r"^## `longboat ([^`]+)`$", (DOCS / "reference" / "cli.md").read_text(), flags=re.MULTILINE)
    text_of = dict(zip(sections[::2], sections[1::2], strict=True))
    missing = [
        f"{name} {option}"
        for name, command in all_commands(cli).items()
        for option in options_of(command) - {"--help", "-h"}
        if f"`{option}`" not in text_of[name]
    ]
    assert not missing


def test_each_variable_of_the_code_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "environment-variables.md").read_text()
    used = {name for file in (ROOT / "src").rglob("*.py") for name in _VARIABLE.findall(file.read_text())}
    assert used
    assert not used - set(_VARIABLE.findall(page))


def test_each_variable_that_pages_name_is_in_the_code() -> None:
    code = {file for folder in ("src", "tests", "tools") for file in (ROOT / folder).rglob("*.py")}
    code |= {*(ROOT / "deploy").rglob("*.sh")}
    known = {name for file in code for name in _VARIABLE.findall(file.read_text())}
    named = {name for page in PAGES for name in _VARIABLE.findall(page.read_text())}
    assert not named - known


def test_each_error_code_of_the_gateway_is_on_its_page() -> None:
    gateway = ROOT / "src" / "longboat" / "gateway"
    codes = {code for file in gateway.rglob("*.py") for code in re.findall(r'code="(\w+)"', file.read_text())}
    codes |= {*LIMITS, *map(str, RejectedReason)}
    assert {"model_not_found", "not_allowed", "queue_full"} <= codes
    page = (DOCS / "concepts" / "gateway.md").read_text()
    assert not {code for code in codes if f"`{code}`" not in page}


def test_readme_names_two_make_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    named = {word for line in code_lines(readme) for word in re.findall(r"\bmake ([a-z][\w-]*)", line)}
    assert named == {"demo", "test"}


def test_readme_shows_what_is_said_of_a_wrong_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserInputError) as caught:
        load_fleet(WRONG_FLEET, "fleet.yaml")
    print_error(caught.value)
    (shown,) = re.findall(r"^```\n\$ longboat up fleet\.yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown == capsys.readouterr().err


def test_make_targets_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {name for line in re.findall(r"^([a-z][\w -]*):(?!=)", makefile, re.MULTILINE) for name in line.split()}
    texts = [(page, line) for page in PAGES for line in code_lines(page.read_text())]
    named = {(page.name, word) for page, line in texts for word in re.findall(r"^make ([a-z][\w-]*)", line)}
    assert not {(page, word) for page, word in named if word not in targets}


def test_index_lists_every_page() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(index.read_text())}
    pages = {page for page in DOCS.rglob("*.md") if page not in DECISIONS} - {index}
    assert not {name_of(page) for page in pages - linked}


def test_decision_index_lists_every_decision() -> None:
    folder = DOCS / "decisions"
    linked = {(folder / link).resolve() for link in _LINK.findall((folder / "README.md").read_text())}
    assert not {page.name for page in DECISIONS} - {page.name for page in linked}


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_decisions_are_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= MAX_DECISION_LINES


@pytest.mark.parametrize("page", [page for page in PAGES if _FLEET.search(page.read_text())], ids=name_of)
def test_fleet_files_on_pages_are_valid(page: Path) -> None:
    for text in _FLEET.findall(page.read_text()):
        variables = dict.fromkeys(_FILLED.findall(text), "")
        assert read_files([(name_of(page), text)], folder="/", variables=variables).whole().models
