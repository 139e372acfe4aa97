"""LoRA adapters of real SGLang in a fleet: they come and go without a restart, each answers as it does alone, and their
streams outlive a replica.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adapter_files import write_adapter
from engines.sglang_node import SGLANG_PYTHON
from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load, num_resumed
from fleet.paced_steps import paced_sglang

pytestmark = [
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang"),
]
FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: %s
    context: 512
    replicas: 2
    resources: {cpus: 0.5}
    adapters: {slots: 2, entries: [%s]}"""
PAUSE_S = 2.0
"""Between a client's requests while a replica starts."""


def text(up: FleetLab, model: str) -> str:
    status, answer = up.ask(model, "A boat is ", 16, timeout_s=120, ignore_eos=True)
    assert status == 200, answer
    return str(answer["text"])


def test_adapters_come_and_go_and_each_answers_as_it_does_alone(lab: FleetLab, tmp_path: Path) -> None:
    red, blue, green = (write_adapter(tmp_path / name, seed) for seed, name in enumerate(("red", "blue", "green")))
    file = lab.write(FLEET % (paced_sglang(), f"{red}, {blue}"))
    lab.must("up", file, "--detach", timeout_s=400)
    before = generations(lab)
    alone = {model: text(lab, model) for model in ("a", "red", "blue")}

    lab.must("adapters", "add", "a", str(green))
    alone["green"] = text(lab, "green")
    assert len(set(alone.values())) == 4, "the adapters do not change the answers"
    models = [*alone] * 3
    with ThreadPoolExecutor(4) as clients:  # more adapters than the engine computes with at once
        assert list(clients.map(lambda model: text(lab, model), models)) == [alone[model] for model in models]

    lab.must("adapters", "remove", "green")
    assert lab.ask("green")[0] == 404
    write_adapter(green, 99)
    lab.must("adapters", "add", "a", str(green))
    assert text(lab, "green") not in alone.values(), "the old contents answer"
    assert text(lab, "red") == alone["red"]
    assert generations(lab) == before, "a replica was replaced"
    outlive_a_replica(lab, "red")
    assert (text(lab, "red"), text(lab, "a")) == (alone["red"], alone["a"])


def outlive_a_replica(lab: FleetLab, model: str) -> None:
    """Kill a replica in the midst of an adapter's streams; each ends as it does in a quiet fleet."""
    url, long = f"http://127.0.0.1:{lab.local_port}", {"ignore_eos": True}
    resumed, before = num_resumed(lab.local_port), generations(lab)
    with Load(url, model, num_clients=4, max_tokens=80, timeout_s=240.0, more=long) as clients:
        victim = clients.replica_at_work()
        (pid,) = (one["ranks"][0]["pid"] for one in lab.replicas("a") if one["replica"] == victim)
        os.kill(pid, 9)
        clients.pause_s = PAUSE_S
        wait_until("two replicas serve again", lambda: len(found := generations(lab)) == 2 and found != before, 240)
    assert clients.wrong == []
    assert num_resumed(lab.local_port) > resumed


def generations(lab: FleetLab) -> list[int]:
    """The generations of the replicas that are ready."""
    return sorted(replica["generation"] for replica in lab.replicas("a"))
