"""A real vLLM under heartbeats: it proves how it resumes, and a long prefill is not taken for a hang."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.liveness_lab import gateway_state

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
NUM_TOKENS = 12_000
FLEET = """name: t
models:
  - {{name: big, source: 'builtin:random-50m', engine: {{environment: {environment}}}, context: 16384}}"""


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    lab.must("up", lab.write(FLEET.format(environment=Path(PYTHON).parent.parent)), "--detach", timeout_s=600)
    return lab


def test_a_replica_proves_how_it_resumes(up: FleetLab) -> None:
    wait_until("the proof is over", lambda: only(up)["resume"] != "none", 120)
    assert only(up)["resume"] == "carried", only(up)["resume_detail"]


def only(up: FleetLab) -> dict[str, Any]:
    (replica,) = up.replicas("big")
    return replica


def test_a_long_prefill_is_no_hang(up: FleetLab) -> None:
    before, answers = only(up), []
    prompt = [5 + i % 3000 for i in range(NUM_TOKENS)]
    asking = threading.Thread(target=lambda: answers.append(up.ask("big", prompt, 2, timeout_s=600)))  # type: ignore[arg-type]
    began_s = time.monotonic()
    asking.start()
    while asking.is_alive() and time.monotonic() - began_s < 600:
        assert not gateway_state(up.folder)["lost"]
        time.sleep(0.1)
    asking.join(5)
    print(f"the prefill took {time.monotonic() - began_s:.0f} s")
    assert answers
    assert answers[0][0] == 200, answers
    assert only(up)["replica"] == before["replica"]
