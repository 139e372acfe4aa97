"""A model split over two hosts, of which one is lost for good: its next replica finds no room, and waits."""

from __future__ import annotations

import pytest

from fleet.fleet_lab import COMMAND, fleet_at, wait_until
from netlab.lab import Lab, why_unavailable

pytestmark = [pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(600)]

FLEET = """name: t
models:
  - {name: a, source: 'builtin:tiny', engine: {kind: fake}, split: {pipeline: 2}, resources: {cpus: 1}}
"""


def test_down_ends_a_replica_that_waits_for_the_lost_half() -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        one, two = lab.hosts
        shared = ["--num-cpus", "1", "--token-file", str(lab.folder / "token")]
        one.run([*COMMAND, "node", "start", "--head", *shared], timeout=240)
        two.run([*COMMAND, "node", "start", "--join", one.address, *shared], timeout=240)
        fleet = fleet_at(lab, one)
        path = fleet.folder / "fleet.yaml"
        path.write_text(FLEET)
        fleet.must("up", str(path), "--detach", timeout_s=300)
        lab.kill_host(two)
        wait_until("a replica finds no room", lambda: "finds no room" in fleet.must("status", "--why"), 180)
        fleet.must("down", timeout_s=80)  # Serve itself waits for the replica for more than the command's 90 s
