"""Tests of files that are written whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from longboat.disk_sync import whole_file, write_whole


@pytest.mark.parametrize("synced", [False, True])
def test_file_takes_the_place_of_the_old_one_with_its_own_permissions(tmp_path: Path, synced: bool) -> None:
    path = tmp_path / "keys.json"
    path.write_text("old")
    write_whole(path, "neu\u00e9", mode=0o660, synced=synced)  # also what the umask takes
    assert path.read_text("utf-8") == "neu\u00e9"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert list(tmp_path.iterdir()) == [path]


def test_file_stays_as_it_was_where_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="half"), whole_file(path) as file:
        file.write(b"half of it")
        raise ValueError("half of it")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
