"""Planned changes under load on real vLLM: what runs on a replica that is taken out ends, or goes on elsewhere."""

from __future__ import annotations

import os
import time

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load, num_resumed
from fleet.paced_steps import STEP_S, paced_vllm

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: %s
    context: %d
    replicas: %d
    resources: {cpus: 0.5}
    update: {drain_s: 0, limit_s: 300}"""
MAX_TOKENS = 100
QUIET: dict[str, str] = {}
"""Answers of the quiet fleet, which no change of these tests alters."""


def file(up: FleetLab, *args: str, context: int = 1024, replicas: int = 2) -> str:
    """Write a file whose gateway gives each replica as many answers: one that goes has some, whatever was learned."""
    text = FLEET % (paced_vllm(*args), context, replicas)
    return up.write(text, gateway="routing: {policy: least_requests}")


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    lab.must("up", file(lab), "--detach", timeout_s=600)
    return lab


def settled(up: FleetLab, number: int) -> bool:
    status = up.status()
    over = all(replica["phase"] in ("ready", "gone", "failed") for replica in status["replicas"])
    return over and not status["updating"] and len(up.replicas("a")) == number


def change(up: FleetLab, path: str, number: int, *, num_clients: int = 4) -> list[str]:
    """Bring ``path`` up while every replica is at work; what was wrong with the answers.

    An answer takes seconds even alone, and answers of a replica do not end together: whenever the replica is taken out,
    some are far from their end. Together, all could end before the gateway hands them on.
    """
    wait_until("every level of resuming is proved", lambda: all(level != "none" for level, _ in levels(up)), 120)
    url, long = f"http://127.0.0.1:{up.local_port}", {"ignore_eos": True}
    load = Load(url, "a", num_clients, MAX_TOKENS, timeout_s=240.0, apart_s=1.0, more=long, expected=QUIET)
    with load as clients:
        num_replicas = len(up.replicas("a"))
        wait_until("every replica is at work", lambda: len(clients.replicas_at_work()) == num_replicas, 120)
        up.must("up", path, "--detach", timeout_s=600)
        wait_until("the change is over", lambda: settled(up, number), 400)
    assert clients.num_streams > clients.num_clients
    return clients.wrong


def levels(up: FleetLab) -> list[tuple[str, str]]:
    return [(replica["resume"], replica["resume_detail"]) for replica in up.replicas("a")]


def test_steps_of_the_engines_are_paced(up: FleetLab) -> None:
    """The other tests rely on it: their answers are under way when something changes."""
    began_s = time.monotonic()
    assert up.ask("a", max_tokens=20, ignore_eos=True)[0] == 200
    assert time.monotonic() - began_s > 19 * STEP_S


def test_an_update_within_a_revision_hands_answers_on(up: FleetLab) -> None:
    revision = {replica["revision"] for replica in up.replicas("a")}
    before = num_resumed(up.local_port)
    assert change(up, file(up, "--max-num-seqs=100"), 2) == []
    assert {replica["revision"] for replica in up.replicas("a")} == revision
    assert num_resumed(up.local_port) > before, levels(up)


def test_fewer_replicas_hand_answers_on(up: FleetLab) -> None:
    before = num_resumed(up.local_port)
    assert change(up, file(up, "--max-num-seqs=100", replicas=1), 1) == []
    assert num_resumed(up.local_port) > before, levels(up)


def test_an_update_to_another_revision_lets_answers_end(up: FleetLab) -> None:
    """Of the only replica: another one starts first."""
    revision = {replica["revision"] for replica in up.replicas("a")}
    assert change(up, file(up, context=1000, replicas=1), 1) == []
    assert not revision & {replica["revision"] for replica in up.replicas("a")}
