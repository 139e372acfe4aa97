"""Tests of the keeper: nothing of a rank outlives its owner, and its end is reported truthfully."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from longboat_vllm.process import keeper
from waiting import is_alive, wait_until

KEEPER = keeper.__file__
DEADLINE_S = 20.0

FAMILY = """
import os, subprocess, sys, time
folder = sys.argv[1]
def child(name, **how):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **how)
    open(os.path.join(folder, name), "w").write(str(process.pid))
child("plain")
child("own_session", start_new_session=True)
open(os.path.join(folder, "main"), "w").write(str(os.getpid()))
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@dataclass
class Rank:
    lifeline_fd: int
    status: Iterator[str]
    started: dict[str, object]

    @property
    def keeper_pid(self) -> int:
        return int(str(self.started["keeper_pid"]))

    @property
    def pid(self) -> int:
        return int(str(self.started["pid"]))

    def exit_event(self) -> dict[str, object]:
        event: dict[str, object] = json.loads(next(self.status))
        return event


@contextlib.contextmanager
def kept(argv: list[str], *, grace_s: float = 10.0, env: dict[str, str] | None = None) -> Iterator[Rank]:
    lifeline_read, lifeline_write = os.pipe()
    status_read, status_write = os.pipe()
    words = [sys.executable, "-I", KEEPER, "--lifeline", str(lifeline_read), "--status", str(status_write)]
    subprocess.run(
        [*words, "--grace", str(grace_s), "--", *argv],
        pass_fds=(lifeline_read, status_write),
        env={**os.environ, **(env or {})},
        check=True,
        timeout=DEADLINE_S,
    )
    os.close(lifeline_read)
    os.close(status_write)
    with os.fdopen(status_read) as status:
        rank = Rank(lifeline_write, iter(status), json.loads(status.readline()))
        try:
            yield rank
        finally:
            with contextlib.suppress(OSError):
                os.close(lifeline_write)
            for _ in status:
                pass


def family(folder: Path, *, lives_s: float = 600, returncode: int = 0) -> list[str]:
    return [sys.executable, "-c", FAMILY, str(folder), str(lives_s), str(returncode)]


def family_pids(folder: Path) -> dict[str, int]:
    names = ("main", "plain", "own_session")
    wait_until(lambda: all((folder / name).exists() and (folder / name).read_text() for name in names), "family")
    return {name: int((folder / name).read_text()) for name in names}


def test_lifeline_end_kills_main_and_children_in_other_sessions(tmp_path: Path) -> None:
    with kept(family(tmp_path)) as rank:
        pids = family_pids(tmp_path)
        os.close(rank.lifeline_fd)
        assert rank.exit_event() == {"event": "exit", "returncode": None, "signal": signal.SIGKILL}
        assert not [name for name, pid in pids.items() if is_alive(pid)]
        wait_until(lambda: not is_alive(rank.keeper_pid), "keeper ends")


def test_sigkill_of_the_owner_kills_the_rank(tmp_path: Path) -> None:
    owner_code = (
        "import os, subprocess, sys, time\n"
        "r, w = os.pipe(); s, t = os.pipe()\n"
        f"subprocess.run([sys.executable, '-I', {KEEPER!r}, '--lifeline', str(r), '--status', str(t), '--',"
        " *sys.argv[1:]],"
        " pass_fds=(r, t), check=True)\n"
        "os.close(r); print(os.read(s, 1000).decode(), end='', flush=True); time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", owner_code, *family(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    started = json.loads(owner.stdout.readline())
    pids = [*family_pids(tmp_path).values(), started["keeper_pid"]]
    owner.kill()
    owner.wait(DEADLINE_S)
    owner.stdout.close()
    wait_until(lambda: not any(map(is_alive, pids)), "rank ends with its owner")


@pytest.mark.parametrize("returncode", [0, 3])
def test_exit_code_of_main_is_reported_after_its_children_are_gone(tmp_path: Path, returncode: int) -> None:
    with kept(family(tmp_path, lives_s=0, returncode=returncode)) as rank:
        assert rank.exit_event() == {"event": "exit", "returncode": returncode, "signal": None}
        assert not [name for name, pid in family_pids(tmp_path).items() if is_alive(pid)]


def test_signal_that_ended_main_is_reported(tmp_path: Path) -> None:
    with kept(["sleep", "600"]) as rank:
        os.kill(rank.pid, signal.SIGSEGV)
        assert rank.exit_event() == {"event": "exit", "returncode": None, "signal": signal.SIGSEGV}


def test_command_that_does_not_exist_ends_with_127() -> None:
    with kept(["/no/such/program"]) as rank:
        assert rank.exit_event()["returncode"] == 127


@pytest.mark.parametrize("how", ["command", "signal"])
def test_gentle_end_lets_main_finish(how: str, tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
    code += "open(sys.argv[1], 'w').close(); time.sleep(600)"
    with kept([sys.executable, "-c", code, str(tmp_path / "set")], grace_s=60) as rank:
        wait_until((tmp_path / "set").exists, "handler is set")
        if how == "command":
            os.write(rank.lifeline_fd, b"T 50")
        else:
            os.kill(rank.keeper_pid, signal.SIGTERM)
        assert rank.exit_event() == {"event": "exit", "returncode": 7, "signal": None}


def ignored_signals(pid: int) -> int:
    return status_mask(pid, "SigIgn")


def status_mask(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1], 16)
    return 0


def test_gentle_end_becomes_a_kill_after_the_grace_time() -> None:
    with kept([sys.executable, "-c", STUBBORN], grace_s=60) as rank:
        wait_until(lambda: ignored_signals(rank.pid) & (1 << (signal.SIGTERM - 1)) != 0, "signal is ignored")
        os.write(rank.lifeline_fd, b"T 0.1")
        assert rank.exit_event()["signal"] == signal.SIGKILL


def test_gentle_end_right_after_the_start_is_not_lost() -> None:
    for _ in range(10):
        with kept(["sleep", "600"], grace_s=600) as rank:
            os.write(rank.lifeline_fd, b"T")
            assert rank.exit_event()["signal"] == signal.SIGTERM


def test_kill_command_does_not_wait_for_the_grace_time() -> None:
    with kept([sys.executable, "-c", STUBBORN], grace_s=600) as rank:
        wait_until(lambda: ignored_signals(rank.pid) & (1 << (signal.SIGTERM - 1)) != 0, "signal is ignored")
        os.write(rank.lifeline_fd, b"T")
        os.write(rank.lifeline_fd, b"K")
        assert rank.exit_event()["signal"] == signal.SIGKILL


def test_main_starts_with_default_signals_and_no_extra_descriptors() -> None:
    with kept(["sleep", "600"]) as rank:
        wait_until(lambda: Path(f"/proc/{rank.pid}/comm").read_text() == "sleep\n", "the program runs")
        assert ignored_signals(rank.pid) & (1 << (signal.SIGPIPE - 1)) == 0
        own = {"0", "1", "2"}  # the loader of programs opens a library for a moment
        wait_until(lambda: set(os.listdir(f"/proc/{rank.pid}/fd")) == own, "the program has no further descriptors")


def test_signals_to_the_engines_group_spare_the_keeper() -> None:
    code = "import os, signal; os.killpg(os.getpgrp(), signal.SIGKILL)"
    with kept([sys.executable, "-c", code]) as rank:
        assert rank.exit_event()["signal"] == signal.SIGKILL


def test_main_dies_with_a_killed_keeper() -> None:
    with kept(["sleep", "600"]) as rank:
        os.kill(rank.keeper_pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(rank.pid), "main ends with its keeper")


def reap(*words: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-I", KEEPER, "--reap", *words], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return [int(word) for word in done.stdout.split()]


def test_reap_kills_orphans_of_a_killed_keeper_and_prints_them(tmp_path: Path) -> None:
    marks = {"LONGBOAT_GANG": f"test/{uuid.uuid4()}", "LONGBOAT_GENERATION": "4"}
    with kept(family(tmp_path), env=marks) as rank:
        pids = family_pids(tmp_path)
        os.kill(rank.keeper_pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pids["main"]), "main ends with its keeper")
        assert is_alive(pids["own_session"])
        assert reap(f"LONGBOAT_GANG={marks['LONGBOAT_GANG']}") == sorted((pids["plain"], pids["own_session"]))
        assert not any(map(is_alive, pids.values()))


def test_reap_finds_a_child_that_hides_its_environment(tmp_path: Path) -> None:
    gang = f"test/{uuid.uuid4()}"
    with kept(["sh", "-c", "env -i sleep 600 & wait"], env={"LONGBOAT_GANG": gang}) as rank:
        wait_until(lambda: len(keeper.descendants(rank.pid)) == 1, "child runs")
        pids = {rank.pid, rank.keeper_pid, *keeper.descendants(rank.pid)}
        assert set(reap(f"LONGBOAT_GANG={gang}")) <= pids
        assert not any(map(is_alive, pids))


def test_reap_by_generation_spares_the_newer(tmp_path: Path) -> None:
    gang = f"test/{uuid.uuid4()}"
    old, new = ({"LONGBOAT_GANG": gang, "LONGBOAT_GENERATION": number} for number in ("9", "10"))
    with kept(["sleep", "600"], env=old) as old_rank, kept(["sleep", "600"], env=new) as new_rank:
        reap(f"LONGBOAT_GANG={gang}", "--older-than-generation", "10")
        assert not is_alive(old_rank.pid)
        assert is_alive(new_rank.pid)


_IN_A_SESSION_WHOSE_LEADER_ENDS = """
import os, subprocess, sys, time
gang, keeper, told = sys.argv[1:]
if os.fork():
    os._exit(0)  # the leader; its number stays that of the session
leader = os.getsid(0)
while os.path.exists(f"/proc/{leader}"):
    time.sleep(0.01)
bystander = subprocess.Popen(["sleep", "60"])
tagged = subprocess.Popen(["sleep", "60"], env={**os.environ, "LONGBOAT_GANG": gang})
done = subprocess.run([sys.executable, "-I", keeper, "--reap", f"LONGBOAT_GANG={gang}"], timeout=60)
time.sleep(0.2)
said = f"{done.returncode} {tagged.wait(30)} {bystander.poll()}"
bystander.kill()
with open(f"{told}.part", "w") as file:
    file.write(said)
os.rename(file.name, told)
"""


def test_reap_spares_its_own_session_also_where_its_leader_has_ended(tmp_path: Path) -> None:
    """The leader was a shell, and what it started in the background goes on."""
    told = tmp_path / "told"
    words = (sys.executable, "-c", _IN_A_SESSION_WHOSE_LEADER_ENDS, f"test/{os.getpid()}/leader", KEEPER, str(told))
    subprocess.run(words, start_new_session=True, timeout=DEADLINE_S, check=True)
    wait_until(told.is_file)
    assert told.read_text() == "0 -9 None"


def test_reap_spares_what_was_started_from_outside_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Session 0 is that of every process that came from there, such as those of ``docker exec``."""
    table = {1: (0, 1), 20: (0, 0), 21: (20, 0), 30: (0, 0), 40: (1, 39), 41: (1, 39), os.getpid(): (1, 1)}
    monkeypatch.setattr(keeper, "_process_table", lambda: table)
    monkeypatch.setattr(keeper, "environment_of", lambda pid: {"LONGBOAT_GANG": "m/0"} if pid in (20, 40) else {})
    assert keeper._find_tagged({"LONGBOAT_GANG": "m/0"}, None) == {20, 21, 40, 41}


def test_reap_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no tags"):
        keeper.reap({})


SHARER = """
import os, sys, time
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
name = sys.argv[2] + os.urandom(4).hex() if sys.argv[2:] else None
segment = shared_memory.SharedMemory(name, create=True, size=4096)
temporary = os.path.join(os.environ.get("TMPDIR", ""), "socket")
open(temporary, "w").close()
open(sys.argv[1] + ".part", "w").write(f"/dev/shm/{segment.name} {temporary}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A run folder with a short path, as they usually are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", [(), ("sglang_loads_",), ("sgl_shm_mq_",), ("VLLM_OBJECT_STORAGE_SHM_BUFFER_",)])
def test_a_killed_rank_leaves_no_shared_memory_and_no_temporary_files(
    name: tuple[str, ...], tmp_path: Path, run_folder: Path
) -> None:
    """name: the beginning of its name, where the engine itself chooses it"""
    said = tmp_path / "said"
    with kept([sys.executable, "-c", SHARER, str(said), *name], env={"LONGBOAT_RUN": str(run_folder)}) as rank:
        wait_until(said.exists, "the rank to make its files")
        segment, temporary = map(Path, said.read_text().split())
        assert segment.exists()
        assert temporary.is_relative_to(run_folder / "scratch") and temporary.exists()
        os.close(rank.lifeline_fd)
        rank.exit_event()
        assert not segment.exists()
        assert list(run_folder.iterdir()) == []


def test_temporary_files_have_short_paths_where_the_run_folder_has_a_long_one(tmp_path: Path) -> None:
    said, run = tmp_path / "said", tmp_path / ("job-1234567-" * 4)
    run.mkdir()
    with kept([sys.executable, "-c", SHARER, str(said)], env={"LONGBOAT_RUN": str(run)}) as rank:
        wait_until(said.exists, "the rank to make its files")
        temporary = Path(said.read_text().split()[1])
        assert len(str(temporary.parent / str(uuid.uuid4()))) <= 107, "vLLM makes sockets of such names there"
        assert temporary.parent.stat().st_mode & 0o077 == 0
        os.close(rank.lifeline_fd)
        rank.exit_event()
        wait_until(lambda: not temporary.parent.parent.exists(), "its folder to be removed")


def test_shared_memory_of_a_rank_that_dies_at_once_is_removed_too(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with kept([sys.executable, "-c", SHARER, str(said)], env={"LONGBOAT_RUN": str(tmp_path)}) as rank:
        wait_until(said.exists, "the rank to make its files")
        segment = Path(said.read_text().split()[0])
        time.sleep(3.0)  # the keeper looks after 0.5 and 1.5 s
        os.kill(rank.pid, signal.SIGKILL)
        rank.exit_event()
        assert not segment.exists()


def test_shared_memory_of_a_rank_that_kills_itself_when_it_is_asked_to_end_is_removed_too(tmp_path: Path) -> None:
    """As SGLang does, soon after it made something: between two looks of the keeper."""
    said = tmp_path / "said"
    late = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os.kill(0, 9)); time.sleep(2)"
    with kept([sys.executable, "-c", f"{late}\n{SHARER}", str(said)], env={"LONGBOAT_RUN": str(tmp_path)}) as rank:
        wait_until(said.exists, "the rank to make its files")
        segment = Path(said.read_text().split()[0])
        os.write(rank.lifeline_fd, b"T 10 ")
        assert rank.exit_event()["signal"] == signal.SIGKILL
        assert not segment.exists()


def test_what_lay_in_shared_memory_before_is_left_alone(tmp_path: Path) -> None:
    code = "import mmap, sys, time; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); time.sleep(600)"
    for name in ("psm_", "model"):
        path = Path("/dev/shm") / f"{name}{uuid.uuid4().hex[:8]}"
        path.write_bytes(b"x" * 4096)
        try:
            time.sleep(1.2)  # older than the rank, by the clock of files
            with kept([sys.executable, "-c", code, str(path)]) as rank:
                wait_until(
                    lambda path=path, pid=rank.pid: str(path) in Path(f"/proc/{pid}/maps").read_text(), "mapping"
                )
                os.close(rank.lifeline_fd)
                rank.exit_event()
            assert path.exists()
        finally:
            path.unlink()


def test_the_leftovers_of_a_killed_keeper_are_swept_by_the_next(run_folder: Path) -> None:
    """Also where the killed keeper still has its number: a container's first process may collect no orphans."""
    with subprocess.Popen(["/bin/true"]) as uncollected:
        wait_until(lambda: not is_alive(uncollected.pid), "the process to end")
        stale = [run_folder / "scratch" / name for name in ("4194304999", str(uncollected.pid))]
        for folder in stale:
            folder.mkdir(parents=True)
        with kept([sys.executable, "-c", "import time; time.sleep(600)"], env={"LONGBOAT_RUN": str(run_folder)}):
            assert not any(folder.exists() for folder in stale)
