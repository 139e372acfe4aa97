"""Real llama.cpp split over two hosts without a fleet: what the kernel tells when its servers lose their link."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from engines.test_llama_cpp_serves import ADAPTER, KEY, installed
from fleet.fleet_lab import wait_until
from fleet.llama_cpp import why_no_llama_cpp
from longboat.builtin import ensure_as_gguf
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.launch.overlay import build_overlay
from netlab.lab import Lab
from netlab.plugin import MakeLab

pytestmark = [pytest.mark.engine, pytest.mark.net, pytest.mark.timeout(300)]

API_PORT, RPC_PORT = 7100, 7200
LIMIT_S = 2.0
RANK = """
import pathlib, subprocess, sys, time
from longboat.cluster.usage.rank_links import RankLinks

peer, limit_s, told, *words = sys.argv[1:]
rank = subprocess.Popen(words)
links = RankLinks(rank.pid, [peer])
while (state := links.read()).unacked_s <= float(limit_s):
    time.sleep(0.1)
pathlib.Path(told).write_text(state.peer)
rank.wait()
"""


def plan_over(lab: Lab, folder: Path) -> GangPlan:
    ports = ({"api": API_PORT}, {"rpc": RPC_PORT})
    ranks = tuple(
        RankPlan(node_rank=number, node_id=host.name, address=host.address, interface="eth0", ports=ports[number])
        for number, host in enumerate(lab.hosts)
    )
    return GangPlan(
        fleet="t",
        model="tiny",
        source="builtin:tiny",
        model_path=str(ensure_as_gguf("builtin:tiny", folder)),
        replica="r",
        generation=1,
        shape=GangShape(tensor=1, pipeline=2, num_nodes=2, resources=RankResources(), layers=(1, 3)),
        ranks=ranks,
        context_tokens=512,
        api_key=KEY,
    )


@dataclass
class Client:
    """Asks for one long stream after the other, until a gang is gone."""

    url: str
    num_lines: int = 0

    def run(self) -> None:
        body = {"model": "tiny", "stream": True, "prompt": "row", "max_tokens": 400, "ignore_eos": True}
        headers = {"authorization": f"Bearer {KEY}"}
        with contextlib.suppress(httpx.HTTPError), httpx.Client(headers=headers, timeout=240, trust_env=False) as http:
            while True:
                with http.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                    for _ in answer.iter_lines():
                        self.num_lines += 1


@pytest.fixture
def client(netlab: MakeLab, tmp_path: Path) -> Iterator[tuple[Lab, Client, list[Path]]]:
    """A client whose streams come from two hosts, and the files that ranks write when a link is lost."""
    if reason := why_no_llama_cpp(over_nodes=True):
        pytest.skip(reason)
    lab, environment = netlab(2), installed()
    plan, overlay = plan_over(lab, tmp_path), str(build_overlay(tmp_path, environment))
    told = [tmp_path / f"lost{number}" for number in range(2)]
    with (tmp_path / "log").open("wb") as log:
        for number, host in enumerate(lab.hosts):
            command = ADAPTER.command(plan, number, environment, overlay)
            env = {name: value for name, value in command.env.items() if value is not None}
            words = ("env", *(f"{name}={value}" for name, value in env.items()), *command.argv)
            peer = lab.hosts[1 - number].address
            host.popen([sys.executable, "-c", RANK, peer, str(LIMIT_S), str(told[number]), *words], output=log.fileno())
    found = Client(f"http://127.0.0.1:{lab.forward(lab.hosts[0], API_PORT, lab.hosts[0].address)}")
    probe = ADAPTER.probe(plan)

    def is_ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            headers = {**probe.headers, "authorization": f"Bearer {KEY}"}
            return httpx.post(found.url + probe.path, content=probe.body, headers=headers).status_code == 200
        return False

    wait_until(f"the gang serves; its log is {os.fspath(tmp_path / 'log')}", is_ready, 120)
    threading.Thread(target=found.run, daemon=True).start()
    yield lab, found, told


def test_a_lost_link_of_a_gang_that_only_waits_is_seen(client: tuple[Lab, Client, list[Path]]) -> None:
    """Either end may have sent what was lost; the other end sees nothing."""
    lab, streams, told = client
    wait_until("streams run", lambda: streams.num_lines > 100)
    assert not any(path.exists() for path in told)
    lab.lose(RPC_PORT)
    took_s = wait_until("an end knows that the link is lost", lambda: any(path.exists() for path in told), 60)
    before = streams.num_lines
    time.sleep(2.0)
    assert streams.num_lines == before, "the link is not lost"
    ends = [number for number, path in enumerate(told) if path.exists()]
    print(f"known after {took_s:.1f} s at rank {ends}")
