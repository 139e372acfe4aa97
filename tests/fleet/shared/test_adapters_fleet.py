"""Adapters of a running fleet of fake engines: they come, change and go, and no replica is replaced."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from adapter_files import write_adapter
from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import num_resumed

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: {kind: fake, options: {itl_ms: 20}}
    replicas: 2
    resources: {cpus: 0.1}
    adapters: {slots: 2, entries: [%s]}"""


SECRET = "0123456789-a-secret"
ADMIN = f"admin: [{{name: hand, role: operator, sha256: {hashlib.sha256(SECRET.encode()).hexdigest()}}}]"
NAMES = ("red", "blue", "green")


@pytest.fixture(scope="module")
def up(lab: FleetLab, tmp_path_factory: pytest.TempPathFactory) -> FleetLab:
    lab.must("up", file(lab, tmp_path_factory.mktemp("first"), "red"), "--detach", timeout_s=240)
    return lab


@pytest.fixture
def folder(up: FleetLab, tmp_path: Path) -> Path:
    """Three adapters, of which the fleet serves red and blue; contents of another test are replaced."""
    up.must("up", file(up, tmp_path, "red", "blue"), "--detach")
    wait_until("replicas and gateways know", lambda: set(listed(up)) == {"a", "red", "blue"} and is_served(up, 2))
    return tmp_path


def file(up: FleetLab, folder: Path, *names: str) -> str:
    """A fleet file with these adapters, and two gateway processes."""
    for seed, name in enumerate(NAMES):
        write_adapter(folder / name, seed)
    entries = ", ".join(str(folder / name) for name in names)
    return up.write(FLEET % entries, gateway=f"processes: 2, demo: true, {ADMIN}")


def is_served(up: FleetLab, number: int) -> bool:
    ready = up.replicas("a")
    return len(ready) == 2 and all(len(replica["adapters"]) == number for replica in ready)


def replicas(up: FleetLab) -> list[str]:
    return sorted(replica["replica"] for replica in up.replicas("a"))


def text(up: FleetLab, model: str) -> str:
    status, answer = up.ask(model, max_tokens=8)
    assert status == 200, answer
    return str(answer["text"])


def listed(up: FleetLab) -> dict[str, str | None]:
    with urllib.request.urlopen(f"http://127.0.0.1:{up.local_port}/v1/models", timeout=20) as answer:
        return {card["id"]: card.get("parent") for card in json.load(answer)["data"]}


def test_adapters_of_the_file_are_served_by_all_replicas(up: FleetLab, folder: Path) -> None:
    assert listed(up) == {"a": None, "red": "a", "blue": "a"}
    assert len({text(up, model) for model in ("a", "red", "blue")}) == 3
    rows = json.loads(up.must("adapters", "list", "--json"))
    assert [(row["name"], row["model"], len(row["served_by"])) for row in rows] == [("red", "a", 2), ("blue", "a", 2)]


def test_adapters_come_change_and_go_without_a_restart(up: FleetLab, folder: Path) -> None:
    before, revisions = replicas(up), {replica["revision"] for replica in up.replicas("a")}
    up.must("adapters", "add", "a", str(folder / "green"), "--name", "fresh")
    first = [text(up, "fresh") for _ in range(8)]
    assert len(set(first)) == 1
    write_adapter(folder / "green", 99)
    up.must("adapters", "add", "a", str(folder / "green"), "--name", "fresh")
    second = [text(up, "fresh") for _ in range(8)]
    assert len(set(second)) == 1
    assert first[0] != second[0]
    assert "fresh" in up.must("adapters", "list")
    up.must("adapters", "remove", "fresh")
    assert [up.ask("fresh")[0] for _ in range(6)] == [404] * 6
    assert (replicas(up), {replica["revision"] for replica in up.replicas("a")}) == (before, revisions)


def test_a_new_replica_serves_what_was_added(up: FleetLab, folder: Path) -> None:
    up.must("adapters", "add", "a", str(folder / "green"))
    wanted = text(up, "green")
    (gone, *_) = up.replicas("a")
    os.kill(gone["ranks"][0]["pid"], signal.SIGKILL)
    wait_until("it is gone", lambda: gone["replica"] not in replicas(up))
    wait_until("another replica serves all adapters", lambda: is_served(up, 3))
    assert {text(up, "green") for _ in range(6)} == {wanted}


def test_the_file_says_what_is_served_and_replaces_no_replica(up: FleetLab, folder: Path) -> None:
    before = replicas(up)
    output = up.must("up", file(up, folder, "blue", "green"), "--detach")
    assert "adapters.entries.red" in output
    wait_until("the gateways know", lambda: set(listed(up)) == {"a", "blue", "green"})
    assert replicas(up) == before
    assert up.ask("red")[0] == 404


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "a", "/none"), "there is no folder /none"),
        (("add", "b", "/none"), "there is no model 'b'"),
        (("remove", "none"), "there is no adapter 'none'"),
    ],
)
def test_mistakes_change_nothing(up: FleetLab, words: tuple[str, ...], told: str) -> None:
    done = up.cli("adapters", *words)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def order(up: FleetLab, method: str, path: str, **body: object) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{up.local_port}/admin/v1/{path}"
    headers = {"Authorization": f"Bearer {SECRET}"}
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def test_admin_api_changes_adapters_as_the_command_does(up: FleetLab, folder: Path) -> None:
    before = replicas(up)
    status, document = order(up, "POST", "adapters", model="a", source=str(folder / "green"), name="fresh")
    assert (status, len(document["adapter"]["served_by"])) == (200, 2), document
    assert len({text(up, "fresh") for _ in range(6)}) == 1
    assert "fresh" in up.must("adapters", "list")
    status, error = order(up, "POST", "adapters", model="a", source="/none")
    assert (status, "there is no folder /none" in error["message"]) == (400, True), error
    assert order(up, "DELETE", "adapters/none")[0] == 400
    assert order(up, "DELETE", "adapters/fresh") == (200, {"removed": "fresh"})
    assert [up.ask("fresh")[0] for _ in range(6)] == [404] * 6
    assert replicas(up) == before


def test_admin_api_changes_numbers_of_replicas_as_the_command_does(up: FleetLab, folder: Path) -> None:
    before = replicas(up)
    status, document = order(up, "POST", "models/a/scale", replicas=3)
    assert (status, document) == (200, {"count": {"model": "a", "replicas": 3, "paused": False}})
    wait_until("three are ready", lambda: len(up.replicas("a")) == 3 and set(before) < set(replicas(up)))
    count = up.status()["counts"]["a"]
    assert (count["wanted"], count["by"]) == (3, "hand, admin API")
    status, error = order(up, "POST", "models/a/resume")
    assert (status, error["code"], "a is not paused" in error["message"]) == (400, "bad_count", True)
    assert order(up, "POST", "models/none/pause")[0] == 400
    assert order(up, "POST", "models/a/scale", replicas="auto")[0] == 200
    wait_until("the file's two are left", lambda: len(up.replicas("a")) == 2)


def test_admin_api_kills_an_engine_and_its_answer_goes_on(up: FleetLab, folder: Path) -> None:
    before, resumed = replicas(up), num_resumed(up.local_port)
    wait_until("both proved how they resume", lambda: {r["resume"] for r in up.replicas("a")} == {"carried"})
    request = {"model": "a", "prompt": "row", "max_tokens": 400, "stream": True, "ignore_eos": True}
    url, headers = f"http://127.0.0.1:{up.local_port}/v1/completions", {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(request).encode(), headers), timeout=120
    ) as answer:
        replica = answer.headers["x-longboat-replica"]
        status, document = order(up, "POST", "kill-engine", replica=replica)
        assert (status, document["killed"]["replica"]) == (200, replica), document
        assert document["killed"]["processes"] > 0
        lines = answer.read().decode().splitlines()
    assert lines[-2] == "data: [DONE]"
    assert num_resumed(up.local_port) == resumed + 1
    wait_until("it is replaced", lambda: len(up.replicas("a")) == 2 and replica not in replicas(up))
    assert replica in before
    status, error = order(up, "POST", "kill-engine", replica=replica)
    assert (status, error["code"]) == (400, "bad_kill"), error
