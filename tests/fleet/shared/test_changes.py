"""Planned changes under load: updates, updates that fail, fewer replicas, drains. No answer is lost.

The tests share one fleet, and each goes on from what the one before left: a change costs seconds.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load, num_resumed

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: {kind: fake, options: {itl_ms: %d}, args: [%s]}
    replicas: %d
    resources: {cpus: 0.1}
    update: {drain_s: 1, limit_s: 60}"""


@dataclass
class Changing:
    """A fleet, and what its file says."""

    lab: FleetLab
    itl_ms: int = 20
    replicas: int = 2

    def file(self, args: str = "") -> str:
        return self.lab.write(FLEET % (self.itl_ms, args, self.replicas))

    def apply(self) -> None:
        self.lab.must("up", self.file(), "--detach", timeout_s=240)

    def update(self) -> None:
        """Every replica is made anew."""
        self.itl_ms += 5
        self.apply()

    def with_replicas(self, number: int) -> list[str]:
        """The fleet at rest, with this many replicas; nothing is done where it is so already."""
        if self.replicas != number:
            self.replicas = number
            self.apply()
        wait_until("nothing changes", lambda: self.settled() and len(self.names()) == number, 120)
        wait_until("all have proved how they resume", lambda: self.levels() == {"carried"}, 120)
        return self.names()

    def settled(self) -> bool:
        """Nothing changes any more."""
        status = self.lab.status()
        return not status["updating"] and all(r["phase"] in ("ready", "gone", "failed") for r in status["replicas"])

    def names(self) -> list[str]:
        return sorted(replica["replica"] for replica in self.lab.replicas("a"))

    def pids_at_work(self) -> list[int]:
        """Engines of this fleet to which the gateway sent a request that has not ended."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.lab.local_port}/admin/v1/routes", timeout=20) as answer:
            busy = {row["replica"] for row in json.load(answer)["routes"] if row["in_flight"]}
        replicas = self.lab.replicas("a")
        return [rank["pid"] for replica in replicas if replica["replica"] in busy for rank in replica["ranks"]]

    def levels(self) -> set[str]:
        return {replica["resume"] for replica in self.lab.replicas("a")}

    def digests(self) -> list[str]:
        return sorted(replica["digest"] for replica in self.lab.replicas("a"))

    def load(self, max_tokens: int = 60, apart_s: float = 0.0) -> Load:
        return Load(f"http://127.0.0.1:{self.lab.local_port}", "a", max_tokens=max_tokens, apart_s=apart_s)


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> Changing:
    fleet = Changing(lab)
    fleet.apply()
    return fleet


def test_an_update_under_load_loses_no_answer(up: Changing) -> None:
    up.with_replicas(2)
    before = up.digests()
    with up.load() as clients:
        up.update()
        wait_until("the old ones are gone", lambda: up.settled() and len(up.digests()) == 2, 120)
    assert not clients.wrong
    assert clients.num_streams > 8
    assert not set(before) & set(up.digests())


def test_a_drained_replica_is_replaced_when_its_answers_have_ended(up: Changing) -> None:
    victim = up.with_replicas(2)[0]
    with up.load() as clients:
        assert "is drained" in up.lab.must("drain", "replica", f"a/{victim[-8:]}")
        wait_until("another is ready", lambda: len(up.names()) == 2, 120)
    assert not clients.wrong
    assert victim not in up.names()
    assert up.lab.cli("drain", "replica", f"a/{victim}").returncode == 2


def test_fewer_replicas_under_load_lose_no_answer(up: Changing) -> None:
    """Answers take longer than a replica waits for them: they go on with the one that is left."""
    up.with_replicas(2)
    before = num_resumed(up.lab.local_port)
    with up.load(max_tokens=300, apart_s=1.8) as clients:
        wait_until("both are at work", lambda: len(clients.replicas_at_work()) == 2)
        up.replicas = 1
        up.apply()
        wait_until("one is left", lambda: up.settled() and len(up.names()) == 1, 120)
    assert not clients.wrong
    assert num_resumed(up.lab.local_port) > before


def test_an_update_of_the_only_replica_starts_another_one_first(up: Changing) -> None:
    before = up.with_replicas(1)
    with up.load() as clients:
        up.update()
        wait_until("the old one is gone", lambda: up.settled() and len(up.names()) == 1, 120)
    assert not clients.wrong
    assert up.names() != before


def has_begun(status: dict[str, Any]) -> bool:
    """Whether an update runs, or failed already: on a busy machine one may fail between two looks."""
    return bool(status["updating"] or status["taken_back"])


def test_an_update_that_fails_is_taken_back_though_nobody_waits_for_it(up: Changing) -> None:
    before = up.with_replicas(1)
    with up.load() as clients:
        command = up.lab.popen("up", up.file(args="--nonsense"), "--detach")
        wait_until("the update has begun", lambda: has_begun(up.lab.status()), 120)
        command.send_signal(signal.SIGKILL)
        command.wait(timeout=30)
        wait_until("it is taken back", lambda: up.lab.status()["taken_back"], 120)
    assert not clients.wrong
    assert "nonsense" in up.lab.status()["taken_back"]["a"]["why"]
    wait_until("nothing of it is left", up.settled, 60)
    assert up.names() == before
    assert "was rolled back" in up.lab.must("status")


def test_a_failed_update_says_why_and_the_file_can_be_corrected(up: Changing) -> None:
    before = up.with_replicas(1)
    done = up.lab.cli("up", up.file(args="--rubbish"), "--detach")
    assert done.returncode == 4
    assert "was rolled back" in done.stderr and "rubbish" in done.stderr
    up.apply()
    assert not up.lab.status()["taken_back"]
    assert up.names() == before


def test_engines_that_are_asked_to_end_are_no_request_s_fault(up: Changing) -> None:
    """Two crashes within a request's first steps would make the gateway refuse it."""
    up.itl_ms = 2500
    up.apply()
    up.with_replicas(2)
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(up.lab.ask("a", "hello", 5, timeout_s=120)[0]))
    asking.start()
    for _ in range(2):
        wait_until("a replica has the request", lambda: up.pids_at_work() or statuses)
        _end_at_work(up)
    asking.join()
    assert statuses == [200]


def _end_at_work(up: Changing) -> None:
    pids = up.pids_at_work()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    wait_until("the request has left them", lambda: not {*pids} & {*up.pids_at_work()})


def test_a_drained_gateway_tells_balancers_and_can_be_used_again(up: Changing) -> None:
    host = up.lab.status()["gateways"][0]["hostname"]
    assert "is drained" in up.lab.must("drain", "gateway", host)
    assert up.lab.answers("a"), "who asks all the same is answered"
    assert up.lab.status()["gateways"][0]["draining"]
    up.lab.must("drain", "gateway", host, "--undo")
    wait_until("it is ready again", lambda: not up.lab.status()["gateways"][0]["draining"], 30)
    assert up.lab.cli("drain", "node", host).returncode == 2
