"""One model split over two hosts: real vLLM, real Ray, hosts of the network lab."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until
from fleet.knowledge import HOLDERS_FIRST, known_after_losses
from fleet.load import Load
from netlab.lab import Host, Lab, why_unavailable

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(600)]

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
CUT_S = 20.0
"""Ray gives a node up after 6 s, and Serve starts a controller elsewhere a few seconds later."""
LOSSY = {"LONGBOAT_VLLM_PREFIXES": "drop=20"}
"""Engines of the second host lose every 20th batch of KV events."""
PROMPTS = ("What is Longboat?", "Many rowers", "Count to twenty:", "こんにちは")


def model(name: str, more: str, source: str = "builtin:tiny", cpus: float = 1, args: str = "") -> str:
    environment = Path(PYTHON).parent.parent
    engine = f"engine: {{environment: {environment}, args: [{args}]}}"
    resources = f"resources: {{cpus: {cpus}}}"
    return f"  - {{name: {name}, source: '{source}', {engine}, context: 1024, {resources}, {more}}}\n"


ONE = model("one", "placement: {labels: {host: a}}")
PIPELINE = model("pipeline", "split: {pipeline: 2}")
TENSOR = model("tensor", "split: {tensor: 2}, placement: {nodes: 2}")
FAR = model("far", "placement: {labels: {host: b}}")
EXPERTS = model("experts", "placement: {labels: {host: a}}", "builtin:tiny-moe", 0.5)
DATA = model("data", "split: {data: 2}, placement: {nodes: 2}", "builtin:tiny-moe", 0.5)
WIDE = model("wide", "split: {tensor: 2}, placement: {nodes: 2}", "builtin:tiny-moe", 0.5)
TWINS = model("twins", "replicas: 2", cpus=3, args="--block-size, '32', --num-gpu-blocks-override, '400'")
"""One replica on each host."""


@dataclass
class TwoHosts:
    """Two hosts with Ray on both, and the command line on the first."""

    lab: Lab
    fleet: FleetLab
    far: FleetLab

    @property
    def hosts(self) -> list[Host]:
        return self.lab.hosts

    def up(self, *models: str, policy: str = "cost") -> str:
        text = f"name: t\ngateway: {{routing: {{policy: {policy}}}}}\nmodels:\n" + "".join(models)
        path = self.fleet.folder / "fleet.yaml"
        path.write_text(text)
        return self.fleet.must("up", str(path), "--detach", timeout_s=400)

    def gang_processes(self, name: str, replica: str) -> list[int]:
        """Processes of a gang, on both hosts."""
        gang = f"{name}/{replica}"
        return [*self.fleet.processes(LONGBOAT_GANG=gang), *self.far.processes(LONGBOAT_GANG=gang)]


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHosts]:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        first, second = lab.hosts
        token = lab.folder / "token"
        common = ("--num-cpus", "4", "--token-file", str(token))
        first.run([*COMMAND, "node", "start", "--head", "--label", "host=a", *common], timeout=240)
        join = [*COMMAND, "node", "start", "--join", first.address, "--label", "host=b", *common]
        second.run(join, timeout=240, env=LOSSY)
        yield TwoHosts(lab, *(fleet_at(lab, host) for host in lab.hosts))


def tokens(fleet: FleetLab, name: str, prompt: str) -> list[int]:
    status, choice = fleet.ask(name, prompt, 24, timeout_s=120, return_token_ids=True)
    assert status == 200, choice
    ids: list[int] = choice["token_ids"]
    assert ids
    return ids


def only(two: TwoHosts, name: str) -> dict[str, Any]:
    (replica,) = two.fleet.replicas(name)
    return replica


def test_a_model_split_over_two_hosts_answers_like_one_host(two: TwoHosts) -> None:
    two.up(ONE, PIPELINE)
    for prompt in PROMPTS:
        assert tokens(two.fleet, "pipeline", prompt) == tokens(two.fleet, "one", prompt)
        assert tokens(two.far, "pipeline", prompt) == tokens(two.far, "one", prompt)


def test_status_shows_which_rank_runs_where(two: TwoHosts) -> None:
    ranks = only(two, "pipeline")["ranks"]
    assert [(rank["node_rank"], rank["address"]) for rank in ranks] == [
        (0, two.hosts[0].address),
        (1, two.hosts[1].address),
    ] or [(rank["node_rank"], rank["address"]) for rank in ranks] == [
        (0, two.hosts[1].address),
        (1, two.hosts[0].address),
    ]
    table = two.fleet.must("status")
    assert "TP1 PP2" in table
    assert all(f"({host.address})" in table for host in two.hosts)


def test_a_second_model_joins_and_leaves_without_a_restart_of_the_first(two: TwoHosts) -> None:
    before = {name: only(two, name)["replica"] for name in ("one", "pipeline")}
    two.up(ONE, PIPELINE, TENSOR)
    for prompt in PROMPTS:
        assert tokens(two.fleet, "tensor", prompt) == tokens(two.fleet, "one", prompt)
    assert {rank["address"] for rank in only(two, "tensor")["ranks"]} == {host.address for host in two.hosts}
    gone = only(two, "tensor")["replica"]
    two.up(ONE, PIPELINE)
    assert two.fleet.ask("tensor")[0] == 404
    wait_until("nothing of the second is left", lambda: not two.gang_processes("tensor", gone), 60)
    assert {name: only(two, name)["replica"] for name in ("one", "pipeline")} == before


def leftovers(two: TwoHosts) -> int:
    """Shared memory segments and folders for temporary files, on both hosts."""
    count = 0
    for host in two.hosts:
        memory = host.run(["ls", "/dev/shm"]).stdout.split()
        count += sum(name.startswith(("psm_", "vllm_")) for name in memory)
        count += len(list((host.folder / "run").glob("scratch/*")))
    return count


def host_of(two: TwoHosts, rank: dict[str, Any]) -> Host:
    return next(host for host in two.hosts if host.address == rank["address"])


def kill(two: TwoHosts, rank: dict[str, Any], pid: int) -> None:
    host_of(two, rank).run(["kill", "-KILL", str(pid)])


@pytest.mark.parametrize("part", ["rank 0", "rank 1", "agent of rank 1", "supervisor"])
def test_a_gang_that_lost_a_part_is_replaced(two: TwoHosts, part: str) -> None:
    wait_until("the gang answers", lambda: two.fleet.answers("pipeline"))
    victim, before = only(two, "pipeline"), leftovers(two)
    rank = victim["ranks"][0 if part in ("rank 0", "supervisor") else 1]
    pid = {"supervisor": victim["supervisor_pid"], "agent of rank 1": rank["agent_pid"]}.get(part, rank["pid"])
    kill(two, rank, pid)
    wait_until("no process of the old gang is left", lambda: not two.gang_processes("pipeline", victim["replica"]), 40)
    wait_until("the gang answers again", lambda: two.fleet.answers("pipeline"), 120)
    wait_until("the old gang is known to be gone", lambda: _replaced(two, victim["replica"]), 30)
    wait_until("no more memory and files are left than before", lambda: leftovers(two) <= before, 30)


def test_experts_split_over_two_hosts_answer_like_one_rank_and_streams_outlive_a_lost_rank(two: TwoHosts) -> None:
    two.up(ONE, PIPELINE, EXPERTS, DATA, WIDE)
    assert "DP2 TP1 PP1" in two.fleet.must("status")
    for prompt in PROMPTS:
        assert tokens(two.fleet, "wide", prompt) == tokens(two.fleet, "experts", prompt)
    assert {rank["address"] for rank in only(two, "wide")["ranks"]} == {host.address for host in two.hosts}
    victim = only(two, "data")
    assert {rank["address"] for rank in victim["ranks"]} == {host.address for host in two.hosts}
    one, data = (streams(two, name) for name in ("experts", "data"))
    with data:
        wait_until("streams are under way", lambda: data.num_streams >= data.num_clients)
        time.sleep(1.0)  # so that some have their first tokens
        kill(two, victim["ranks"][1], victim["ranks"][1]["pid"])
        wait_until("the gang was replaced", lambda: _replaced(two, victim["replica"], "data"), 180)
    assert not data.wrong
    for number in range(data.num_clients):  # greedy and seeded
        assert data.stream(number) == one.stream(number)


def streams(two: TwoHosts, name: str) -> Load:
    url = f"http://127.0.0.1:{two.fleet.local_port}"
    return Load(url, name, num_clients=2, max_tokens=60, timeout_s=240.0, more={"ignore_eos": True})


def test_losing_a_zygote_harms_no_engine_and_it_comes_back(two: TwoHosts) -> None:
    before = only(two, "pipeline")
    rank = before["ranks"][1]
    host = host_of(two, rank)
    for record in (host.folder / "run" / "zygotes").glob("*.json"):
        host.run(["kill", "-KILL", str(json.loads(record.read_text())["pid"])])
    assert two.fleet.answers("pipeline")
    assert only(two, "pipeline")["replica"] == before["replica"]
    kill(two, rank, rank["pid"])
    wait_until("the gang answers again", lambda: _replaced(two, before["replica"]), 180)
    assert {r["started_by"] for r in only(two, "pipeline")["ranks"]} == {"zygote"}


def _replaced(two: TwoHosts, replica: str, model: str = "pipeline") -> bool:
    names = [r["replica"] for r in two.fleet.replicas(model)]
    return bool(names) and replica not in names and two.fleet.answers(model)


def assert_answers(fleet: FleetLab, model: str, which: str) -> None:
    status, said = fleet.ask(model)
    assert status == 200, f"{which}: {status} {said}"


def test_a_cut_link_stops_the_split_gang_and_spares_whole_ones(two: TwoHosts) -> None:
    two.up(ONE, PIPELINE, FAR)
    split, far = only(two, "pipeline"), only(two, "far")
    two.lab.cut(two.hosts[1])
    cut_at_s = time.monotonic()
    wait_until("the split gang has stopped itself", lambda: not two.gang_processes("pipeline", split["replica"]), 60)
    assert_answers(two.fleet, "one", "the whole gang on the head's side")
    assert_answers(two.far, "far", "the whole gang on the side that lost the head")
    time.sleep(max(0.0, CUT_S - (time.monotonic() - cut_at_s)))
    assert_answers(two.fleet, "one", "still, with whichever controller there is now")
    assert_answers(two.far, "far", f"still, after {CUT_S:.0f} s")
    two.lab.restore(two.hosts[1])
    wait_until("the split gang answers again", lambda: two.fleet.answers("pipeline"), 180)
    wait_until("the far model answers again", lambda: two.fleet.answers("far"), 180)
    wait_until("one gang of each is left", lambda: len(two.fleet.replicas("far")) == 1, 60)
    left = only(two, "far")["replica"]
    if left != far["replica"]:
        assert not two.gang_processes("far", far["replica"]), "an old generation lives beside the new one"


def test_each_hosts_gateway_knows_again_what_engines_hold_after_losses(two: TwoHosts) -> None:
    two.up(TWINS, policy=HOLDERS_FIRST)
    known = known_after_losses(two.fleet, two.far, two.hosts, "twins")
    known.teach(60)  # half of them to the engine that loses events
    known.learned("lost events")


def test_down_and_stop_leave_nothing_on_either_host(two: TwoHosts) -> None:
    two.fleet.stop_watching()
    two.fleet.must("down", timeout_s=180)
    for host in reversed(two.hosts):
        host.run([*COMMAND, "node", "stop"], timeout=120)
    wait_until("no process is left", lambda: not any(_processes(host) for host in two.hosts), 60)


def _processes(host: Host) -> dict[int, str]:
    return {pid: command for pid, command in host.processes().items() if "relay.py" not in command}
