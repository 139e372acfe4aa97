"""Two versions of vLLM: the older one serves and goes on with answers too, and a fleet moves to the newer one."""

from __future__ import annotations

import os
import signal

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load, num_resumed
from longboat.engines.vllm.adapter import VllmAdapter

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

PAUSE_S = 2.0
STREAM_S = 240.0
"""The longest that an answer takes: engines of 200 clients on two busy cores have many before it."""
NUM_CLIENTS = int(os.environ.get("LONGBOAT_TEST_CLIENTS", "3"))
NEW, (OLD, *_) = VllmAdapter.recipe.version, VllmAdapter.recipe.older
FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: {kind: vllm, version: "%s"}
    context: 1024
    replicas: 2
    resources: {cpus: 0.5}
    update: {drain_s: 2, limit_s: 300}"""


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON"):
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environments")
    lab.must("up", lab.write(FLEET % OLD), "--detach", timeout_s=600)
    return lab


def load(up: FleetLab) -> Load:
    return Load(
        f"http://127.0.0.1:{up.local_port}", "a", num_clients=NUM_CLIENTS, max_tokens=200, timeout_s=STREAM_S,
        more={"ignore_eos": True},
    )  # fmt: skip


def revisions(up: FleetLab) -> set[str]:
    return {replica["revision"] for replica in up.replicas("a")}


def is_settled(up: FleetLab) -> bool:
    status = up.status()
    over = all(replica["phase"] in ("ready", "gone", "failed") for replica in status["replicas"])
    return over and not status["updating"] and len(up.replicas("a")) == 2


def test_answers_of_the_older_version_go_on_when_an_engine_is_killed(up: FleetLab) -> None:
    assert [replica["resume"] for replica in up.replicas("a")] == ["carried"] * 2
    before = num_resumed(up.local_port)
    with load(up) as clients:
        pids = {replica["replica"]: replica["ranks"][0]["pid"] for replica in up.replicas("a")}
        os.kill(pids[clients.replica_at_work()], signal.SIGKILL)
        wait_until("an answer went on", lambda: num_resumed(up.local_port) > before, 300)
        clients.pause_s = PAUSE_S
        wait_until("both replicas are back", lambda: is_settled(up), 300)
    assert clients.wrong == []


def test_an_upgrade_to_the_newer_version_loses_no_answer(up: FleetLab) -> None:
    """An answer is one version's from its first to its last token, and versions may draw other tokens by a seed."""
    old = revisions(up)
    with load(up) as clients:
        clients.pause_s = PAUSE_S
        up.must("up", up.write(FLEET % NEW), "--detach", timeout_s=600)
        wait_until("the upgrade is over", lambda: is_settled(up) and not old & revisions(up), 400)
        wait_until("the new version answers", lambda: up.ask("a", timeout_s=STREAM_S)[0] == 200, STREAM_S)
    print(f"{clients.num_streams} streams of {NUM_CLIENTS} clients, {len(clients.wrong)} of the other version or wrong")
    assert clients.num_streams > clients.num_clients
    assert len(clients.wrong) == len(clients.others), clients.wrong
    new = {number: clients.stream(number) for number in {number for number, _ in clients.others}}
    assert [number for number, text in clients.others if text != new[number]] == []
