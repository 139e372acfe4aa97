"""``longboat status`` says what the machine is where the cluster's parts do not answer in time."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longboat.cli.look import answer_limit, session_on_node
from longboat.cluster.host.record import ClusterRecord, forget_record, load_record, save_record
from longboat.cluster.node.door_client import door_path
from longboat.cluster.protocol.names import CONTROLLER_APP

MAIN = "from longboat.cli.app import main; main()"
COMMAND = (sys.executable, "-c", MAIN)


@dataclass
class NodeHere:
    """A node that this process keeps: the folders of its commands, what its dashboard and its daemon say."""

    env: dict[str, str]
    run: Path
    ray_was_loaded: Path
    apps: dict[str, object] = field(default_factory=lambda: {CONTROLLER_APP: {}})

    def status(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*COMMAND, "status", *words), env=self.env, capture_output=True, text=True, timeout=120, check=False
        )

    def leave_door(self) -> None:
        """Leave what a killed daemon leaves: a door that does not open."""
        self.run.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(door_path(self.run)))

    @contextmanager
    def daemon(self, **answers: object) -> Iterator[None]:
        """A daemon that answers only these questions. It hears every other one, and says nothing."""
        heard = []
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(door_path(self.run)))
            door.listen()

            def serve() -> None:
                with suppress(OSError, ValueError):  # the client ended, or ended before it asked
                    while True:
                        connection, _ = door.accept()
                        heard.append(connection)
                        what = json.loads(connection.recv(1 << 16))["ask"]
                        if what in answers:
                            connection.sendall(json.dumps({"value": answers[what]}).encode())
                            connection.close()

            threading.Thread(target=serve, daemon=True).start()
            yield
            door.shutdown(socket.SHUT_RDWR)
        for connection in heard:
            connection.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeHere]:
    """A head whose dashboard answers. Its commands have a Ray that only notes that it was loaded."""
    with tempfile.TemporaryDirectory(prefix="lb", dir="/tmp") as name:
        folder, run = Path(name), Path(name) / "run"
        monkeypatch.setenv("LONGBOAT_HOME", str(folder / "home"))
        (folder / "ray").mkdir()
        (folder / "ray" / "__init__.py").write_text(f"open({str(folder / 'loaded')!r}, 'w').close()\nraise ImportError")
        given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env = {**given, "LONGBOAT_RUN": str(run), "LONGBOAT_HOME": str(folder / "home"), "PYTHONPATH": name}
        node = NodeHere(env, run, folder / "loaded")

        class Dashboard(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps({"applications": node.apps}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            record = ClusterRecord(
                role="head",
                address="127.0.0.1",
                interface="lo",
                gcs_address="127.0.0.1:6379",
                run=str(run),
                temp_dir=str(folder / "temp"),
                token_file="",
                started_by_up=True,
                phase="up",
                dashboard=f"127.0.0.1:{server.server_port}",
            )
            save_record(record.with_runner(os.getpid()))
            yield node
            server.shutdown()


def test_status_of_a_node_whose_daemon_hangs_says_what_the_machine_is(here: NodeHere) -> None:
    with here.daemon():
        done = here.status("--json")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert "this machine is the local cluster that longboat up started, but the fleet's state" in error["message"]
    assert "--timeout 60 waits longer" in error["hint"]
    assert error["message"] in done.stderr


def test_status_of_a_node_whose_daemon_was_killed_waits_for_another_one_without_ray(here: NodeHere) -> None:
    done = here.status()
    assert done.returncode == 3
    assert "but the fleet's state did not come within 7 s: this node's daemon does not answer" in done.stderr
    assert not here.ray_was_loaded.exists()


def test_status_of_a_node_without_a_fleet_says_so_without_ray(here: NodeHere) -> None:
    here.apps = {}
    done = here.status("--timeout", "7")
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "error: no fleet is up on this cluster")
    assert not here.ray_was_loaded.exists()


@pytest.mark.parametrize("left", [True, False], ids=["its door stays", "its door is gone"])
def test_a_worker_whose_daemon_was_killed_asks_ray_with_time_left(
    here: NodeHere, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """The door stays where the fleet ended, too: only Ray can tell."""
    record = load_record(here.run)
    assert record is not None
    save_record(replace(record, role="worker", dashboard=""))
    if left:
        here.leave_door()
    waited_s: list[float] = []
    monkeypatch.setenv("LONGBOAT_RUN", str(here.run))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(answer_limit.Wait, "left_s", property(lambda wait: wait.limit_s - sum(waited_s)))
    monkeypatch.setattr(answer_limit.Wait, "ends_within", lambda _, time_s: waited_s.append(time_s))
    monkeypatch.setattr(session_on_node, "connect", lambda: "Ray")
    assert session_on_node.session_on_node(answer_limit.Wait(7.0)) == "Ray"
    assert left == bool(waited_s) and sum(waited_s) < 4.0


def test_status_of_a_machine_that_is_no_node_asks_ray_at_once(here: NodeHere) -> None:
    """Its cluster is of ``ray start``, and a killed daemon left its door: nothing limits a wait for another one."""
    record = load_record(here.run)
    assert record is not None
    forget_record(here.run)
    here.leave_door()
    word = here.ray_was_loaded.with_name("ray_current_cluster")
    word.write_text(record.dashboard)
    finds = f"import pathlib, longboat.cli.shared.cluster_at_hand as c; c.RAY_WORD = pathlib.Path({str(word)!r})"
    command = (sys.executable, "-c", f"{finds}; {MAIN}", "status")
    subprocess.run(command, env=here.env, capture_output=True, timeout=60, check=False)
    assert here.ray_was_loaded.exists()


def test_status_says_for_how_long_the_node_has_not_heard_a_controller_that_does_not_answer(here: NodeHere) -> None:
    told = {"dashboard": "http://127.0.0.1:1", "gcs_address": "127.0.0.1:6379", "heard_s": 41.6}
    with here.daemon(cluster=told):
        done = here.status()
    assert done.returncode == 3
    assert "did not come within 7 s: this node has not heard the fleet's controller for 42 s" in done.stderr


def test_limit_counts_from_the_command_and_not_from_what_ran_before_it_in_the_process(here: NodeHere) -> None:
    """A shell replaces itself by its last command, which keeps the time at which the process began."""
    words = f"sleep 3; exec {shlex.join((*COMMAND, 'status', '--timeout', '2'))}"
    began_s = time.monotonic()
    with here.daemon():
        done = subprocess.run(
            ("sh", "-c", words), env=here.env, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 3 and "did not come within 2 s" in done.stderr
    assert time.monotonic() - began_s > 5.0
