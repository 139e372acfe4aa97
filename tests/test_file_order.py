"""Tests of the order of test files, and of what one process takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from file_order import LONGEST, SHARING, files_marked, place_of, scope_of

HERE = Path(__file__).parent


def test_every_name_of_the_order_is_there() -> None:
    assert [name for name in (*LONGEST, *SHARING) if not (HERE / name).exists()] == []


def test_long_files_come_first_and_tests_of_clusters_before_others() -> None:
    files = {"routing/test_x.py": False, "netlab/test_lab.py": True, SHARING[-1] + "test_x.py": False, LONGEST[1]: True}
    files[LONGEST[0]] = True
    ordered = sorted(files, key=lambda file: place_of(file, is_of_cluster=files[file]))
    assert ordered == [LONGEST[0], LONGEST[1], "netlab/test_lab.py", SHARING[-1] + "test_x.py", "routing/test_x.py"]


def test_folder_that_shares_is_one_scope_and_other_files_are_their_own() -> None:
    assert {scope_of(f"{SHARING[0]}test_{name}.py") for name in "ab"} == {SHARING[0]}
    assert scope_of("fleet/test_counts.py") == "fleet/test_counts.py"
    inner, outer = "fleet/shared/vllm/", "fleet/shared/"
    assert [scope_of(f"{folder}test_a.py") for folder in (inner, outer)] == [inner, outer]


def test_one_process_takes_all_files_of_a_folder_that_shares(tmp_path: Path) -> None:
    """Three processes have eight files, four of them in such a folder, each of two tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from file_order import make_scheduler as pytest_xdist_make_scheduler\n")
    body = (
        "import os, pathlib\n"
        f"log = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "def note():\n"
        "    with log.open('a') as file:\n"
        "        print(os.environ['PYTEST_XDIST_WORKER'], pathlib.Path(__file__).parent.name, file=file)\n"
        "test_one = test_two = lambda: note()\n"
    )
    for folder in (SHARING[0], "alone/"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        for name in "abcd":
            (tmp_path / "tests" / folder / f"test_{folder.replace('/', '_')}{name}.py").write_text(body)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "tests"]
    words += ["--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder"]
    done = subprocess.run(
        words, cwd=tmp_path, env={"PYTHONPATH": str(HERE), "PATH": ""}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len(ran) == 16
    assert len({worker for worker, folder in ran if folder == Path(SHARING[0]).name}) == 1
    assert len({worker for worker, folder in ran if folder == "alone"}) > 1


def test_files_of_a_mark_have_it_or_stand_under_a_conftest_that_has(tmp_path: Path) -> None:
    texts = {
        "test_a.py": "pytestmark = [pytest.mark.ray, pytest.mark.net]",
        "test_b.py": "pytestmark = pytest.mark.raylet",
        "sub/conftest.py": "marks = pytest.mark.ray",
        "sub/test_c.py": "",
        "sub/deep/test_d.py": "",
        "sub/lab.py": "",
        "other/test_e.py": "@pytest.mark.slow",
    }
    for file, text in texts.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert files_marked(("ray",), tmp_path) == ["sub/deep/test_d.py", "sub/test_c.py", "test_a.py"]
    assert files_marked(("ray", "slow"), tmp_path)[0] == "other/test_e.py"
