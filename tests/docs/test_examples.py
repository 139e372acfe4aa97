"""Every fleet file of docs/examples passes ``longboat check`` on the machines that it names."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done
from longboat.cli.check.first_model import choose, look

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
CHECK = re.compile(r"^# check: (.+)$", re.MULTILINE)
NEEDS = re.compile(r"^# needs: (.+)$", re.MULTILINE)
FILES = sorted(path for path in EXAMPLES.glob("*.yaml") if CHECK.search(path.read_text()))
PAGE = ROOT / "docs" / "guides" / "one-card.md"
ROW = re.compile(r"\(\.\./examples/(\S+?)\) \| ([^|]+) \| `([^`]+)` \| (\d+) tokens/s")
TOLERANCE = 0.3


def test_there_are_many_and_each_is_listed() -> None:
    assert len(FILES) >= 10
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"({path.name})" in listed for path in EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_example_passes_check(path: Path, longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    monkeypatch.chdir(EXAMPLES)
    for name in (NEEDS.search(text) or [None, ""])[1].split():
        monkeypatch.setenv(name, "6" if name == "CHAT_REPLICAS" else "a-secret-of-many-letters")
    words = shlex.split(CHECK.search(text)[1])  # type: ignore[index]
    words = words if words[0].endswith(".yaml") else [path.name, *words]
    done = longboat("check", *words)
    assert done.returncode == 0, done.stderr
    assert "placed on" in done.stdout


def test_init_writes_a_file_that_check_accepts(longboat: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    assert longboat("init", str(file), "--yes", "--on", "2x(2xRTX4090)", "--host", "0.0.0.0").returncode == 0
    assert longboat("check", str(file), "--on", "2x(2xRTX4090)").returncode == 0
    before = file.read_text()
    assert "auth: keys" in before
    assert longboat("init", str(file), "--yes").returncode == 2
    assert file.read_text() == before
    assert longboat("init", str(file), "--yes", "--force", "--model", "not-a-source").returncode == 2
    assert file.read_text() == before


def test_init_without_a_card_takes_the_small_model(longboat: Callable[..., Done], tmp_path: Path) -> None:
    if any(name.startswith("nvidia") for name in os.listdir("/dev")):
        pytest.skip("this machine has a card")
    file = tmp_path / "fleet.yaml"
    assert longboat("init", str(file), "--yes").returncode == 0
    document = json.loads(longboat("check", str(file), "--on", "none", "--json").stdout)
    assert document["targets"][0]["ok"]
    assert "source: builtin:tiny" in file.read_text()


@pytest.mark.parametrize("row", ROW.findall(PAGE.read_text()), ids=lambda row: row[0])
def test_page_of_one_card_says_what_the_planner_says(row: tuple[str, str, str, str]) -> None:
    file, card, source, speed = row
    choice = choose(look(card), 8)
    hint = "python tools/one_card.py writes the page and the files again"
    assert choice.source == source, hint
    assert f"source: {source}" in (EXAMPLES / file).read_text(), hint
    now = float(choice.expected.partition(" ")[0])
    assert abs(now - float(speed)) <= TOLERANCE * float(speed), hint
