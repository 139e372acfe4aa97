"""A model split over two hosts by SGLang: real SGLang, real Ray, hosts of the network lab."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engines.sglang_node import SGLANG_PYTHON
from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until
from fleet.knowledge import HOLDERS_FIRST, known_after_losses
from netlab.lab import Host, Lab, why_unavailable

pytestmark = [
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.net,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang"),
]

PROMPTS = ("What is Longboat?", "Many rowers", "Count to twenty:", "こんにちは")
MODEL = (
    "  - {name: %s, source: 'builtin:tiny', engine: {kind: sglang, environment: %s}, context: 1024, "
    "resources: {cpus: %g}, %s}\n"
)
WHOLE = "placement: {labels: {host: a}}"
SPLIT = "split: {tensor: 2}, placement: {nodes: 2}"
SPREAD = "replicas: 2"


@dataclass
class TwoHosts:
    """Two hosts with Ray on both, and the command line on each."""

    hosts: list[Host]
    fleet: FleetLab
    far: FleetLab

    def up(self, cpus: float = 1, policy: str = "cost", **models: str) -> None:
        """Serve these models, and no others."""
        environment = Path(SGLANG_PYTHON).parent.parent
        lines = [MODEL % (name, environment, cpus, more) for name, more in models.items()]
        path = self.fleet.folder / "fleet.yaml"
        path.write_text(f"name: t\ngateway: {{routing: {{policy: {policy}}}}}\nmodels:\n" + "".join(lines))
        self.fleet.must("up", str(path), "--detach", timeout_s=400)

    def kill(self, rank: dict[str, Any]) -> None:
        """End a rank's process at once."""
        host = next(host for host in self.hosts if host.address == rank["address"])
        host.run(["kill", "-KILL", str(rank["pid"])])


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHosts]:
    """Two hosts with Ray on both."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        first, second = lab.hosts
        common = ("--num-cpus", "4", "--token-file", str(lab.folder / "token"))
        first.run([*COMMAND, "node", "start", "--head", "--label", "host=a", *common], timeout=240)
        second.run([*COMMAND, "node", "start", "--join", first.address, "--label", "host=b", *common], timeout=240)
        hosts = TwoHosts(lab.hosts, *(fleet_at(lab, host) for host in lab.hosts))
        yield hosts
        hosts.fleet.stop_watching()


def text(fleet: FleetLab, name: str, prompt: str) -> str:
    status, choice = fleet.ask(name, prompt, 24, timeout_s=120)
    assert status == 200, choice
    return str(choice["text"])


def only(fleet: FleetLab, name: str) -> dict[str, Any]:
    (replica,) = fleet.replicas(name)
    return replica


def test_a_model_split_over_two_hosts_answers_like_one_host(two: TwoHosts) -> None:
    two.up(one=WHOLE, tensor=SPLIT)
    for prompt in PROMPTS:
        assert text(two.fleet, "tensor", prompt) == text(two.fleet, "one", prompt)
    assert {rank["address"] for rank in only(two.fleet, "tensor")["ranks"]} == {host.address for host in two.hosts}


def test_a_gang_that_lost_a_rank_is_replaced(two: TwoHosts) -> None:
    victim = only(two.fleet, "tensor")
    two.kill(victim["ranks"][1])

    def is_replaced() -> bool:
        names = [replica["replica"] for replica in two.fleet.replicas("tensor")]
        return bool(names) and victim["replica"] not in names and two.fleet.answers("tensor")

    wait_until("the gang answers again", is_replaced, 180)
    assert text(two.fleet, "tensor", PROMPTS[0]) == text(two.fleet, "one", PROMPTS[0])


def test_each_hosts_gateway_knows_again_what_engines_hold_after_losses(two: TwoHosts) -> None:
    two.up(cpus=3, policy=HOLDERS_FIRST, twins=SPREAD)
    known_after_losses(two.fleet, two.far, two.hosts, "twins")
