"""The check of the project's English: phrases it finds, text it leaves alone, and its exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_check(*names: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "check_prose.py"), *map(str, names)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def phrases_in(path: Path, text: str) -> list[tuple[int, str]]:
    """Line and phrase of each finding in a file with this text."""
    path.write_text(text)
    done = run_check(path)
    assert (done.returncode, done.stderr) == (int(bool(done.stdout)), "")
    lines = [line.removeprefix(f"{path}:").split(": ", 2) for line in done.stdout.splitlines()]
    assert all(suggestion for _, _, suggestion in lines)
    return [(int(number), phrase.strip("'")) for number, phrase, _ in lines]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The gateway starts anew.", "anew"),
        ("The controller is told twice.", "is told"),
        ("Nobody waits.", "Nobody"),
        ("It waits for ever.", "for ever"),
        ("The answer is no stream.", "is no stream"),
        ("Another replica goes on with it.", "goes on with"),
        ("Such a question is dear.", "dear"),
        ("It counts the dearest one.", "dearest"),
        ("The stream goes on from there.", "goes on from"),
        ("It thus waits.", "thus"),
    ],
)
def test_phrase_is_found(tmp_path: Path, text: str, phrase: str) -> None:
    assert phrases_in(tmp_path / "page.md", f"# Page\n\n{text}\n") == [(3, phrase)]


def test_phrase_across_a_line_break_has_its_first_line(tmp_path: Path) -> None:
    assert phrases_in(tmp_path / "page.md", "The gateway\nis\ntold.\n") == [(2, "is told")]


def test_good_english_and_code_pass(tmp_path: Path) -> None:
    good = "There is no queue, and it is no longer needed. `is told` and\n\n```\nanew\n```\n\nThere\nis no other.\n"
    assert phrases_in(tmp_path / "page.md", good) == []


SOURCE = '''"""Of a module."""

nobody = 1  # waits for ever


def talk() -> str:
    """Say ``anew``."""
    return "anew"
'''


def test_source_is_checked_in_docstrings_comments_and_strings(tmp_path: Path) -> None:
    found = phrases_in(tmp_path / "talk.py", SOURCE)
    assert found == [(1, '"""Of'), (3, "for ever"), (8, "anew")]


VERBS = '''"""A module."""


def what() -> str:
    """The name of it."""


async def where() -> str:
    """Return the place."""


class Thing:
    """The thing."""

    @property
    def name(self) -> str:
        """The thing's name."""
'''


def test_docstrings_of_functions_begin_with_a_verb(tmp_path: Path) -> None:
    assert phrases_in(tmp_path / "talk.py", VERBS) == [(5, "The")]
    assert phrases_in(tmp_path / "test_talk.py", VERBS) == []


def test_strings_of_tests_are_not_checked(tmp_path: Path) -> None:
    assert phrases_in(tmp_path / "test_talk.py", SOURCE) == [(1, '"""Of'), (3, "for ever")]


def test_folder_is_searched_for_text(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "page.md").write_text("anew\n")
    (tmp_path / "data.json").write_text('"anew"\n')
    done = run_check(tmp_path)
    assert done.returncode == 1
    assert done.stdout == f"{tmp_path}/deep/page.md:1: 'anew': write 'again', or a verb with 're-'\n"


def test_missing_path_is_an_error(tmp_path: Path) -> None:
    done = run_check(tmp_path / "gone")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such file or folder" in done.stderr
