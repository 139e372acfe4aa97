"""The run folder: private, ours, or refused; and whose logs stay in it."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longboat.core.errors import ClusterError
from longboat.folders import MAX_LOGGED_REPLICAS, log_path, private_folder, run_folder, temporary_folder


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


def test_a_link_in_place_of_a_private_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(NotADirectoryError, match="link"):
        private_folder(tmp_path / "link")
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o755


def test_a_link_that_the_user_names_may_be_the_run_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("own")
    assert run_folder({"LONGBOAT_RUN": str(tmp_path / "link")}) == tmp_path / "link"
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_a_run_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot be the run folder"):
        run_folder({"LONGBOAT_RUN": str(tmp_path / "file")})


def test_a_replica_that_runs_keeps_its_log_however_often_another_one_starts(tmp_path: Path) -> None:
    quiet, busy = (log_path(tmp_path, "m", name, 0) for name in ("quiet", "busy"))
    with quiet.open("a") as log:
        for number in range(MAX_LOGGED_REPLICAS + 5):
            busy.write_text("it works\n")  # and closed again: the newest line counts, and not the folder's own time
            other = log_path(tmp_path, "m", f"dies{number}", 0)
            other.write_text("it died\n")
            for path in (other, other.parent):
                os.utime(path, (1_000_000 + number,) * 2)
            for path in (quiet, quiet.parent, busy.parent):
                os.utime(path, (1000, 1000))
        log.write("it works\n")
    left = {folder.name for folder in (tmp_path / "logs" / "m").iterdir()}
    assert quiet.read_text() == busy.read_text() == "it works\n"
    assert "dies54" in left and "dies0" not in left
    assert len(left) == MAX_LOGGED_REPLICAS + 1, "beside the newest ones, one is in use"


def test_replicas_that_start_at_once_do_not_fail_over_the_logs_that_they_remove(tmp_path: Path) -> None:
    for number in range(4 * MAX_LOGGED_REPLICAS):
        old = tmp_path / "logs" / "m" / f"old{number}"
        old.mkdir(parents=True)
        os.utime(old, (1000, 1000))
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda number: log_path(tmp_path, "m", f"new{number}", 0), range(16)))
    assert all(path.parent.is_dir() for path in paths)


def test_a_new_replica_gets_its_folder_where_all_others_seem_newer(tmp_path: Path) -> None:
    for number in range(MAX_LOGGED_REPLICAS + 1):
        later = tmp_path / "logs" / "m" / f"later{number}"
        later.mkdir(parents=True)
        os.utime(later, (4e9, 4e9))  # the clock went back since
    assert log_path(tmp_path, "m", "new", 0).parent.is_dir()


def test_run_folder_has_temporary_files_where_the_root_file_system_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_usable() -> str:
        raise FileNotFoundError("No usable temporary directory found in ['/tmp', '/var/tmp']")

    assert temporary_folder(tmp_path) == {}
    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    assert temporary_folder(tmp_path) == {"TMPDIR": str(tmp_path / "tmp")}
    assert (tmp_path / "tmp").stat().st_mode & 0o777 == 0o700
