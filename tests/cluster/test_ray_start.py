"""How long a start of Ray is waited for, and which processes its end takes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from longboat.cluster.host.adopted import ray_here
from longboat.cluster.host.ray_processes import end_processes_of_ray, processes_of_ray
from longboat.cluster.host.ray_start import forget_own_address, patient, with_lean_dashboard
from longboat.cluster.host.record import ClusterRecord

WRITER = "import os, sys; file = open(os.environ['LOG'], 'w'); print('open', flush=True); sys.stdin.read()"


class Raylet:
    """A raylet that registers after some looks at it, on a clock of its own."""

    def __init__(self, num_looks: int) -> None:
        self.num_looks = num_looks
        self.now_s = 0.0

    def find(self, address: str) -> str:
        self.num_looks -= 1
        if self.num_looks > 0:
            raise RuntimeError("no node info")
        return f"node at {address}"

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def patiently(self, is_starting: Callable[[], bool]) -> str:
        return patient(self.find, is_starting, clock=lambda: self.now_s, sleep=self.sleep)("here")


def test_a_slow_raylet_is_waited_for_while_it_lives() -> None:
    slow = Raylet(200)
    assert slow.patiently(lambda: True) == "node at here"
    assert slow.now_s > 30, "Ray itself gives up after 30 s"


def test_a_raylet_that_never_registers_is_given_up() -> None:
    with pytest.raises(RuntimeError, match="no node info"):
        Raylet(10**9).patiently(lambda: True)


def test_a_raylet_that_died_is_not_waited_for() -> None:
    dead = Raylet(10**9)
    with pytest.raises(RuntimeError, match="no node info"):
        dead.patiently(lambda: False)
    assert dead.now_s == 0


@pytest.mark.parametrize(
    ("process", "env", "expected"),
    [
        ("dashboard", {}, ["dashboard.py", "--modules-to-load=ServeHead"]),
        ("dashboard", {"LONGBOAT_RAY_DASHBOARD": "1"}, ["dashboard.py"]),
        ("raylet", {}, ["dashboard.py"]),
    ],
)
def test_a_head_starts_the_part_of_the_dashboard_that_steers_serve(
    process: str, env: dict[str, str], expected: list[str]
) -> None:
    started = []
    with_lean_dashboard(lambda command, kind, **more: started.append((command, kind, more)), env)(
        ["dashboard.py"], process, fate_share=True
    )
    assert started == [(expected, process, {"fate_share": True})]


@pytest.fixture
def writes(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts the leader of a session that has a log in Ray's folder open; returns its pid."""
    folder = tmp_path / "session_1" / "logs"
    folder.mkdir(parents=True)
    with ExitStack() as stack:

        def start(log: str) -> int:
            process = subprocess.Popen(
                [sys.executable, "-c", WRITER],
                env={**os.environ, "LOG": str(folder / log)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"open\n"
            return process.pid

        yield start


def test_a_program_that_uses_the_cluster_outlives_it(writes: Callable[..., int], tmp_path: Path) -> None:
    worker = writes("python-core-worker-1.log")
    dashboard = writes("python-core-driver-2.log")  # a driver, as a user's program is, but in the session of the node
    command = writes("python-core-driver-3.log")
    assert set(processes_of_ray(str(tmp_path), session=dashboard)) == {worker, dashboard}
    assert end_processes_of_ray(str(tmp_path), session=dashboard) == sorted([worker, dashboard])
    assert os.waitpid(command, os.WNOHANG) == (0, 0)


def test_a_program_that_reads_a_log_of_ray_outlives_the_node(tmp_path: Path) -> None:
    log = tmp_path / "session_1" / "logs" / "gcs_server.out"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    named = ["tail", "-n", "1", "-f", str(log)]
    reads = "import sys; file = open('gcs_server.out'); print(file.readline(), end='', flush=True); sys.stdin.read()"
    collector = [sys.executable, "-c", reads]
    with ExitStack() as stack:
        for argv in (named, collector):
            reader = subprocess.Popen(
                argv, cwd=log.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            stack.enter_context(reader)
            stack.callback(reader.kill)
            assert reader.stdout is not None and reader.stdout.readline() == b"a line\n"
        assert processes_of_ray(str(tmp_path), os.getsid(0)) == []


@contextmanager
def ray_start(folder: Path, *words: str, has_raylet: bool) -> Iterator[int]:
    """A process with the words of ``ray start``, and its raylet where it has one; yields the former's pid."""
    raylet = folder / "raylet"
    if not raylet.exists():
        shutil.copy(shutil.which("sh") or "/bin/sh", raylet)
    program = "import subprocess, sys; print('up', flush=True); sys.stdin.read()"
    if has_raylet:
        start = "subprocess.Popen([sys.argv[-1], '-c', 'echo up; read line', sys.argv[-2] + '/session_1'])"
        program = f"import subprocess, sys; child = {start}; child.wait()"
    argv = [sys.executable, "-c", program, "longboat.cluster.host.ray_start", *words, str(folder), str(raylet)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()  # both end with it


@pytest.mark.parametrize("words", [[], ["--standby"]], ids=["first", "prepared"])
def test_ray_is_found_whichever_way_it_was_started(words: list[str], tmp_path: Path) -> None:
    record = ClusterRecord(
        role="worker", address="", interface="", gcs_address="", run="", temp_dir=str(tmp_path), token_file=""
    )
    taken, waiting = ray_start(tmp_path, *words, has_raylet=True), ray_start(tmp_path, "--standby", has_raylet=False)
    with taken as starter, waiting:
        found = ray_here(record)
        assert found is not None and found.starter == starter
        assert found.is_whole
    assert ray_here(record) is None


@pytest.mark.parametrize("role", ["--head", "--address"])
def test_a_head_forgets_where_it_was_before_another_network_may_have_that_address(tmp_path: Path, role: str) -> None:
    from ray._private.services import find_bootstrap_address
    from ray._private.utils import write_ray_address

    write_ray_address("127.0.0.1:6379", str(tmp_path))
    forget_own_address([role, "--temp-dir", str(tmp_path)])
    assert find_bootstrap_address(str(tmp_path)) == (None if role == "--head" else "127.0.0.1:6379")
