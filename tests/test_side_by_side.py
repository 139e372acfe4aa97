"""Tests of tests that run in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from file_order import SHARING
from side_by_side import PLACES

HERE = Path(__file__).parent
SHARED = SHARING[0]
NOTE = """
import os, pathlib, pytest, time, warnings
log = pathlib.Path(LOG)
def note(*words):
    with log.open("a") as file:
        print(os.getpid(), *words, file=file)
"""


def run(folder: Path, texts: dict[str, str], *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run tests of these files in processes; pytest's status, and what it printed."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text("pytest_plugins = 'side_by_side'\n")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(NOTE.replace("LOG", repr(str(folder / "log"))) + text)
    plain = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:asyncio", "--import-mode=importlib")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, *words, str(folder)],
        cwd=folder,
        env={"PYTHONPATH": str(HERE), "PATH": "", **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
        pass_fds=[int(fd) for fd in (env or {}).get(PLACES, "").split(",") if fd],
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def lines(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def processes(rows: Sequence[Sequence[str]], *, mark: str) -> set[str]:
    return {process for process, *words in rows if mark in words}


def test_tests_are_collected_once_and_each_process_takes_whole_files_and_what_shares(tmp_path: Path) -> None:
    body = (
        "note('collected')\ntest_one = test_two = lambda: (time.sleep(0.2), note(pathlib.Path(__file__).parent.name))"
    )
    shared, alone = f"tests/{SHARED}", "tests/alone/"
    texts = {f"{place}test_{n}.py": body for place in (shared, alone) for n in "abcd"}
    status, told = run(tmp_path, texts, "--processes=3")
    assert (status, "16 passed" in told) == (0, True), told
    rows = lines(tmp_path)
    assert len(rows) == 8 + 16
    assert len(processes(rows, mark="collected")) == 1
    ran = processes(rows, mark="alone")
    assert len(ran) > 1
    assert len(processes(rows, mark=Path(SHARED).name)) == 1
    assert not processes(rows, mark="collected") & ran


def test_what_a_process_reports_is_told_as_if_there_were_one(tmp_path: Path) -> None:
    texts = {
        "test_a.py": "def test_fails():\n    print('said'); assert 1 + 1 == 3\n",
        "test_b.py": "def test_skips():\n    pytest.skip('not here')\n",
        "test_c.py": "def test_warns():\n    warnings.warn('careful', FutureWarning)\n",
        "test_d.py": "@pytest.fixture\ndef broken():\n    yield\n    raise OSError('at its end')\n"
        "def test_d(broken): pass\n",
    }
    status, told = run(tmp_path, texts, "--processes=2", "-rs", f"--junit-xml={tmp_path}/report.xml")
    assert status == 1
    assert "1 failed, 2 passed, 1 skipped, 1 warning, 1 error" in told
    for words in ("assert (1 + 1) == 3", "said", "not here", "FutureWarning: careful", "at its end"):
        assert words in told
    assert (tmp_path / "report.xml").read_text().count("<testcase ") == 4


def test_a_test_that_ends_its_process_fails_and_the_others_run(tmp_path: Path) -> None:
    texts = {"test_a.py": "def test_1(): pass\ndef test_2(): os._exit(3)\ndef test_3(): pass\n"}
    status, told = run(tmp_path, {**texts, "test_b.py": "def test_4(): pass\n"}, "--processes=2")
    assert status == 1
    assert "1 failed, 3 passed" in told
    assert "the process of this test ended with status 3" in told


def test_fixtures_of_a_run_end_with_the_file_and_folders_of_processes_are_apart(tmp_path: Path) -> None:
    body = (
        "@pytest.fixture(scope='session')\ndef engine():\n    note('began')\n    yield\n    note('ended')\n"
        "def test_1(engine, tmp_path): note(tmp_path)\ndef test_2(engine): pass\n"
    )
    status, told = run(tmp_path, {"test_a.py": body, "test_b.py": body, "test_c.py": body}, "--processes=2")
    assert status == 0, told
    rows = lines(tmp_path)
    for process in {row[0] for row in rows}:
        words = [row[1] for row in rows if row[0] == process]
        assert [word for word in words if word in ("began", "ended")] == ["began", "ended"] * (len(words) // 3)
    folders = {Path(row[1]).parent: row[0] for row in rows if row[1] not in ("began", "ended")}
    assert len(folders) == len(set(folders.values())) == 2


def test_the_first_failures_end_it_and_what_runs_is_taken_down(tmp_path: Path) -> None:
    texts = {
        "test_a.py": "def test_a():\n    time.sleep(0.5)\n    assert False\n",
        "test_b.py": "@pytest.fixture\ndef server():\n    yield\n    note('down')\n"
        "def test_b(server):\n    note('up')\n    time.sleep(60)\n",
        "test_c.py": "def test_c():\n    note('late')\n",
    }
    status, told = run(tmp_path, texts, "--processes=2", "-x")
    assert status == 1
    assert "stopping after 1 failures" in told
    assert [row[1] for row in lines(tmp_path)] == ["up", "down"]


def test_runs_share_the_places_of_a_pipe(tmp_path: Path) -> None:
    body = "def test_1():\n    note('begins'); time.sleep(0.3); note('ends')\n"
    read, write = os.pipe()
    os.write(write, b".")
    try:
        texts = {f"test_{name}.py": body for name in "abc"}
        assert run(tmp_path, texts, "--processes=3", env={PLACES: f"{read},{write}"})[0] == 0
        os.set_blocking(read, False)
        assert os.read(read, 10) == b"."
    finally:
        os.close(read)
        os.close(write)
    assert [row[1] for row in lines(tmp_path)] == ["begins", "ends"] * 3
