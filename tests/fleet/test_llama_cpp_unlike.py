"""Layers of a llama.cpp model divided over unlike hosts, by memory and speed: decided, placed, and equal to one host's.

Real Ray, the real llama.cpp, hosts of the network lab.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, limit_memory
from fleet.llama_cpp import why_no_llama_cpp
from netlab.lab import Host, Lab, why_unavailable

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(900)]

PROCESSORS = {"quick": "Desktop-2ch-DDR5-5600", "slow": "Desktop-2ch-DDR3-1600"}
# Neither holds the whole model.
MEMORY_MIB = {"quick": 340, "slow": 700}
NUM_LAYERS = 12
PROMPTS = ("What is Longboat?", "Many rowers", "Count to twenty:", "こんにちは")
MODEL = """name: unlike
models:
  - name: m
    source: builtin:random-100m
    engine: {kind: llama.cpp, args: [--parallel, '2']}
    resources: {cpus: 1}
    load: {users: 2, prompt_tokens: 64, output_tokens: 64}
"""


@dataclass
class Unlike:
    """Two hosts that differ in processor and memory."""

    fleet: FleetLab
    hosts: dict[str, Host]

    def up(self, more: str) -> str:
        path = self.fleet.folder / "fleet.yaml"
        path.write_text(MODEL + more)
        return self.fleet.must("up", str(path), "--detach", timeout_s=400)

    def texts(self) -> list[str]:
        answers = [self.fleet.ask("m", prompt, 24, timeout_s=120) for prompt in PROMPTS]
        assert [status for status, _ in answers] == [200] * len(PROMPTS), answers
        return [choice["text"] for _, choice in answers]

    def ranks(self) -> list[dict[str, Any]]:
        """Of the only replica, in the order of their stages."""
        (replica,) = self.fleet.replicas("m")
        return sorted(replica["ranks"], key=lambda rank: int(rank["node_rank"]))

    def given(self, flag: str) -> str:
        """Return the value of a flag with which the head's engine was started."""
        head = self.ranks()[0]
        (host,) = (host for host in self.hosts.values() if host.address == head["address"])
        words = host.run(["cat", f"/proc/{head['pid']}/cmdline"]).stdout.split("\0")
        return str(words[words.index(flag) + 1])


@pytest.fixture(scope="module")
def unlike() -> Iterator[Unlike]:
    if reason := why_no_llama_cpp(over_nodes=True) or why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        hosts = dict(zip(PROCESSORS, lab.hosts, strict=True))
        common = ["--num-cpus", "2", "--token-file", str(lab.folder / "token")]
        for name, host in hosts.items():
            host.env["RAY_memory_monitor_refresh_ms"] = "0"
            way = ["--head"] if name == "quick" else ["--join", hosts["quick"].address]
            labels = ["--label", f"host={name}", "--label", f"longboat.processor={PROCESSORS[name]}"]
            host.run([*COMMAND, "node", "start", *way, *labels, *common], timeout=240)
        found = Unlike(fleet_at(lab, hosts["quick"]), hosts)
        yield found
        found.fleet.stop_watching()


def layers_in(printed: str) -> dict[str, int]:
    """Return host → its layers, in the order of the stages, as ``up`` prints them."""
    found = re.findall(r"(\d+) layers on longboat.processor=([\w-]+)", printed)
    names = {processor: name for name, processor in PROCESSORS.items()}
    return {names[processor]: int(count) for count, processor in found}


def test_layers_are_divided_by_memory_and_speed_and_answers_stay_equal(unlike: Unlike) -> None:
    """The quick host gets as many as it holds, though the slow one has twice its memory: they compute in turn."""
    limit_memory(unlike.hosts["quick"], 4096)
    unlike.up("    context: 512\n    placement: {labels: {host: quick}}\n")
    alone = unlike.texts()
    for name, mib in MEMORY_MIB.items():
        limit_memory(unlike.hosts[name], mib)
    printed = " ".join(unlike.up("    context: 512\n    split: auto\n").split())
    layers = layers_in(printed)
    assert sum(layers.values()) == NUM_LAYERS
    assert layers["quick"] > 2 * layers["slow"]
    assert [rank["address"] for rank in unlike.ranks()] == [unlike.hosts[name].address for name in layers]
    last = list(layers.values())[-1]
    assert unlike.given("--tensor-split") == str(last + 1), "llama.cpp counts the output as one more layer"
    assert unlike.texts() == alone
    before = [(rank["pid"], rank["address"]) for rank in unlike.ranks()]
    assert "nothing to change" in unlike.up("    context: 512\n    split: auto\n")
    assert [(rank["pid"], rank["address"]) for rank in unlike.ranks()] == before


def test_memory_decides_how_many_layers_the_quick_host_gets(unlike: Unlike) -> None:
    """Only the number of stages is left to the planner. The quick host computes the output too, as the last stage."""
    limit_memory(unlike.hosts["quick"], 250)
    limit_memory(unlike.hosts["slow"], 700)
    printed = " ".join(unlike.up("    context: 256\n    split: {pipeline: auto}\n").split())
    layers = layers_in(printed)
    assert sum(layers.values()) == NUM_LAYERS
    assert layers["slow"] > layers["quick"]
    assert [rank["address"] for rank in unlike.ranks()] == [unlike.hosts[name].address for name in layers]
    assert unlike.texts()
