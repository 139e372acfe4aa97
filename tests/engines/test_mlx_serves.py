"""The example package serves on a real MLX: installed by ``longboat engines install``, started as a fleet starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from mlx_package import install_package

pytestmark = pytest.mark.engine

INSTALL_S = 600
READY_S = 120
KEY = "a-key-of-the-fleet"
SERVE = """
import asyncio, dataclasses, json, os, signal, sys
from pathlib import Path
from longboat.builtin import ensure
from longboat.cluster.gang.rank_ports import RankPorts
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.environments.environment import find_environment
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.launch.process import start_rank
from longboat.engines.registry import adapter_for

async def main():
    home, key = Path(os.environ["LONGBOAT_HOME"]), sys.stdin.readline().strip()
    adapter, environment = adapter_for("mlx"), find_environment("mlx", version=None, path=None, home=home)
    ports = RankPorts()
    api = {"api": ports.reserve("127.0.0.1")}
    rank = RankPlan(node_rank=0, node_id="n", address="127.0.0.1", interface="lo", ports=api)
    shape = GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources())
    plan = GangPlan(fleet="f", model="tiny", source="builtin:tiny", model_path=str(ensure("builtin:tiny", home)),
                    replica="r", generation=1, shape=shape, ranks=(rank,), context_tokens=None, api_key=key)
    command = adapter.command(plan, 0, environment, str(build_overlay(home, environment)))
    ports.release()
    async with await start_rank(command, env_tags={}, log_path=home / "log", zygote=None) as process:
        print(json.dumps({"port": rank.ports["api"], "probe": adapter.probe(plan).path}), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A rank of MLX. It ends when the input of the process that started it ends."""

    client: httpx.Client

    def text(self, **more: object) -> str:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "What is Longboat?"}], "temperature": 0}
        answer = self.client.post("/v1/chat/completions", json={**body, "max_tokens": 40, **more}).json()
        return str(answer["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    site, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("home")
    install_package(site)
    env = {**os.environ, "PYTHONPATH": str(site), "LONGBOAT_HOME": str(home), "LONGBOAT_RUN": str(home / "run")}
    install = [sys.executable, "-c", "from longboat.cli.app import main; main()", "engines", "install", "mlx"]
    subprocess.run(install, env=env, check=True, timeout=INSTALL_S)
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(KEY, file=process.stdin, flush=True)
        told = json.loads(process.stdout.readline())
        transport = httpx.HTTPTransport(retries=10)  # retries connect with growing pauses, about a minute in all
        head = {"authorization": f"Bearer {KEY}"}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{told['port']}", headers=head, timeout=READY_S, transport=transport
        ) as client:
            yield Server(client)
        process.stdin.close()
        process.wait(timeout=60)


def test_tiny_model_answers_alike_each_time_and_under_any_name(server: Server) -> None:
    assert "Longboat" in server.text()
    assert server.text() == server.text(model="somebody/else")


def test_stream_has_the_same_text(server: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What is Longboat?"}], "temperature": 0}
    parts = []
    with server.client.stream(
        "POST", "/v1/chat/completions", json={**body, "max_tokens": 40, "stream": True}
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                parts += [c["delta"].get("content") or "" for c in json.loads(line[6:])["choices"]]
    assert "".join(parts) == server.text()
    assert len(parts) > 3


def test_stranger_gets_nothing_but_health(server: Server) -> None:
    head = {"authorization": "Bearer another"}
    assert server.client.get("/v1/models", headers=head).status_code == 401
    assert server.client.post("/v1/chat/completions", headers=head, json={}).status_code == 401
    assert server.client.get("/health", headers=head).status_code == 200


def test_key_is_in_no_command_line(server: Server) -> None:
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if KEY.encode() in line]
