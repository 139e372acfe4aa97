"""What a fresh checkout relies on: locks with hashes, no address in them, and a front door that says what it does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted(ROOT.glob("requirements/*.txt"))


def run_make(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    packages = re.findall(r"^[a-z0-9].*$", text, flags=re.MULTILINE)
    assert packages
    assert all("==" in package and package.endswith("\\") for package in packages)
    assert "--index" not in text
    assert "--find-links" not in text
    assert "://" not in text


def test_locks_hold_what_the_project_file_asks_for() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements/dev.txt").read_text(), flags=re.MULTILINE))
    block = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    asked = {re.split(r"[\[>=<]", name)[0] for name in re.findall(r'^ *"([^"]+)",$', block, flags=re.MULTILINE)}
    assert asked <= locked
    assert {"ray", "hatchling", "pytest"} <= locked


def test_make_alone_lists_the_targets() -> None:
    done = run_make(ROOT)
    assert done.returncode == 0
    for target in ("demo", "test", "lock"):
        assert f"make {target} " in done.stdout


def test_machine_without_a_new_python_is_told_what_to_do(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "requirements/bootstrap.txt", "requirements/dev.txt", "tools/bootstrap.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = run_make(tmp_path, "venv", "PYTHON=")
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr
    assert "python3-venv" in done.stderr


def test_finished_environment_is_left_alone(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    names = (
        "pyproject.toml",
        "requirements/bootstrap.txt",
        "requirements/dev.txt",
        "tools/bootstrap.py",
        ".venv/.ready",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv/.ready").write_text(f"{tmp_path}\n")
    assert run_make(tmp_path, "venv", "PYTHON=").returncode == 0
    (tmp_path / ".venv/.ready").write_text("/another/place\n")
    assert run_make(tmp_path, "venv", "PYTHON=").returncode != 0
