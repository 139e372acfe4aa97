"""One model split over two hosts by llama.cpp's RPC: real Ray, hosts of the network lab."""

from __future__ import annotations

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
PAUSE_S = 2.0
"""Between a client's requests while gangs start."""
QUIET: dict[str, str] = {}
"""Answers of the quiet fleet, which nothing that these tests do alters."""


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

    def processes(self, gang: str) -> list[int]:
        """Processes of a gang, on both hosts."""
        return [*self.fleet.processes(LONGBOAT_GANG=gang), *self.far.processes(LONGBOAT_GANG=gang)]

    def kill(self, rank: dict[str, Any], name: str) -> None:
        """SIGKILL a program of a rank, and not its parent."""
        host = self.host_of(rank)
        host.run(["sh", "-c", f"kill -KILL $(pgrep -g $(ps -o pgid= {rank['pid']}) -f {name} | tail -1)"])

    def lose_link(self, gang: dict[str, Any]) -> None:
        """Let all packets between a gang's servers vanish; everything else between the hosts goes on."""
        rank = gang["ranks"][1]
        listening = self.host_of(rank).run(["ss", "-tlnpH"]).stdout.splitlines()
        (place,) = (line.split()[3] for line in listening if f"pid={rank['pid']}," in line)
        self.lab.lose(int(place.rpartition(":")[2]))

    def reason_of(self, gang: dict[str, Any]) -> str:
        """What ``status`` says about a gang; empty: nothing, or not any more."""
        found = (r["detail"] for r in self.fleet.status()["replicas"] if r["replica"] == gang["replica"])
        return next(found, "")


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
        hosts.fleet.stop_watching()


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


def load(two: TwoHosts) -> Load:
    url, more = f"http://127.0.0.1:{two.fleet.local_port}", {"ignore_eos": True}
    return Load(url, "split", NUM_CLIENTS, max_tokens=100, timeout_s=120.0, more=more, expected=QUIET)


def test_streams_of_gangs_that_lose_processes_go_on_in_others(two: TwoHosts) -> None:
    with load(two) as clients:
        for number, program in ((0, "launcher"), (0, "llama-server"), (1, "ggml-rpc-server")):
            clients.pause_s, began = 0.0, clients.num_streams
            wait_until("streams run", lambda began=began: clients.num_streams >= began + NUM_CLIENTS // 2)
            clients.pause_s = PAUSE_S
            gang = two.whole()[0]
            two.kill(gang["ranks"][number], program)
            wait_until(f"the gang without {program} is gone", lambda g=gang: g["replica"] not in names(two), 60)
            took_s = wait_until("two gangs are whole again", lambda: len(two.whole()) == 2, 120)
            print(f"{program}: whole again after {took_s:.1f} s: {phases(two)}")
    assert clients.wrong == []


def test_streams_of_a_gang_whose_servers_lost_their_link_go_on_in_the_other(two: TwoHosts) -> None:
    """No process ends and no connection is reset, and the hosts still hear each other."""
    with load(two) as clients:
        wait_until("streams run", lambda: clients.num_streams >= NUM_CLIENTS)
        clients.pause_s = PAUSE_S
        name = clients.replica_at_work()
        gang = next(gang for gang in two.whole() if gang["replica"] == name)
        two.lose_link(gang)
        found_s = wait_until("the link is known to be lost", lambda: "acknowledgement" in two.reason_of(gang), 60)
        took_s = wait_until("two gangs are whole again", lambda: len(two.whole()) == 2 and name not in names(two), 120)
        print(f"lost link: known after {found_s:.1f} s, whole again after {found_s + took_s:.1f} s: {phases(two)}")
        began = clients.num_streams
        wait_until("more streams run", lambda: clients.num_streams >= began + NUM_CLIENTS)
    assert clients.wrong == []
    assert text(two.fleet, "split", "Many rowers") == text(two.fleet, "one", "Many rowers")


def phases(two: TwoHosts) -> list[dict[str, float]]:
    """The seconds that gangs spent in each phase of their start."""
    return [gang["phase_s"] for gang in two.whole()]


def names(two: TwoHosts) -> list[str]:
    return [gang["replica"] for gang in two.whole()]


def test_a_cut_link_ends_the_gangs_without_a_wrong_answer_and_they_come_back(two: TwoHosts) -> None:
    before = set(names(two))
    gangs = [f"split/{name}" for name in before]
    with load(two) as clients:
        wait_until("streams run", lambda: clients.num_streams >= NUM_CLIENTS)
        clients.pause_s = PAUSE_S
        two.lab.cut(two.lab.hosts[1])
        wait_until("no process of a gang is left", lambda: not any(map(two.processes, gangs)), 60)
        assert text(two.fleet, "one", "Many rowers")
        two.lab.restore(two.lab.hosts[1])
        whole_s = wait_until("a gang is whole again", lambda: set(names(two)) - before, 120)
        took_s = whole_s + wait_until("it answers one more client", lambda: two.fleet.answers("split"))
        print(f"link is back: whole after {whole_s:.1f} s, one more answer after {took_s:.1f} s: {phases(two)}")
        began = clients.num_streams
        wait_until("more streams run", lambda: clients.num_streams >= began + NUM_CLIENTS)
    assert clients.wrong == []
    assert text(two.fleet, "split", "Many rowers") == text(two.fleet, "one", "Many rowers")
