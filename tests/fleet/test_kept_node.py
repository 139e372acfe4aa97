"""A node whose parts are killed under load, alone and in pairs: it is adopted, or says what it was and is resumed.

LONGBOAT_TEST_ALL_KILLS=1 (make kills) tries every part and every pair, which takes many minutes, and prints how long
the node took to be whole again. The model is split there, so that it has an agent beside its supervisor.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.lasting import Streams
from longboat.cluster.host.adopted import ray_here
from longboat.cluster.host.record import ClusterRecord, load_record
from longboat.processes import born_ticks, environment_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

ONE = "name: t\nmodels:\n  - {name: a, source: 'builtin:tiny', replicas: 1, resources: {cpus: 0.1}, "
ONE += "engine: {kind: fake, options: {itl_ms: 50}}}"
SPLIT = "split: {pipeline: 2}, placement: {stages: [{}, {}]}, replicas: 1"
NODE = ("runner", "starter", "parent", "raylet", "gcs_server", "controller", "daemon", "gateway")
PARTS = (*NODE, "supervisor", "agent", "keeper")
IS_SPLIT = bool(os.environ.get("LONGBOAT_TEST_ALL_KILLS"))
ALL = [*((part,) for part in PARTS), *itertools.combinations(PARTS, 2)]
WHOLE = {part: 1 for part in (*PARTS, "rank")} | ({"keeper": 2, "rank": 2} if IS_SPLIT else {"agent": 0})
"""How many processes each part has."""
FACTS = ("this machine is the local cluster", "it restarts by itself")
"""Words of an error of ``longboat status`` that say what the machine is, or what comes back."""
SLOW_S = 10.0
STEADY_S = 30.0
"""Of the runner: Ray that ends sooner is started again after a pause."""
KILLS = ALL if IS_SPLIT else [("runner",), ("parent", "supervisor"), ("runner", "raylet")]


@pytest.fixture(scope="module")
def up(lab: FleetLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetLab]:
    """A fleet whose home folder is ours too while these tests run: they look into its records."""
    with pytest.MonkeyPatch.context() as patch:
        lab.env["LONGBOAT_HOME"] = str(tmp_path_factory.mktemp("home"))
        patch.setenv("LONGBOAT_HOME", lab.env["LONGBOAT_HOME"])
        lab.must("up", lab.write(ONE), "--detach", timeout_s=240)
        if IS_SPLIT:
            lab.must("up", lab.write(ONE.replace("replicas: 1", SPLIT)), "--detach", timeout_s=240)
        wait_until(f"every part is there: {WHOLE}", lambda: census(lab) == WHOLE)
        yield lab


def record_of(up: FleetLab) -> ClusterRecord:
    record = load_record(up.folder)
    assert record is not None
    return record


def pids_of(up: FleetLab, part: str) -> list[int]:
    """Processes of the node that are one of ``PARTS``."""
    words = {
        "starter": "longboat.cluster.host.ray_start",
        "parent": "cluster.workers.warm_parent",
        "raylet": "raylet/raylet",
        "gcs_server": "gcs/gcs_server",
        "controller": "FleetController",
        "supervisor": "EngineSupervisor",
        "agent": "ray::NodeAgent",
        "daemon": "ray::NodeDaemon",
        "gateway": "longboat.gateway",
        "keeper": "process/keeper",
        "rank": "python -m longboat_fake",
    }
    if part == "runner":
        return [record_of(up).runner_pid]
    lines = {pid: command_line(pid) for pid in up.processes()}
    kept = {pid: line.rpartition(" -- ")[0] or line for pid, line in lines.items()}  # a keeper's has its rank's as well
    return [pid for pid, line in kept.items() if words[part] in line]


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def census(up: FleetLab) -> dict[str, int]:
    """How many processes each part has; ranks are counted with it, so that an engine without an owner is seen."""
    return {**{part: len(pids_of(up, part)) for part in PARTS}, "rank": len(pids_of(up, "rank"))}


def is_steady(up: FleetLab, parts: tuple[str, ...]) -> bool:
    """Whether Ray's last start is far enough in the past, where these parts are its own."""
    if not {"starter", "raylet", "gcs_server"} & set(parts):
        return True
    starters = pids_of(up, "starter")
    if len(starters) != 1:
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - born_ticks(starters[0]) / os.sysconf("SC_CLK_TCK")
    return age_s > STEADY_S + 1.0


class Watch(threading.Thread):
    """Asks for the status again and again until the block is left, and notes what it says that is not so."""

    def __init__(self, up: FleetLab) -> None:
        super().__init__()
        self.began_s = time.monotonic()
        self.untrue: list[tuple[float, str]] = []
        self._up = up
        self._over = threading.Event()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    @property
    def untrue_until_s(self) -> float:
        """Seconds from the beginning to the end of the last answer that was not true."""
        return max((at_s for at_s, _ in self.untrue), default=0.0)

    def run(self) -> None:
        while not self._over.wait(0.3):
            asked_s = time.monotonic()
            done = self._up.cli("status", "--json")
            took_s = time.monotonic() - asked_s
            problem = untruth(done) or (f"it took {took_s:.1f} s" if took_s > SLOW_S else "")
            if problem:
                self.untrue.append((time.monotonic() - self.began_s, problem))


def untruth(done: subprocess.CompletedProcess[str]) -> str:
    """What is not so in what ``longboat status --json`` printed; empty where nothing is."""
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return f"no document: exit {done.returncode}: {done.stdout[-200:]} {done.stderr[-300:]}"
    if "error" in told:
        words = f"{told['error']['message']} → {told['error']['hint']}"
        return "" if any(fact in words for fact in FACTS) else f"it does not say what the machine is: {words}"
    ready = [replica for replica in told["replicas"] if replica["phase"] == "ready"]
    pids = [rank["pid"] for replica in ready for rank in replica["ranks"]]
    pids += [gateway["pid"] for gateway in told["gateways"] if not gateway["problem"]]
    gone = [pid for pid in pids if not born_ticks(pid)]
    return f"processes that it shows are gone: {gone}" if gone else ""


def test_supervisor_is_forked_in_the_environment_of_its_own_order(up: FleetLab) -> None:
    (parent,), (supervisor,), (raylet,) = (pids_of(up, part) for part in ("parent", "supervisor", "raylet"))
    stat = Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) == parent
    assert environment_of(supervisor)["RAY_RAYLET_PID"] == str(raylet)
    assert command_line(supervisor).startswith("ray::ServeReplica:longboat-model-a"), "no room for its title"


@pytest.mark.parametrize("parts", KILLS, ids="+".join)
def test_node_that_lost_parts_is_whole_again(up: FleetLab, parts: tuple[str, ...]) -> None:
    wait_until("Ray has run for a while: after ends in a row its runner waits longer", lambda: is_steady(up, parts))
    with Streams([f"http://127.0.0.1:{up.port}"], "a", num_clients=4, max_tokens=40) as streams, Watch(up) as watch:
        pids = kill_parts(up, parts)
        began_s = time.monotonic()
        wait_until("a runner keeps the node", lambda: record_of(up).is_kept and record_of(up).phase == "up")
        wait_until("status answers", lambda: up.cli("status").returncode == 0)
        managed_s = time.monotonic() - began_s
        wait_until("the model answers", lambda: up.answers("a"))
        answers_s = time.monotonic() - began_s
        wait_until("every part is there, and none of another life", lambda: census(up) == WHOLE)
        wait_until("status is true", lambda: not untruth(up.cli("status", "--json")))
        up.must("up", str(up.folder / "fleet.yaml"), "--detach")
    print(
        f"\nKILLED {'+'.join(parts)}: status after {managed_s:.1f} s, an answer after {answers_s:.1f} s, all parts and "
        f"an order after {time.monotonic() - began_s:.1f} s, status untrue until {watch.untrue_until_s:.1f} s, "
        f"{streams.num_whole} streams whole, {len(streams.failed)} failed, {len(streams.differing)} differing"
    )
    for at_s, problem in watch.untrue:
        print(f"  after {at_s:.1f} s: {problem}")
    assert (streams.failed, streams.differing) == ([], [])
    assert streams.num_whole >= streams.num_clients
    assert record_of(up).runner_pid not in pids


def kill_parts(up: FleetLab, parts: tuple[str, ...]) -> list[int]:
    """Kill them, and resume the node where none of its parts is left that could; returns what was killed."""
    pids = [pid for part in parts for pid in pids_of(up, part)]
    assert len(pids) >= len(parts)
    kill(pids)
    if {"runner", "starter"} == set(parts):
        wait_until("the machine says what it was", lambda: "node start" in up.cli("status").stderr)
        up.must("node", "start", timeout_s=240)
    elif parts == ("runner",):
        assert up.answers("a"), "only the process that watches over the node is gone"
    return pids


def test_machine_that_was_restarted_says_what_it_was_and_becomes_it_again(up: FleetLab) -> None:
    before = record_of(up)
    os.killpg(before.session, signal.SIGKILL)
    kill([pid for pid in up.processes() if pid != os.getpid()])
    wait_until("nothing is left", lambda: ray_here(before) is None)
    for path in up.folder.iterdir():  # as the system empties /tmp
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "fleet.yaml":
            path.unlink()
    done = up.cli("status")
    assert done.returncode == 3
    assert "local cluster that longboat up started, but it does not run" in done.stderr
    assert "longboat node start brings it back" in done.stderr
    assert before.gcs_address in up.must("node", "start", timeout_s=240)
    wait_until("the fleet is back", lambda: up.answers("a"))
    assert "already" in up.cli("node", "start", "--local").stderr


def test_down_forgets_the_node(up: FleetLab) -> None:
    up.must("down")
    assert load_record(up.folder) is None
    assert "no fleet was up" in up.must("down")
