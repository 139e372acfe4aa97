"""Three hosts with equal room, of which the second has a model's weights: replicas go there first."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at
from netlab.lab import Lab, why_unavailable

pytestmark = [pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(500)]

TINY = Path(__file__).parents[2] / "src" / "longboat" / "builtin" / "tiny"
FLEET = """
name: t
models:
  - name: a
    source: '{source}'
    engine: fake
    resources: {{cpus: 1}}
    replicas: {{min: 1, max: 6, target_ongoing_requests: 4}}
"""


@dataclass
class Weighed:
    """Three hosts with room for two replicas each; a storage that all of them see."""

    lab: Lab
    fleet: FleetLab
    source: str

    def hosts(self) -> list[str]:
        """Return the hosts of the replicas, by the order of their start."""
        replicas = sorted(self.fleet.replicas("a"), key=lambda replica: replica["generation"])
        return [replica["ranks"][0]["address"] for replica in replicas]


@pytest.fixture(scope="module")
def three() -> Iterator[Weighed]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(3) as lab:
        first, *others = lab.hosts
        shutil.copytree(TINY, lab.folder / "tiny")
        common = ("--num-cpus", "2", "--token-file", str(lab.folder / "token"))
        for host in lab.hosts:
            host.env["LONGBOAT_HOME"] = str(host.folder / "lb")
        first.run([*COMMAND, "node", "start", "--head", *common], timeout=240)
        for host in others:
            host.run([*COMMAND, "node", "start", "--join", first.address, *common], timeout=240)
        fleet = fleet_at(lab, first)
        try:
            yield Weighed(lab, fleet, f"file://{lab.folder}/tiny")
        finally:
            fleet.end()


def test_the_first_replica_goes_where_its_weights_are(three: Weighed) -> None:
    second = three.lab.hosts[1]
    second.run([*COMMAND, "weights", "pull", three.source], timeout=120)
    path = three.fleet.folder / "fleet.yaml"
    path.write_text(FLEET.format(source=three.source))
    done = three.fleet.cli("up", str(path), "--detach", timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert "a goes where its weights are" in done.stdout + done.stderr
    assert three.hosts() == [second.address]


def test_the_next_one_too_and_the_one_that_finds_no_room_there_goes_elsewhere(three: Weighed) -> None:
    second = three.lab.hosts[1]
    three.fleet.must("scale", "a", "2", timeout_s=120)
    assert three.hosts() == [second.address] * 2
    assert "has its weights" in three.fleet.must("status", "--why")
    three.fleet.must("scale", "a", "3", timeout_s=120)
    hosts = three.hosts()
    assert hosts[:2] == [second.address] * 2
    assert hosts[2] != second.address


def test_no_room_stays_held(three: Weighed) -> None:
    three.fleet.must("scale", "a", "6", timeout_s=180)
    assert sorted(three.hosts()) == sorted([host.address for host in three.lab.hosts] * 2)
