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
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.lasting import Streams
from longboat.cluster.host.adopted import ray_here
from longboat.cluster.host.record import ClusterRecord, load_record

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

ONE = "name: t\nmodels:\n  - {name: a, source: 'builtin:tiny', replicas: 1, resources: {cpus: 0.1}, "
ONE += "engine: {kind: fake, options: {itl_ms: 50}}}"
SPLIT = "split: {pipeline: 2}, placement: {stages: [{ray.io/node-id: %s}, {ray.io/node-id: %s}]}, replicas: 1"
NODE = ("runner", "starter", "raylet", "gcs_server", "controller", "daemon", "gateway")
PARTS = (*NODE, "supervisor", "agent", "keeper")
ALL = [*((part,) for part in PARTS), *itertools.combinations(PARTS, 2)]
KILLS = ALL if os.environ.get("LONGBOAT_TEST_ALL_KILLS") else [("runner",), ("runner", "raylet")]


@pytest.fixture(scope="module")
def up(lab: FleetLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetLab]:
    """A fleet whose home folder is ours too while these tests run: they look into its records."""
    with pytest.MonkeyPatch.context() as patch:
        lab.env["LONGBOAT_HOME"] = str(tmp_path_factory.mktemp("home"))
        patch.setenv("LONGBOAT_HOME", lab.env["LONGBOAT_HOME"])
        lab.must("up", lab.write(ONE), "--detach", timeout_s=240)
        if KILLS is ALL:
            node = json.loads(lab.must("status", "--json"))["nodes"][0]["node_id"]
            split = ONE.replace("replicas: 1", SPLIT % (node, node))
            lab.must("up", lab.write(split), "--detach", timeout_s=240)
        yield lab


def record_of(up: FleetLab) -> ClusterRecord:
    record = load_record(up.folder)
    assert record is not None
    return record


def pids_of(up: FleetLab, part: str) -> list[int]:
    """Processes of the node that are one of ``PARTS``."""
    words = {
        "starter": "longboat.cluster.host.ray_start",
        "raylet": "raylet/raylet",
        "gcs_server": "gcs/gcs_server",
        "controller": "FleetController",
        "supervisor": "EngineSupervisor",
        "agent": "ray::NodeAgent",
        "daemon": "ray::NodeDaemon",
        "gateway": "longboat.gateway",
        "keeper": "process/keeper",
    }
    if part == "runner":
        return [record_of(up).runner_pid]
    return [pid for pid in up.processes() if words[part] in command_line(pid)]


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("parts", KILLS, ids="+".join)
def test_node_that_lost_parts_is_whole_again(up: FleetLab, parts: tuple[str, ...]) -> None:
    with Streams([f"http://127.0.0.1:{up.port}"], "a", num_clients=4, max_tokens=40) as streams:
        pids = kill_parts(up, parts)
        began_s = time.monotonic()
        wait_until("a runner keeps the node", lambda: record_of(up).is_kept and record_of(up).phase == "up")
        wait_until("status answers", lambda: up.cli("status").returncode == 0)
        managed_s = time.monotonic() - began_s
        wait_until("the model answers", lambda: up.answers("a"))
        answers_s = time.monotonic() - began_s
    print(
        f"\nKILLED {'+'.join(parts)}: status after {managed_s:.1f} s, an answer after {answers_s:.1f} s, "
        f"{streams.num_whole} streams whole, {len(streams.failed)} failed, {len(streams.differing)} differing"
    )
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
