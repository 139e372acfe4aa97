"""A model split over two hosts by SGLang: real SGLang, real Ray, hosts of the network lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.sglang_node import SGLANG_PYTHON
from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until
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
    "resources: {cpus: 1}, %s}\n"
)
SPLITS = {"one": "placement: {labels: {host: a}}", "tensor": "split: {tensor: 2}, placement: {nodes: 2}"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[FleetLab, list[Host]]]:
    """Two hosts with Ray on both, a whole model on the first, and one that is split over both."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        first, second = lab.hosts
        common = ("--num-cpus", "4", "--token-file", str(lab.folder / "token"))
        first.run([*COMMAND, "node", "start", "--head", "--label", "host=a", *common], timeout=240)
        second.run([*COMMAND, "node", "start", "--join", first.address, "--label", "host=b", *common], timeout=240)
        fleet = fleet_at(lab, first)
        lines = [MODEL % (name, Path(SGLANG_PYTHON).parent.parent, split) for name, split in SPLITS.items()]
        path = fleet.folder / "fleet.yaml"
        path.write_text("name: t\nmodels:\n" + "".join(lines))
        fleet.must("up", str(path), "--detach", timeout_s=400)
        yield fleet, lab.hosts
        fleet.stop_watching()


def text(fleet: FleetLab, name: str, prompt: str) -> str:
    status, choice = fleet.ask(name, prompt, 24, timeout_s=120)
    assert status == 200, choice
    return str(choice["text"])


def only(fleet: FleetLab, name: str) -> dict[str, Any]:
    (replica,) = fleet.replicas(name)
    return replica


def test_a_model_split_over_two_hosts_answers_like_one_host(hosts: tuple[FleetLab, list[Host]]) -> None:
    fleet, both = hosts
    for prompt in PROMPTS:
        assert text(fleet, "tensor", prompt) == text(fleet, "one", prompt)
    assert {rank["address"] for rank in only(fleet, "tensor")["ranks"]} == {host.address for host in both}


def test_a_gang_that_lost_a_rank_is_replaced(hosts: tuple[FleetLab, list[Host]]) -> None:
    fleet, both = hosts
    victim = only(fleet, "tensor")
    rank = victim["ranks"][1]
    host = next(host for host in both if host.address == rank["address"])
    host.run(["kill", "-KILL", str(rank["pid"])])

    def is_replaced() -> bool:
        names = [replica["replica"] for replica in fleet.replicas("tensor")]
        return bool(names) and victim["replica"] not in names and fleet.answers("tensor")

    wait_until("the gang answers again", is_replaced, 180)
    assert text(fleet, "tensor", PROMPTS[0]) == text(fleet, "one", PROMPTS[0])
