"""The access log: whole lines, rotation by one of several processes, disks that are full or slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from test_recent import record

from longboat.gateway.records.access_log import AccessLog, RotatingFile, access_line
from longboat.gateway.records.recent import Attempt

WRITER = """
import sys
from longboat.gateway.records.access_log import RotatingFile
path, name, num_blocks, max_bytes, keep = sys.argv[1:]
file = RotatingFile(path, max_bytes=int(max_bytes), keep=int(keep))
print("ready", flush=True)
sys.stdin.readline()
for block in range(int(num_blocks)):
    file.append("".join(f'{{"id": "{name}-{block}-{line}"}}\\n' for line in range(20)).encode())
"""


def lines(*paths: Path) -> list[str]:
    return [json.loads(line)["id"] for path in paths for line in path.read_text().splitlines()]


def rotated(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*"), key=lambda p: int(p.suffix[1:]))


def run_writers(path: Path, *, num: int, num_blocks: int, max_bytes: int, keep: int) -> None:
    argv = [sys.executable, "-c", WRITER, str(path)]
    pipe = subprocess.PIPE
    writers = [
        subprocess.Popen([*argv, f"w{n}", str(num_blocks), str(max_bytes), str(keep)], stdin=pipe, stdout=pipe)
        for n in range(num)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    for writer in writers:
        writer.communicate(b"go\n", timeout=60)
        assert writer.returncode == 0


def test_several_processes_rotate_one_file_and_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    run_writers(path, num=3, num_blocks=150, max_bytes=8192, keep=1000)
    found = lines(path, *rotated(path))
    assert len(rotated(path)) >= 10
    assert len(found) == len(set(found)) == 3 * 150 * 20
    assert all(file.stat().st_size < 8192 + 3 * 1000 for file in rotated(path))


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    run_writers(path, num=2, num_blocks=100, max_bytes=4096, keep=3)
    assert [file.name for file in rotated(path)] == ["access.log.1", "access.log.2", "access.log.3"]


def test_order_is_kept_across_rotations(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    file = RotatingFile(str(path), max_bytes=4096, keep=4)
    for number in range(1000):
        file.append(b'{"id": "%d"}\n' % number)
    file.close()
    newest_last = lines(*reversed(rotated(path)), path)
    assert newest_last == [str(n) for n in range(1000 - len(newest_last), 1000)]


def test_fewer_are_kept_after_the_setting_is_lowered(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    for keep in (5, 2):
        file = RotatingFile(str(path), max_bytes=100, keep=keep)
        for _ in range(10):
            file.append(b'{"id": "x"}\n' * 10)
        file.close()
    assert [old.name for old in rotated(path)] == ["access.log.1", "access.log.2"]


def test_no_old_file_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    file = RotatingFile(str(path), max_bytes=100, keep=0)
    for _ in range(10):
        file.append(b'{"id": "x"}\n' * 10)
    file.close()
    assert list(tmp_path.iterdir()) == [path] and path.stat().st_size < 200


@pytest.mark.parametrize("gone", ["renamed", "removed"])
def test_file_that_somebody_else_takes_away_is_begun_anew(gone: str, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    file = RotatingFile(str(path), max_bytes=1 << 20, keep=1)
    file.append(b'{"id": "before"}\n')
    path.rename(tmp_path / "taken") if gone == "renamed" else path.unlink()
    file.append(b'{"id": "after"}\n')
    file.close()
    assert lines(path) == ["after"]


def test_log_is_closed_to_other_users(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access.log"))
    log.close()
    assert (tmp_path / "access.log").stat().st_mode & 0o777 == 0o600


def test_device_is_written_to_and_not_renamed() -> None:
    log = AccessLog("/dev/full", max_bytes=1)
    log.write({"id": "x"})
    log.write({"id": "y"})
    log.close()
    assert log.num_dropped == 2
    assert Path("/dev/full").exists()


def test_everything_written_is_in_the_file_after_close(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access.log"))
    for number in range(5000):
        log.write({"id": number, "text": "x" * 50})
    log.close()
    assert lines(tmp_path / "access.log") == list(range(5000))
    assert log.num_dropped == 0


def test_disk_that_hangs_holds_up_no_caller_and_costs_bounded_memory() -> None:
    reader, writer = os.pipe()
    log = AccessLog(f"/proc/self/fd/{writer}")
    os.close(writer)
    for _ in range(20_000):  # 20 MB into a pipe of 64 kB that nobody reads
        log.write({"text": "x" * 1000})
    assert 5_000 < log.num_dropped < 15_000
    received: list[int] = []
    drain = threading.Thread(target=lambda: received.append(_count_lines(reader)))
    drain.start()
    log.close()
    drain.join(30.0)
    assert received == [20_000 - log.num_dropped]


def test_line_of_a_request_has_its_facts() -> None:
    attempts = (Attempt("r0", 0.1, "refused", 0.2), Attempt("r1", 0.2))
    line = json.loads(access_line(record(attempts=attempts, queued_s=0.0, granted_s=0.1, code="engine_lost")))
    assert (line["id"], line["tenant"], line["replica"], line["retries"]) == ("req-1", "a", "r1", 1)
    assert (line["prompt_tokens"], line["completion_tokens"], line["queue_ms"]) == (7, 9, 100.0)
    assert (line["time"], line["total_ms"], line["ttft_ms"]) == (1002.0, 2000.0, 250.0)
    assert line["error"] == "engine_lost"
    assert "error" not in json.loads(access_line(record()))


def _count_lines(reader: int) -> int:
    with os.fdopen(reader, "rb") as pipe:
        return sum(1 for _ in pipe)
