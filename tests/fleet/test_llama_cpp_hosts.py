"""One model split over two hosts by llama.cpp's RPC: real Ray, hosts of the network lab."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until
from fleet.llama_cpp import why_no_llama_cpp
from fleet.load import Load
from netlab.lab import Host, Lab, why_unavailable

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(600)]

PROMPTS = ("What is Longboat?", "Many rowers", "Count to twenty:", "こんにちは")
ENGINE = "engine: {kind: llama.cpp, args: [--parallel, '25']}"
COMMON = f"source: 'builtin:tiny', {ENGINE}, context: 512, resources: {{cpus: 1}}"
ONE = f"  - {{name: one, {COMMON}, placement: {{labels: {{host: a}}}}}}\n"
SPLIT = f"  - {{name: split, {COMMON}, split: {{pipeline: 2, layers: [1, 3]}}, replicas: 2}}\n"
NUM_CLIENTS = 50


class TwoHosts:
    """Two hosts with Ray on both, and the command line on the first."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.fleet, self.far = (fleet_at(lab, host) for host in lab.hosts)

    def up(self, *models: str) -> None:
        path = self.fleet.folder / "fleet.yaml"
        path.write_text("name: t\nmodels:\n" + "".join(models))
        self.fleet.must("up", str(path), "--detach", timeout_s=400)

    def whole(self) -> list[dict[str, Any]]:
        """The gangs that are ready."""
        return self.fleet.replicas("split")

    def host_of(self, rank: dict[str, Any]) -> Host:
        return next(host for host in self.lab.hosts if host.address == rank["address"])

    def kill(self, rank: dict[str, Any], name: str) -> None:
        """SIGKILL a program of a rank, and not its parent."""
        host = self.host_of(rank)
        host.run(["sh", "-c", f"kill -KILL $(pgrep -g $(ps -o pgid= {rank['pid']}) -f {name} | tail -1)"])


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHosts]:
    if reason := why_no_llama_cpp(over_nodes=True) or why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        first, second = lab.hosts
        common = ("--num-cpus", "4", "--token-file", str(lab.folder / "token"))
        first.run([*COMMAND, "node", "start", "--head", "--label", "host=a", *common], timeout=240)
        second.run([*COMMAND, "node", "start", "--join", first.address, "--label", "host=b", *common], timeout=240)
        hosts = TwoHosts(lab)
        hosts.up(ONE, SPLIT)
        yield hosts


def text(fleet: FleetLab, name: str, prompt: str) -> str:
    status, choice = fleet.ask(name, prompt, 24, timeout_s=120)
    assert status == 200, choice
    said: str = choice["text"]
    return said


def test_a_model_split_over_two_hosts_answers_like_one_host(two: TwoHosts) -> None:
    assert {rank["address"] for gang in two.whole() for rank in gang["ranks"]} == {h.address for h in two.lab.hosts}
    for prompt in PROMPTS:
        assert text(two.fleet, "split", prompt) == text(two.fleet, "one", prompt)
        assert text(two.far, "split", prompt) == text(two.far, "one", prompt)


def test_rpc_servers_are_bound_to_the_cluster_s_card(two: TwoHosts) -> None:
    for gang in two.whole():
        host = two.host_of(gang["ranks"][1])
        listening = host.run(["ss", "-tlnpH"]).stdout.splitlines()
        bound = [line.split()[3] for line in listening if "ggml-rpc-server" in line]
        assert bound
        assert all(place.startswith(f"{host.address}:") for place in bound)


@pytest.mark.parametrize("part", ["head", "llama-server", "rpc-server"])
def test_streams_of_a_gang_that_lost_a_process_go_on_in_the_other(two: TwoHosts, part: str) -> None:
    wait_until("both gangs are whole", lambda: len(two.whole()) == 2, 120)
    gang = two.whole()[0]
    rank = gang["ranks"][part == "rpc-server"]
    url = f"http://127.0.0.1:{two.fleet.local_port}"
    with Load(url, "split", NUM_CLIENTS, max_tokens=200, timeout_s=120.0, more={"ignore_eos": True}) as clients:
        two.kill(rank, {"head": "launcher", "rpc-server": "ggml-rpc-server"}.get(part, part))
        wait_until("the gang is known to be gone", lambda: gang["replica"] not in names(two), 60)
        wait_until("two gangs are whole again", lambda: len(two.whole()) == 2, 120)
    assert clients.wrong == []


def names(two: TwoHosts) -> list[str]:
    return [gang["replica"] for gang in two.whole()]


def test_after_a_cut_link_the_gangs_come_back(two: TwoHosts) -> None:
    wait_until("both gangs are whole", lambda: len(two.whole()) == 2, 120)
    two.lab.cut(two.lab.hosts[1])
    began_s = time.monotonic()
    wait_until("no gang is left", lambda: not two.whole(), 60)
    assert text(two.fleet, "one", "Many rowers")
    time.sleep(max(0.0, 15.0 - (time.monotonic() - began_s)))
    two.lab.restore(two.lab.hosts[1])
    wait_until("both gangs are whole again", lambda: len(two.whole()) == 2, 180)
    assert text(two.fleet, "split", "Many rowers") == text(two.fleet, "one", "Many rowers")
