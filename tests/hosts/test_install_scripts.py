"""The scripts that install on a host: one at a time, also beside one that a cut run has left."""

from __future__ import annotations

import os
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from longboat.file_lock import FileLock


def ended(name: str, software: Path) -> subprocess.CompletedProcess[str]:
    """Run a script whose programs only note that they were called."""
    for program in ("uv", "longboat"):
        path = software / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {program} >> {software}/calls\nexit 1\n")
        path.chmod(0o755)
    text = files("longboat.hosts.remote").joinpath(f"scripts/{name}.sh").read_text()
    given = {"SOFTWARE": str(software), "RELEASE": "r", "ENGINE": "vllm", "WAIT_S": "0", "INDEX_URL": ""}
    given |= {"IS_BUNDLE": "0", "PYTHON": "3.11", "REQUIREMENT": "longboat"}
    return subprocess.run(
        ["sh", "-c", text], env={**os.environ, **given}, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("name", ["release", "engine"])
def test_an_installation_waits_for_the_one_that_a_cut_run_left(name: str, tmp_path: Path) -> None:
    lock = FileLock.taken(tmp_path / "install.lock")
    assert lock is not None
    (tmp_path / "install.lock").write_text("4711\n")
    with lock:
        done = ended(name, tmp_path)
    assert done.returncode == 1 and "process 4711 still installs on this host" in done.stderr
    assert not (tmp_path / "calls").exists()
    ended(name, tmp_path)
    assert (tmp_path / "calls").read_text().split() == [{"release": "uv", "engine": "longboat"}[name]]


def test_a_release_that_the_cut_run_has_installed_is_kept(tmp_path: Path) -> None:
    mark = tmp_path / "releases" / "r" / ".complete"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert ended("release", tmp_path).returncode == 0
    assert mark.exists() and not (tmp_path / "calls").exists()
