"""Logs of a node keep within their bounds, and a reader that follows one loses no line when it is rotated."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from longboat.cluster.node import log_bounds
from longboat.cluster.node.log_bounds import LogFolder, bound_logs, surplus
from longboat.cluster.node.rank_logs import list_logs, read_log

NOW_S = 1_000_000.0


def log_of(run: Path, replica: str = "r") -> Path:
    path = run / "logs" / "m" / replica / "rank0.log"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_large_log_becomes_the_previous_one_while_its_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_bounds, "MOST_FILE_BYTES", 100)
    path = log_of(tmp_path)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\n" * 20)
        bound_logs(tmp_path, NOW_S)
        assert path.stat().st_size == 80
        offset, _ = read_log(tmp_path, "m", "r", 0, None, 1)
        writer.write(b"two\n" * 20)
        bound_logs(tmp_path, NOW_S)
        writer.write(b"three\n")
    assert path.read_bytes() == b"three\n"
    assert path.with_name("rank0.log.1").read_bytes() == b"one\n" * 20 + b"two\n" * 20
    offset, rest = read_log(tmp_path, "m", "r", 0, offset, 0)
    assert (offset, rest) == (0, "two\n" * 20)
    assert read_log(tmp_path, "m", "r", 0, offset, 0) == (6, "three\n")
    assert [(replica, rank) for replica, rank, _ in list_logs(tmp_path, "m")] == [("r", 0)]


def test_on_a_full_disk_a_log_is_rotated_in_the_room_of_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_bounds, "MOST_FILE_BYTES", 100)
    path = log_of(tmp_path)
    previous = path.with_name("rank0.log.1")
    path.write_bytes(b"new\n" * 50)
    previous.write_bytes(b"old\n" * 50)
    copy = shutil.copyfile

    def copy_where_there_is_room(source: Path, target: Path) -> None:
        if previous.exists():
            target.write_bytes(b"new\n")  # a part
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copy_where_there_is_room)
    bound_logs(tmp_path, NOW_S)
    assert path.read_bytes() == b""
    assert previous.read_bytes() == b"new\n" * 50


def test_other_logs_of_the_node_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_bounds, "MOST_FILE_BYTES", 100)
    paths = [tmp_path / "logs" / "node.log", tmp_path / "zygotes" / "k.log", tmp_path / "gateway" / "gateway.log"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 101)
    bound_logs(tmp_path, NOW_S)
    assert [path.stat().st_size for path in paths] == [0, 0, 0]


def test_the_oldest_replicas_logs_go_first_and_those_in_use_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_bounds, "MOST_BYTES", 250)
    for number, age_s in enumerate((9000, 7200, 6000, 5000, 10)):
        path = log_of(tmp_path, f"r{number}")
        path.write_bytes(b"x" * 100)
        os.utime(path, (NOW_S - age_s,) * 2)
    with (tmp_path / "logs" / "m" / "r1" / "rank0.log").open("ab"):  # a replica that has had nothing to say
        bound_logs(tmp_path, NOW_S)
    assert sorted(folder.name for folder in (tmp_path / "logs" / "m").iterdir()) == ["r1", "r3", "r4"]


def test_nothing_young_is_removed_whatever_it_takes() -> None:
    young = [LogFolder(Path(str(n)), 1 << 40, NOW_S - 60) for n in range(3)]
    assert surplus(young, NOW_S) == []
    old = LogFolder(Path("old"), 1, NOW_S - 7200)
    assert surplus([*young, old], NOW_S) == [old]


@pytest.mark.parametrize(("num_lines", "text"), [(0, ""), (1, "half"), (2, "two\nhalf"), (9, "one\ntwo\nhalf")])
def test_the_end_of_a_log_is_read_as_it_is_there(tmp_path: Path, num_lines: int, text: str) -> None:
    path = log_of(tmp_path)
    path.write_text("one\ntwo\nhalf")
    offset, told = read_log(tmp_path, "m", "r", 0, None, num_lines)
    assert told == text
    with path.open("a") as log:
        log.write(" and half\n")
    assert read_log(tmp_path, "m", "r", 0, offset, num_lines)[1] == " and half\n"


def test_the_oldest_logs_of_rays_processes_go_once_these_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_bounds, "MOST_OF_PROCESSES", 2)
    logs = tmp_path / "ray" / "session_1" / "logs"
    (logs / "serve").mkdir(parents=True)
    (tmp_path / "ray" / "session_latest").symlink_to(tmp_path / "ray" / "session_1")
    names = ["worker-a.out", "python-core-worker-b.log", "serve/replica_c.log", "worker-d.err", "worker-e.out"]
    for number, (name, age_s) in enumerate(zip(names, (9000, 8000, 7000, 10, 5), strict=True)):
        (logs / name).write_text(str(number))
        os.utime(logs / name, (NOW_S - age_s,) * 2)
    (logs / "raylet.out").touch()
    with (logs / names[0]).open():
        bound_logs(tmp_path, NOW_S)
    assert sorted(str(path.relative_to(logs)) for path in logs.rglob("*.*")) == sorted(
        [names[0], "raylet.out", "worker-d.err", "worker-e.out"]
    )
