"""Replicas of real vLLM that come and go with the load: streams on a replica that leaves go on, token for token."""

from __future__ import annotations

import os
import time

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load, num_resumed
from fleet.paced_steps import paced_vllm
from fleet.test_counts import first_token_s, num_of

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: %s
    context: 1024
    replicas: {min: 0, max: 2, target_ongoing_requests: 3, upscale_delay_s: 1, downscale_delay_s: 2,
               downscale_to_zero_delay_s: 3}
    resources: {cpus: 0.5}
    update: {drain_s: 0, limit_s: 300}"""


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    evenly = "routing: {policy: least_requests}"  # a replica that leaves has answers, whatever was learned of it
    lab.must("up", lab.write(FLEET % paced_vllm(), gateway=evenly), "--detach", timeout_s=600)
    return lab


def load(up: FleetLab, num_clients: int) -> Load:
    url = f"http://127.0.0.1:{up.local_port}"
    more = {"ignore_eos": True}
    return Load(url, "a", num_clients=num_clients, max_tokens=100, apart_s=0.7, timeout_s=240.0, more=more)


def test_it_wakes_grows_and_shrinks_while_streams_run(up: FleetLab) -> None:
    wait_until("it sleeps", lambda: num_of(up, "a") == 0, 120)
    took_s, now_s = first_token_s(up, "a"), time.time()
    wait_until("the start is measured", lambda: up.status()["counts"]["a"]["seen_s"] > now_s, 20)
    print(f"first token {took_s:.2f} s after waking; ready after {up.status()['counts']['a']['cold_start_s']:.2f} s")
    with load(up, 5) as clients:
        wait_until("there are two", lambda: num_of(up, "a") == 2, 300)
        wait_until("both proved how they resume", lambda: {r["resume"] for r in up.replicas("a")} == {"carried"})
        wait_until("both are at work", lambda: len(clients.replicas_at_work()) == 2)
        before = num_resumed(up.local_port)
        up.must("scale", "a", "1", timeout_s=300)
    assert clients.wrong == []
    assert num_resumed(up.local_port) > before
    assert [d["replicas"] for d in up.status()["decisions"]][-3:] == [1, 2, 1]
