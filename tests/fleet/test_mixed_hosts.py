"""A replica with stages on hosts of different memory: decided, placed where computed, kept, measured. Real vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, limit_memory, wait_until
from netlab.lab import Host, Lab, why_unavailable

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(900)]

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
MIB = 1024**2
# Half of the model is too much for the small one, all of it for the large one. Ray's head is on the small one.
MEMORY_MIB = {"small": 1229, "large": 1536}
TOKENS = 100
FLEET = """name: mixed
models:
  - name: m
    source: builtin:random-250m
    engine: {environment: %s}
    split: auto
    replicas: auto
    context: 256
    resources: {cpus: 1}
    load: {users: 2, prompt_tokens: 64, output_tokens: 64}
"""
THREE = """name: mixed
models:
  - name: three
    source: builtin:tiny
    engine: {environment: %s}
    context: 512
    split: {pipeline: 3}
    placement: {stages: [{host: large}, {host: large}, {host: small}]}
"""


@dataclass
class Mixed:
    """Two hosts that differ in memory, by the label ``host``."""

    fleet: FleetLab
    hosts: dict[str, Host]

    def up(self, text: str) -> str:
        path = self.fleet.folder / "fleet.yaml"
        path.write_text(text % Path(PYTHON).parent.parent)
        return self.fleet.must("up", str(path), "--detach", timeout_s=600)

    def ranks(self, model: str) -> list[dict[str, Any]]:
        """Of the only replica, in the order of their stages."""
        (replica,) = self.fleet.replicas(model)
        return sorted(replica["ranks"], key=lambda rank: int(rank["node_rank"]))

    def pair(self) -> dict[str, Any]:
        return dict(self.fleet.status()["pairs"]["m"])


@pytest.fixture(scope="module")
def mixed() -> Iterator[Mixed]:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        hosts = dict(zip(MEMORY_MIB, lab.hosts, strict=True))
        home = lab.folder / "longboat-home"
        home.mkdir()
        common = ["--token-file", str(lab.folder / "token")]
        for name, host in hosts.items():
            # Ray would believe the limit too, and end what it takes for too much.
            host.env |= {"LONGBOAT_HOME": str(home), "RAY_memory_monitor_refresh_ms": "0"}
            way = ["--head"] if name == "small" else ["--join", hosts["small"].address]
            cpus = "1" if name == "small" else "2"
            words = ["node", "start", *way, "--label", f"host={name}", "--num-cpus", cpus, *common]
            host.run([*COMMAND, *words], timeout=240)
            limit_memory(host, MEMORY_MIB[name])
        mixed = Mixed(fleet_at(lab, hosts["small"]), hosts)
        yield mixed
        mixed.fleet.stop_watching()


def test_stages_are_on_the_hosts_that_they_were_computed_for(mixed: Mixed) -> None:
    printed = " ".join(mixed.up(FLEET).split())
    assert "no layout on equal nodes fits" in printed, printed
    assert "stages by label: 12 layers on host=large, 8 layers on host=small" in printed
    addresses = [mixed.hosts[name].address for name in ("large", "small")]
    assert [rank["address"] for rank in mixed.ranks("m")] == addresses
    assert mixed.fleet.ask("m", timeout_s=240)[0] == 200


def test_a_second_up_keeps_it(mixed: Mixed) -> None:
    before = [(rank["pid"], rank["address"]) for rank in mixed.ranks("m")]
    assert "nothing to change" in mixed.up(FLEET)
    assert [(rank["pid"], rank["address"]) for rank in mixed.ranks("m")] == before


def test_status_shows_predicted_beside_measured(mixed: Mixed) -> None:
    found = mixed.fleet.ask("m", max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=True, timeout_s=300)
    assert found[0] == 200
    wait_until("it was measured", lambda: mixed.pair()["num_tokens"] >= TOKENS and mixed.pair()["rank_bytes"])
    pair = mixed.pair()
    # The stage with the most layers has the fewest blocks: with 10 layers each there would be 51.
    assert pair["kv_blocks"] == pair["predicted_kv_blocks"] == 42
    assert 0.5 < pair["rank_bytes"] / pair["predicted_rank_bytes"] < 1.5
    assert pair["itl_s"] > 0
    assert pair["predicted_itl_s"] > 0
    assert "PREDICTED / MEASURED" in mixed.fleet.must("status")
    for rank, name in zip(mixed.ranks("m"), ("large", "small"), strict=True):
        assert 0 < rank["memory_bytes"] < MEMORY_MIB[name] * MIB


def test_two_stages_of_three_share_a_host(mixed: Mixed) -> None:
    mixed.up(THREE)
    large, small = (mixed.hosts[name].address for name in ("large", "small"))
    assert [rank["address"] for rank in mixed.ranks("three")] == [large, large, small]
    assert mixed.fleet.ask("three", timeout_s=240)[0] == 200
