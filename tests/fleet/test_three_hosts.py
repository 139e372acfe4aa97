"""A head and two hosts that work: the head is lost and comes back, a node is taken out. Who serves goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until
from fleet.load import Load, num_resumed
from netlab.lab import Lab, why_unavailable

AWAY_S = float(os.environ.get("LONGBOAT_TEST_HEAD_AWAY_S", "75"))
"""Longer than Ray waits by itself, and than a gateway lives that nobody speaks to; ten minutes hold too."""

pytestmark = [pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(600 + AWAY_S)]

FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: {kind: fake, options: {itl_ms: 30}}
    replicas: 2
    resources: {cpus: 1}
    placement: {labels: {role: work}}
"""


@dataclass
class HeadApart:
    """A host that is only the head, and two that work, each with room for both replicas."""

    lab: Lab
    head: FleetLab
    workers: list[FleetLab]

    @property
    def start_head(self) -> list[str]:
        words = ["node", "start", "--head", "--label", "role=head", "--num-cpus", "1"]
        return [*COMMAND, *words, "--token-file", str(self.lab.folder / "token")]


@pytest.fixture(scope="module")
def apart() -> Iterator[HeadApart]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(3) as lab:
        first, *others = lab.hosts
        fleet = HeadApart(lab, fleet_at(lab, first), [fleet_at(lab, host) for host in others])
        first.run(fleet.start_head, timeout=240)
        for host in others:
            join = ["node", "start", "--join", first.address, "--label", "role=work", "--num-cpus", "2"]
            host.run([*COMMAND, *join, "--token-file", str(lab.folder / "token")], timeout=240)
        path = fleet.head.folder / "fleet.yaml"
        path.write_text(FLEET)
        fleet.head.must("up", str(path), "--detach", timeout_s=300)
        yield fleet


def identities(fleet: FleetLab) -> list[tuple[Any, ...]]:
    """What is another one after a restart."""
    return sorted((r["replica"], r["generation"], r["supervisor_pid"], r["ranks"][0]["pid"]) for r in fleet.replicas())


def bring_back(apart: HeadApart) -> None:
    head = apart.lab.hosts[0]
    apart.lab.boot(head)
    head.run(apart.start_head, timeout=240)
    apart.head = fleet_at(apart.lab, head)
    wait_until("the controller answers", lambda: apart.head.cli("status").returncode == 0, 180)
    wait_until("the fleet is known again", lambda: len(apart.head.replicas()) == 2, 180)
    wait_until("all gateways have the table", lambda: all_told(apart.head), 180)


def loads_on(apart: HeadApart, stack: ExitStack) -> list[Load]:
    """Clients at the gateway of each host that works."""
    loads = [Load(f"http://127.0.0.1:{w.local_port}", "a", num_clients=2) for w in apart.workers]
    for load in loads:
        stack.enter_context(load)
    return loads


def test_who_serves_goes_on_without_the_head_and_is_adopted_after_its_return(apart: HeadApart) -> None:
    before = identities(apart.head)
    assert len(before) == 2
    apart.head.stop_watching()
    with ExitStack() as stack:
        loads = loads_on(apart, stack)
        apart.lab.kill_host(apart.lab.hosts[0])
        time.sleep(AWAY_S)
        in_time = [load.num_streams for load in loads]
        bring_back(apart)
        time.sleep(15.0)
    total = sum(load.num_streams for load in loads)
    print(f"{total} streams, {sum(in_time)} of them begun while the head was away for {AWAY_S:.0f} s")
    assert [load.wrong for load in loads] == [[], []]
    assert all(number > AWAY_S / 10 for number in in_time), in_time
    assert identities(apart.head) == before
    path = apart.head.folder / "fleet.yaml"
    assert "nothing to change" in apart.head.must("up", str(path), "--detach", timeout_s=200)
    assert identities(apart.head) == before


def test_without_the_head_the_fleet_survives_the_loss_of_a_replica(apart: HeadApart) -> None:
    replicas = apart.head.replicas()
    victim, left = replicas
    host = next(host for host in apart.lab.hosts if host.address == victim["ranks"][0]["address"])
    apart.head.stop_watching()
    with ExitStack() as stack:
        loads = loads_on(apart, stack)
        apart.lab.kill_host(apart.lab.hosts[0])
        time.sleep(5.0)
        host.run(["kill", "-KILL", str(victim["ranks"][0]["pid"])])
        time.sleep(15.0)
        bring_back(apart)
    assert [load.wrong for load in loads] == [[], []]
    names = [replica["replica"] for replica in apart.head.replicas()]
    assert left["replica"] in names
    assert victim["replica"] not in names


def all_told(fleet: FleetLab) -> bool:
    gateways = fleet.status()["gateways"]
    epochs = {gateway["epoch"] for gateway in gateways}
    return len(gateways) == 3 and not any(gateway["problem"] for gateway in gateways) and len(epochs) == 1


def test_a_node_that_is_drained_hands_over_what_it_has(apart: HeadApart) -> None:
    address = apart.head.replicas()[0]["ranks"][0]["address"]
    leaving = next(host for host in apart.lab.hosts if host.address == address)
    staying = next(worker for worker in apart.workers if str(leaving.folder) not in str(worker.folder))
    before = num_resumed(staying.local_port)
    with Load(f"http://127.0.0.1:{staying.local_port}", "a", num_clients=4, max_tokens=400, apart_s=1.5) as load:
        wait_until("both replicas are at work", lambda: len(load.replicas_at_work()) == 2)
        assert "is drained" in apart.head.must("drain", "node", leaving.name, "--move", timeout_s=300)
    assert not load.wrong
    assert num_resumed(staying.local_port) > before, "streams moved before they ended"
    assert {r["ranks"][0]["address"] for r in apart.head.replicas()} == {address_of(staying, apart)}
    assert apart.head.cli("drain", "node", apart.lab.hosts[0].name).returncode == 2
    assert apart.head.cli("drain", "node", leaving.name, "--undo").returncode == 2


def address_of(fleet: FleetLab, apart: HeadApart) -> str:
    return next(host.address for host in apart.lab.hosts if Path(host.env["LONGBOAT_RUN"]) == fleet.folder)
