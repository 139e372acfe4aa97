"""Replicas that come and go on a running fleet: by hand, with the load, to zero and back. No request is lost.

The tests share one fleet, and each goes on from what the one before left: a change costs seconds.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load, num_resumed
from fleet.test_fake_fleet import controllers
from longboat.core.scaling import ModelObservation
from longboat.scaling.scaler import Scaler
from longboat.spec.files.load import load_fleet
from longboat.spec.scaling import scaled_models

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: {kind: fake, options: {itl_ms: 20}}
    replicas: {min: 0, max: 4, target_ongoing_requests: 2, look_back_period_s: 5, upscale_delay_s: 1,
               downscale_delay_s: 2, downscale_to_zero_delay_s: 3}
    resources: {cpus: 0.1}
    update: {drain_s: 1, limit_s: 60}
  - name: b
    source: builtin:tiny
    engine: {kind: fake, options: {itl_ms: 20}}
    resources: {cpus: 0.1}
    update: {drain_s: 1, limit_s: 60}"""
SHARED = """
  - name: %s
    source: builtin:tiny
    engine: {kind: fake, options: {itl_ms: 20}}
    replicas: {min: 0, max: 2, target_ongoing_requests: 2, look_back_period_s: 5, upscale_delay_s: 1,
               downscale_delay_s: 2, downscale_to_zero_delay_s: 3, priority: %d}
    resources: {cpus: %.2f}
    update: {drain_s: 1, limit_s: 60}"""
SLOT_CPUS = 0.35 * (os.cpu_count() or 2)
"""Two replicas of this size fit on the machine beside the small ones, and three do not."""
FLEET += "".join(SHARED % (name, priority, SLOT_CPUS) for name, priority in (("later", 1), ("first", 0)))


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    lab.must("up", lab.write(FLEET), "--detach", timeout_s=240)
    return lab


def num_of(up: FleetLab, model: str) -> int:
    """Replicas that are ready, where no other one lives."""
    here = [r for r in up.status()["replicas"] if r["model"] == model and r["phase"] not in ("gone", "failed")]
    return len(here) if all(r["phase"] == "ready" for r in here) else -1


def load(up: FleetLab, model: str, num_clients: int, max_tokens: int = 60, apart_s: float = 0.0) -> Load:
    url = f"http://127.0.0.1:{up.local_port}"
    return Load(url, model, num_clients=num_clients, max_tokens=max_tokens, apart_s=apart_s, timeout_s=90.0)


def first_token_s(up: FleetLab, model: str) -> float:
    """Seconds until a stream's first token came, after comments or without."""
    body = json.dumps({"model": model, "prompt": "row", "max_tokens": 3, "stream": True}).encode()
    url = f"http://127.0.0.1:{up.local_port}/v1/completions"
    began_s = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as answer:
        for line in answer:
            if line.startswith(b"data:"):
                return time.monotonic() - began_s
    raise AssertionError("the stream had no token")


def refused_s(up: FleetLab, model: str, wait_s: float) -> int:
    """The Retry-After of the refusal for a request that can wait this long."""
    url = f"http://127.0.0.1:{up.local_port}/v1/completions"
    body = json.dumps({"model": model, "prompt": "row", "max_tokens": 3}).encode()
    heads = {"Content-Type": "application/json", "X-Request-Timeout": str(wait_s)}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, body, heads), timeout=20)
    assert refused.value.code == 503
    assert json.load(refused.value)["error"]["code"] == "model_starting"
    return int(refused.value.headers["Retry-After"])


def test_counts_by_hand_hold_until_the_file_decides_again(up: FleetLab) -> None:
    """Streams that run on a replica that leaves go on with another one."""
    with load(up, "b", 8, max_tokens=400, apart_s=1.0) as clients:
        assert "2 ready" in up.must("scale", "b", "2")
        wait_until("both proved how they resume", lambda: {r["resume"] for r in up.replicas("b")} == {"carried"}, 60)
        count = up.status()["counts"]["b"]
        assert (count["wanted"], "@" in count["by"]) == (2, True)
        assert abs(count["since_s"] - time.time()) < 120
        wait_until("both are at work", lambda: len(clients.replicas_at_work()) == 2)
        before = num_resumed(up.local_port)
        assert "b: 1 replica wanted, 1 ready" in up.must("scale", "b", "1")
    assert not clients.wrong
    assert num_resumed(up.local_port) > before
    assert "is paused" in up.must("pause", "b")
    status, words = up.ask("b")
    assert (status, "model_paused" in words, num_of(up, "b")) == (503, True, 0)
    assert "b: 1 replica wanted, 1 ready" in up.must("resume", "b")
    assert up.answers("b")
    up.must("scale", "b", "2", "--no-wait")
    assert "the file decides" in up.must("up", up.write(FLEET), "--detach")
    wait_until("the file's count", lambda: num_of(up, "b") == 1, 60)
    assert up.status()["counts"]["b"]["by"] == "file"


def test_an_idle_model_sleeps_and_the_first_request_wakes_it(up: FleetLab) -> None:
    wait_until("a sleeps", lambda: num_of(up, "a") == 0, 90)
    with ThreadPoolExecutor(2) as two:
        hasty, patient = two.submit(refused_s, up, "a", 0.5), two.submit(first_token_s, up, "a")
        assert 1 <= hasty.result() <= 60
        took_s, now_s = patient.result(), time.time()
    wait_until("the start is measured", lambda: up.status()["counts"]["a"]["seen_s"] > now_s, 20)
    ready_s = up.status()["counts"]["a"]["cold_start_s"]
    print(f"first token after {took_s:.2f} s; ready after {ready_s:.2f} s")
    assert took_s < ready_s + 1.0


def test_two_models_on_two_slots_have_what_their_load_and_their_priority_say(up: FleetLab) -> None:
    """The model with work gets both slots while the other keeps its minimum, and gives one to it once that has work."""
    wait_until("both sleep", lambda: num_of(up, "first") == num_of(up, "later") == 0, 90)
    with load(up, "later", 6) as later:
        wait_until("it has both slots", lambda: num_of(up, "later") == 2, 90)
        assert num_of(up, "first") == 0
        with load(up, "first", 2) as first:
            wait_until("each has one", lambda: num_of(up, "first") == num_of(up, "later") == 1, 90)
        wait_until("it has both again", lambda: num_of(up, "later") == 2, 90)
    assert (later.wrong, first.wrong) == ([], [])


def test_load_brings_replicas_and_its_end_takes_them_and_none_is_lost(up: FleetLab) -> None:
    wait_until("a sleeps", lambda: num_of(up, "a") == 0, 90)
    with load(up, "a", 10) as clients:
        wait_until("four replicas", lambda: num_of(up, "a") == 4, 120)
        (old,) = controllers(up)
        os.kill(old, signal.SIGKILL)
        wait_until("there is another controller", lambda: controllers(up) - {old})
        wait_until("it knows the count", lambda: "a" in up.status()["counts"])
        for _ in range(20):  # it knows the count from Serve, and the load only after a while
            assert up.status()["counts"]["a"]["wanted"] == 4
            time.sleep(0.3)
        wait_until("it knows the replicas", lambda: num_of(up, "a") == 4)
    assert not clients.wrong
    wait_until("it sleeps again", lambda: num_of(up, "a") == 0, 90)
    assert_decisions_are_the_pure_scalers(up)


def assert_decisions_are_the_pure_scalers(up: FleetLab) -> None:
    told: dict[str, Any] = json.loads(up.must("status", "--why", "--json"))["scaling"]
    assert told["is_whole"] and len(told["looks"]) > 10
    takes = {entry["name"]: entry["takes"] for entry in told["models"]}
    models = [replace(model, takes=takes[model.name]) for model in scaled_models(load_fleet(FLEET, "x"))]
    scaler = Scaler(models, counts=told["counts"])
    for look in told["looks"]:
        scaler.observe(look["at_s"], [msgspec.convert(seen, ModelObservation) for seen in look["seen"]])
        assert {d.model: d.replicas for d in scaler.decide(look["at_s"], look["room"])} == look["replicas"], look
    assert {look["replicas"]["a"] for look in told["looks"]} >= {0, 4}
