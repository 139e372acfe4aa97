"""Workers of Ray that a warm parent forks: what a fork is, and that workers start where the parent cannot serve."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat.cluster.workers import kept_parent, start_worker, warm_parent
from longboat.cluster.workers.fork_request import ForkRequest, Verdict, judge
from longboat.cluster.workers.kept_parent import OFF, fork_workers, pause_s
from longboat_vllm.process.zygote_socket import receive, send
from waiting import is_alive, wait_until

DEADLINE_S = 60.0
ENV = {"PATH": "/usr/bin:/bin", "RAY_JOB_ID": "01000000"}
WORKER = """
import json, os, signal, sys, time
fds = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2 and
       os.path.lexists(f"/proc/self/fd/{name}")]
print(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv[1:], "env": dict(os.environ),
    "cwd": os.getcwd(), "group": os.getpgid(0), "oom": open("/proc/self/oom_score_adj").read().strip(), "fds": fds,
    "line": open("/proc/self/cmdline").read(), "child": signal.getsignal(signal.SIGCHLD).name,
    "main": sys.modules["__main__"].__file__}), flush=True)
if "stay" in sys.argv:
    time.sleep(600)
"""
PARENT = f"""
import os, sys
from longboat.cluster.workers import warm_parent as w
from longboat_vllm.process.zygote_socket import listen
path, script, starter = sys.argv[1:]
w.keeper.die_with_parent(int(starter))
code = compile({WORKER!r}, script, "exec")
parent = w.WarmParent(path, int(starter), listen(path), w.Loaded(dict(os.environ), script, code))
print("warm", flush=True)
parent.serve()
"""
STARTER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:], str(os.getpid())])
time.sleep(600)
"""

THREAD = """
import threading
from longboat.cluster.workers import warm_parent
from longboat_vllm.process.zygote import check_forkable
def helper():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
        file.write("a_helper")
    named.set()
    threading.Event().wait()
named = threading.Event()
threading.Thread(target=helper, daemon=True).start()
named.wait()
warm_parent.load = check_forkable
warm_parent._load_or_end()
"""
"""A parent in which a library has started a thread."""


def request(**changes: Any) -> dict[str, Any]:
    plain = {"argv": [], "env": ENV, "cwd": "/", "leads_group": True, "oom_score": "1000", "fingerprint": "f"}
    return {**plain, **changes}


# --- what the parent decides -----------------------------------------------------------------------------------------


def decide(*, own: dict[str, str] | None = ENV, code: str = "f", strangers: int = 0, has_forks: bool = True) -> Verdict:
    return judge(ForkRequest.read(request()), own, code, num_strangers=strangers, has_forks=has_forks)


def test_worker_of_the_environment_is_forked() -> None:
    assert decide() is Verdict.FORK


def test_parent_that_has_loaded_nothing_takes_the_first_environment() -> None:
    assert decide(own=None) is Verdict.CHANGE


@pytest.mark.parametrize("own", [{**ENV, "RAY_JOB_ID": "02000000"}, {**ENV, "MORE": "1"}, {"PATH": ENV["PATH"]}])
def test_worker_of_any_other_environment_is_never_forked(own: dict[str, str]) -> None:
    assert decide(own=own, strangers=1) is Verdict.REFUSE
    assert decide(own=own, strangers=3) is Verdict.CHANGE
    assert decide(own=own, strangers=1, has_forks=False) is Verdict.CHANGE


def test_worker_of_other_code_is_not_forked() -> None:
    assert decide(code="older") is Verdict.REFUSE
    assert decide(code="older", has_forks=False) is Verdict.CHANGE


@pytest.mark.parametrize("wrong", [{"argv": "x"}, {"argv": [1]}, {"env": []}, {"env": {"A": 1}}, {"oom_score": "x"}])
def test_request_of_wrong_shape_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ForkRequest.read(request(**wrong))


def test_pauses_between_parents_that_end_at_once_grow_to_a_minute() -> None:
    assert [pause_s(ends) for ends in (0, 1, 2, 5, 6, 100)] == [1, 2, 4, 32, 60, 60]


@pytest.mark.parametrize(("status", "goes_on"), [(warm_parent.UNABLE, False), (1, True)])
def test_no_further_parent_is_started_where_none_can_be_forked(
    status: int, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 2:
            raise InterruptedError

    monkeypatch.setattr(warm_parent, "command", lambda *_: [sys.executable, "-S", "-c", f"raise SystemExit({status})"])
    monkeypatch.setattr(kept_parent.time, "sleep", pause)
    with contextlib.suppress(InterruptedError):
        kept_parent._keep(tmp_path, {})
    assert bool(paused) == goes_on


def test_parent_with_a_thread_ends_for_good_and_names_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREAD], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == warm_parent.UNABLE
    assert "start plainly" in done.stderr
    assert "a_helper" in done.stderr


# --- what Ray is given -----------------------------------------------------------------------------------------------


def started_with(env: dict[str, str], script: str, run: Path) -> list[Any]:
    calls: list[list[Any]] = []
    services = SimpleNamespace(start_raylet=lambda *args, **_: calls.append(list(args)))
    fork_workers(services, run, env, keep=lambda *_: None)
    services.start_raylet(*range(8), script, 9, is_head_node=True)
    return calls[0]


def test_raylet_is_given_our_script(tmp_path: Path) -> None:
    ours = [*range(8), start_worker.__file__, 9]
    assert started_with({}, "/ray/workers/default_worker.py", tmp_path) == ours
    assert started_with({}, "/of/another/version.py", tmp_path)[8] == "/of/another/version.py"
    assert started_with({OFF: "0"}, "/ray/workers/default_worker.py", tmp_path)[8] == "/ray/workers/default_worker.py"


# --- processes -------------------------------------------------------------------------------------------------------


class Node:
    """A run folder with a parent, and the starter that it ends with."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.socket = run / start_worker.SOCKET
        self.socket.parent.mkdir(mode=0o700)
        self.env = {**os.environ, **ENV, "LONGBOAT_RUN": str(run), "A_SECRET": "s3cret"}
        argv = [sys.executable, "-c", STARTER, PARENT, str(self.socket), "/ray/default_worker.py"]
        self.starter = subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, text=True)
        assert self.starter.stdout is not None
        assert self.starter.stdout.readline() == "warm\n"
        self.pids: list[int] = []

    def start(self, *words: str, **env: str) -> dict[str, Any]:
        """Start a worker as the raylet does; what it says of itself."""
        argv = [sys.executable, start_worker.__file__, *words]
        env = {**self.env, **env}
        with (self.run / "out").open("w+") as out:
            subprocess.run(argv, env=env, cwd="/usr", stdout=out, timeout=DEADLINE_S, check=True, process_group=0)
            wait_until(lambda: (self.run / "out").read_text().endswith("\n"))
        told = (self.run / "out").read_text()
        worker: dict[str, Any] = json.loads(told) if told.startswith("{") else {"plain": told}
        self.pids += [worker["pid"]] if "pid" in worker else []
        return worker

    def end(self) -> None:
        self.starter.kill()
        self.starter.wait()
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    with node.starter:
        yield node
        node.end()


def test_fork_is_the_worker_that_was_ordered(node: Node) -> None:
    one, other = node.start("--worker-id=1"), node.start("--worker-id=2")
    assert [one["argv"], other["argv"]] == [["--worker-id=1"], ["--worker-id=2"]]
    assert one["parent"] == other["parent"]
    assert one["pid"] != other["pid"]
    assert one["env"] == node.env
    assert one["cwd"] == "/usr"
    assert one["group"] == one["pid"], "Ray ends a worker with its group"
    assert one["oom"] == Path("/proc/self/oom_score_adj").read_text().strip()
    assert one["fds"] == [], "nothing of the parent's"
    assert one["child"] == "SIG_DFL"
    assert one["main"] == "/ray/default_worker.py"
    assert "s3cret" not in one["line"]


def test_worker_of_another_job_starts_plainly(node: Node) -> None:
    node.start("stay")
    assert "--node-manager-port" in node.start("--help", RAY_JOB_ID="02000000")["plain"]


def test_worker_starts_plainly_where_the_parent_is_gone(node: Node) -> None:
    node.end()
    assert node.socket.exists(), "of a parent that was killed"
    assert "--node-manager-port" in node.start("--help")["plain"]
    node.socket.unlink()
    assert "--node-manager-port" in node.start("--help")["plain"]


def test_parent_ends_with_its_starter_and_workers_stay(node: Node) -> None:
    worker = node.start("stay")
    assert is_alive(worker["parent"])
    node.starter.kill()
    wait_until(lambda: not is_alive(worker["parent"]))
    assert is_alive(worker["pid"])


def test_fork_ends_where_its_orderer_has_lost_patience(node: Node) -> None:
    """The orderer has started the worker plainly then: there must not be two."""
    order = {**request(argv=[], env=node.env, fingerprint=start_worker.fingerprint())}
    with (node.run / "late").open("w") as out, socket.socket(socket.AF_UNIX) as orderer:
        orderer.connect(str(node.socket))
        data = json.dumps(order).encode()
        socket.send_fds(orderer, [len(data).to_bytes(4, "big") + data], [out.fileno()] * 3)
        pid = receive(orderer, [])["pid"]
    wait_until(lambda: not is_alive(pid))
    assert (node.run / "late").read_text() == ""


def test_nonsense_ends_no_parent(node: Node) -> None:
    for words in ({}, {"argv": []}, request(env={"A": 1})):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(node.socket))
            send(caller, words)
    assert node.start()["argv"] == []


# --- what forks share ------------------------------------------------------------------------------------------------

DRAWS = """
import os, threading
from longboat.cluster.workers import forked_worker, warm_parent
warm_parent.load()
from ray._raylet import UniqueID
for _ in range(3):
    if not os.fork():
        forked_worker._renew_randomness()
        drawn = [UniqueID.from_random().hex()]
        thread = threading.Thread(target=lambda: drawn.append(UniqueID.from_random().hex()))
        thread.start()
        thread.join()
        os.write(1, "".join(f"{one} " for one in drawn).encode())
        os._exit(0)
    os.wait()
"""


def test_forks_draw_different_ids_in_every_thread() -> None:
    done = subprocess.run([sys.executable, "-c", DRAWS], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    drawn = done.stdout.split()
    assert len(drawn) == 6
    assert len(set(drawn)) == 6
