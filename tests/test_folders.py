"""The run folder: private, ours, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longboat.core.errors import ClusterError
from longboat.folders import run_folder


def test_the_run_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for name in ("new", "open"):
        assert run_folder({"LONGBOAT_RUN": str(tmp_path / name)}).stat().st_mode & 0o777 == 0o700


def test_a_run_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = Path("/")
    if os.getuid() == 0:
        folder = tmp_path
        os.chown(folder, 65534, -1)
    with pytest.raises(ClusterError, match="belongs to user") as caught:
        run_folder({"LONGBOAT_RUN": str(folder)})
    assert "LONGBOAT_RUN" in caught.value.hint


def test_a_run_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot be the run folder"):
        run_folder({"LONGBOAT_RUN": str(tmp_path / "file")})
