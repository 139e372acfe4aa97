"""A fleet of fake engines on a local cluster, from `up` to `down`: what is started, kept, changed and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

ONE = "name: t\nmodels:\n  - {name: a, source: 'builtin:tiny', engine: fake, replicas: 1, resources: {cpus: 0.1}}"
TWO = ONE.replace("replicas: 1", "replicas: 2")
WITH_B = TWO + "\n  - {name: b, source: 'builtin:tiny', engine: fake, resources: {cpus: 0.1}}"


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    output = lab.must("up", lab.write(TWO), "--detach", timeout_s=240)
    assert f"http://127.0.0.1:{lab.port}/v1" in output
    assert "curl -N" in output
    return lab


def test_the_openai_client_lists_chats_streams_and_completes(up: FleetLab) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{up.port}/v1", api_key="none", timeout=30, max_retries=0)
    assert [model.id for model in client.models.list()] == ["a"]
    messages = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(model="a", messages=messages, max_tokens=5, temperature=0)
    chunks = client.chat.completions.create(model="a", messages=messages, max_tokens=5, temperature=0, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content
    assert streamed == whole.choices[0].message.content
    assert client.completions.create(model="a", prompt="hello", max_tokens=5).choices[0].text


def test_status_says_which_rank_runs_where(up: FleetLab) -> None:
    ranks = [rank for replica in up.replicas() for rank in replica["ranks"]]
    assert len(ranks) == 2
    assert all(os.path.exists(f"/proc/{rank['pid']}") and rank["address"] for rank in ranks)
    assert "ready" in up.must("status")


def test_supervisors_that_wait_look_for_signals_less_often_than_ray(up: FleetLab) -> None:
    pids = [replica["supervisor_pid"] for replica in up.replicas()]
    before = [_wake_ups(pid) for pid in pids]
    time.sleep(3.0)
    woken = [_wake_ups(pid) - count for pid, count in zip(pids, before, strict=True)]
    assert len(woken) == 2 and all(0 < count < 120 for count in woken), f"{woken} in 3 s; Ray's own way makes 300"


def _wake_ups(pid: int) -> int:
    """Return how often the main thread of a process has waited for something."""
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


def test_console_shows_the_fleet_as_the_controller_sees_it(up: FleetLab) -> None:
    address = up.must("console", "--json", timeout_s=60)
    assert json.loads(address) == {"url": f"http://127.0.0.1:{up.port}/console"}
    found: dict[str, Any] = {}

    def is_shown() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/console/api/live/fleet", timeout=20) as answer:
            found.update(json.load(answer)["data"]["view"] or {})
        return bool(found)

    wait_until("the controller sent its view, once a page asked", is_shown)
    (node,) = found["nodes"]
    assert node["alive"] and node["cpus"] and node["gateway"]["problem"] == ""
    assert sorted(replica["replica"] for replica in found["replicas"]) == sorted(_names(up))
    assert {rank["node"] for replica in found["replicas"] for rank in replica["ranks"]} == {node["id"]}
    assert found["counts"]["a"]["wanted"] == 2


def test_an_unchanged_file_is_a_no_op(up: FleetLab) -> None:
    before = sorted(replica["replica"] for replica in up.replicas())
    assert "nothing to change" in up.must("up", up.write(TWO), "--detach")
    assert sorted(replica["replica"] for replica in up.replicas()) == before


def test_json_is_one_document_on_stdout_and_the_rest_is_on_stderr(up: FleetLab) -> None:
    done = up.cli("up", up.write(TWO), "--detach", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["action"], document["changes"]) == (0, "unchanged", [])
    assert document["addresses"] == [f"http://127.0.0.1:{up.port}/v1"]
    running = document["models"]["a"]["running"]
    assert sorted(one["replica"] for one in running) == sorted(_names(up))
    assert all(one["phase"] == "ready" and one["nodes"] for one in running)
    assert "nothing to change" in done.stderr


def test_a_fleet_of_another_name_is_refused(up: FleetLab) -> None:
    done = up.cli("up", up.write(TWO.replace("name: t", "name: u"), "other.yaml"), "--detach")
    assert done.returncode == 2
    assert "fleet 't' runs on this cluster" in done.stderr
    assert up.answers("a")


def test_a_second_model_and_more_replicas_come_and_go_without_a_restart_of_the_first(up: FleetLab) -> None:
    first, jobs = set(_names(up)), jobs_with_workers(up)
    output = up.must("up", up.write(WITH_B.replace("replicas: 2", "replicas: 3")), "--detach")
    assert "+ b" in output
    assert "replicas: 2 -> 3" in output
    assert up.answers("b")
    three = set(_names(up))
    assert first < three
    assert "- b" in up.must("up", up.write(TWO), "--detach")
    wait_until("b is gone", lambda: not up.replicas("b"))
    assert up.ask("b")[0] == 404
    wait_until("two replicas are left", lambda: len(_names(up)) == 2)
    assert set(_names(up)) < three
    assert jobs_with_workers(up) == jobs, "a command had Ray start a worker, where the node's daemon could answer"


def jobs_with_workers(up: FleetLab) -> set[str]:
    """Return Ray's jobs that had a worker on this node; each command is a job."""
    logs = (up.folder / "ray" / "session_latest" / "logs").glob("worker-*.err")
    return {log.name.split("-")[2] for log in logs}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("part", ["rank", "keeper", "supervisor"])
def test_a_gang_that_lost_a_part_is_replaced_whole(up: FleetLab, part: str) -> None:
    wait_until("two replicas are ready", lambda: len(up.replicas("a")) == 2)
    victim = up.replicas("a")[0]
    rank = victim["ranks"][0]
    gang = f"a/{victim['replica']}"
    members = up.processes(LONGBOAT_GANG=gang)
    keeper = next(pid for pid in members if pid != rank["pid"])
    kill({"rank": rank["pid"], "keeper": keeper, "supervisor": victim["supervisor_pid"]}[part])
    wait_until("no process of the old gang is left", lambda: not up.processes(LONGBOAT_GANG=gang), 30)
    wait_until("another replica is ready", lambda: victim["replica"] not in _names(up) and len(_names(up)) == 2)
    assert up.answers("a")


def _names(up: FleetLab) -> list[str]:
    return [replica["replica"] for replica in up.replicas("a")]


def test_requests_are_answered_while_a_replica_dies(up: FleetLab) -> None:
    wait_until("two replicas are ready", lambda: len(up.replicas("a")) == 2)
    kill(up.replicas("a")[0]["ranks"][0]["pid"])
    assert [up.ask("a")[0] for _ in range(30)] == [200] * 30


def test_no_request_fails_while_the_controller_is_replaced(up: FleetLab) -> None:
    wait_until("two replicas are ready", lambda: len(up.replicas("a")) == 2)
    (old,) = controllers(up)
    before = told_by(up)
    with Load(f"http://127.0.0.1:{up.port}", "a", num_clients=1) as clients:
        kill(old)
        wait_until("there is another controller", lambda: controllers(up) - {old})
        wait_until("both are known again", lambda: len(up.replicas("a")) == 2)
        wait_until("the gateway has its table", lambda: told_by(up) not in ("", before))
    assert not clients.wrong
    assert clients.num_streams > 5


def told_by(up: FleetLab) -> str:
    """Of which controller the gateway's table is."""
    (gateway,) = up.status()["gateways"]
    return "" if gateway["problem"] else str(gateway["epoch"])


def controllers(up: FleetLab) -> set[int]:
    command = "ray::ServeReplica:longboat:FleetController"
    return {pid for pid in up.processes() if command in _command_line(pid)}


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_a_gateway_that_died_is_started_again(up: FleetLab) -> None:
    gateway = up.status()["gateways"][0]
    kill(gateway["pid"])
    wait_until("the gateway answers again", lambda: up.answers("a"), 60)
    wait_until("status names another process", lambda: up.status()["gateways"][0]["pid"] != gateway["pid"], 60)


def test_a_fleet_that_cannot_start_says_why_and_leaves_nothing(up: FleetLab) -> None:
    broken = WITH_B.replace("engine: fake, resources", "engine: {kind: fake, args: [--nonsense]}, resources")
    done = up.cli("up", up.write(broken, "broken.yaml"), "--detach", "--json")
    assert done.returncode == 4
    assert "nonsense" in done.stderr
    assert any("nonsense" in line for line in json.loads(done.stdout)["error"]["log_tail"])
    assert "longboat logs b" in done.stderr
    wait_until("b is taken out again", lambda: up.ask("b")[0] == 404, 60)
    assert up.answers("a")


def test_logs_are_found_wherever_they_are(up: FleetLab) -> None:
    output = up.must("logs", "a", "-n", "5")
    assert "rank0 |" in output or "phase=" in output
    assert up.cli("logs", "nobody").returncode == 2


def test_chat_streams_in_the_terminal(up: FleetLab) -> None:
    assert up.must("chat", "a", "-p", "hello", "--max-tokens", "4").strip()


def test_down_leaves_nothing_behind(up: FleetLab) -> None:
    up.stop_watching()
    assert "the fleet is down" in up.must("down")
    assert not up.answers("a")
    wait_until("no process is left", lambda: not [pid for pid in up.processes() if pid != os.getpid()], 60)


def test_ending_up_takes_down_what_it_started_also_where_its_output_has_no_reader(lab: FleetLab) -> None:
    process = lab.popen("up", lab.write(ONE))
    assert process.stdout is not None
    assert any("Ctrl-C takes it down" in line for line in process.stdout)
    process.stdout.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=90) == 143
    wait_until("no process is left", lambda: not [pid for pid in lab.processes() if pid != os.getpid()], 60)


def test_up_ends_in_peace_when_another_command_takes_its_fleet_down(lab: FleetLab) -> None:
    log = lab.folder / "up.log"
    with log.open("w") as output:
        process = lab.popen("up", lab.write(ONE), stdout=output)
    wait_until("the fleet is held", lambda: "Ctrl-C takes it down" in log.read_text(), 240)
    assert "the local cluster is stopped" in lab.must("down")
    assert process.wait(timeout=90) == 0, log.read_text()
    told = log.read_text()
    _, _, after = told.partition("Ctrl-C takes it down")
    assert after.splitlines()[1:] == ["another command took the fleet down (longboat down)"], told
    wait_until("no process is left", lambda: not [pid for pid in lab.processes() if pid != os.getpid()], 60)
