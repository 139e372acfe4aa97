"""``longboat status`` says what the machine is where the cluster's parts do not answer in time."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.cluster.host.record import ClusterRecord, save_record
from longboat.cluster.node.door_client import door_path

COMMAND = (sys.executable, "-c", "from longboat.cli.app import main; main()")


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A node that this process keeps, whose daemon hears a question and never answers."""
    run = tmp_path / "run"
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    record = ClusterRecord(
        role="head",
        address="127.0.0.1",
        interface="lo",
        gcs_address="127.0.0.1:6379",
        run=str(run),
        temp_dir=str(tmp_path / "ray"),
        token_file="",
        started_by_up=True,
        phase="up",
    )
    save_record(record.with_runner(os.getpid()))
    given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(door_path(run)))
        door.listen()
        yield {**given, "LONGBOAT_RUN": str(run), "LONGBOAT_HOME": str(tmp_path / "home")}


def test_status_of_a_node_whose_daemon_hangs_says_what_the_machine_is(env: dict[str, str]) -> None:
    done = subprocess.run(
        (*COMMAND, "status", "--json"), env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert "this machine is the local cluster that longboat up started, but the fleet's state" in error["message"]
    assert "--timeout 60 waits longer" in error["hint"]
    assert error["message"] in done.stderr


def test_limit_counts_from_the_command_and_not_from_what_ran_before_it_in_the_process(env: dict[str, str]) -> None:
    """A shell replaces itself by its last command, which keeps the time at which the process began."""
    words = f"sleep 3; exec {shlex.join((*COMMAND, 'status', '--timeout', '2'))}"
    began_s = time.monotonic()
    done = subprocess.run(("sh", "-c", words), env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3 and "did not come within 2 s" in done.stderr
    assert time.monotonic() - began_s > 5.0
