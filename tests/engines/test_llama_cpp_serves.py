"""Real llama.cpp behind its front end: the server in the wheel, and the one that was built with RPC."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.fleet_lab import wait_until
from fleet.llama_cpp import why_no_llama_cpp
from free_ports import free_port
from longboat.builtin import ensure_as_gguf
from longboat.cluster.usage.proc_usage import process_tree
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import ResumeLevel
from longboat.engines.contract import EngineEnvironment
from longboat.engines.environments.environment import find_environment
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.llamacpp.adapter import LlamaCppAdapter
from longboat.engines.resume_proof import prove
from longboat.folders import home_folder
from longboat.gateway.http.message import ask

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

KEY = "secret-of-the-engine"
ADAPTER = LlamaCppAdapter()
SCHEMA = {"type": "object", "properties": {"oars": {"type": "integer"}}, "required": ["oars"]}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 7},
    "penalties": {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    "schema": {
        "temperature": 1.0,
        "seed": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "b", "schema": SCHEMA}},
    },
}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "What is Longboat?"}], "max_tokens": 24},
    "completions": {"prompt": "The crew of a longboat rows", "max_tokens": 24, "ignore_eos": True},
    "messages": {"messages": [{"role": "user", "content": "What is Longboat?"}], "max_tokens": 24},
    "responses": {"input": "What is Longboat?", "max_output_tokens": 24},
}


@dataclass
class Server:
    """One rank that serves."""

    url: str
    process: subprocess.Popen[bytes]

    def client(self, key: str = KEY) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def metric(self, name: str) -> int:
        with self.client("none") as client:
            samples = ADAPTER.load(client.get("/metrics").text)
        return int(getattr(samples, name))

    def stream(self, kind: str, prior: list[list[int]] | None = None, **more: Any) -> str:
        """Return the events of a stream with its journal; with ``prior``, of one that is repeated."""
        body = json.dumps({"model": "tiny", "stream": True, **BODIES[kind], **more}).encode()
        headers = {"content-type": "application/json", "x-longboat-journal": "1"}
        if prior is not None:
            carried = json.dumps({"mode": "replay", "prior": prior}).encode()
            headers["x-longboat-carry"], body = str(len(carried)), carried + body
        with self.client() as client:
            answer = client.post(f"/v1/{kind}", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-longboat-journal"] == "1"
        return answer.text


def ids_of(events: str) -> list[int]:
    told = [line.removeprefix(": ids 0 ") for line in events.splitlines() if line.startswith(": ids 0 ")]
    return [int(number) for line in told for number in line.split(",")]


@contextlib.contextmanager
def serving(environment: EngineEnvironment, folder: Path) -> Iterator[Server]:
    port = free_port()
    rank = RankPlan(node_rank=0, node_id="n", address="127.0.0.1", interface="lo", ports={"api": port})
    plan = GangPlan(
        fleet="t",
        model="tiny",
        source="builtin:tiny",
        model_path=str(ensure_as_gguf("builtin:tiny", folder)),
        replica="r",
        generation=1,
        shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources()),
        ranks=(rank,),
        context_tokens=512,
        api_key=KEY,
    )
    command = ADAPTER.command(plan, 0, environment, str(build_overlay(folder, environment)))
    env = {**os.environ, **{name: value for name, value in command.env.items() if value is not None}}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command.argv, env=env, stdout=log, stderr=log, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}", process)
    probe = ADAPTER.probe(plan)

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(httpx.HTTPError), server.client() as client:
            return client.post(probe.path, content=probe.body, headers=probe.headers).status_code == 200
        return False

    try:
        wait_until("the rank serves", is_ready, 60)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def installed() -> EngineEnvironment:
    return find_environment("llama.cpp", version=None, path=None, home=home_folder())


@pytest.fixture(scope="module", params=["wheel", "built"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if reason := why_no_llama_cpp(over_nodes=request.param == "built"):
        pytest.skip(reason)
    folder, environment = tmp_path_factory.mktemp("llama"), installed()
    if request.param == "wheel":
        environment = replace(environment, python=without_built_programs(environment, folder))
    with serving(environment, folder) as found:
        yield found


def without_built_programs(environment: EngineEnvironment, folder: Path) -> str:
    """Return an interpreter of the same environment, beside which nothing was built."""
    home = Path(environment.python).parent.parent
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "lib").symlink_to(home / "lib")
    shutil.copy(home / "pyvenv.cfg", folder / "env")
    (folder / "env" / "bin" / "python").symlink_to(Path(environment.python).resolve())
    return str(folder / "env" / "bin" / "python")


async def test_a_response_can_be_repeated_from_its_beginning(server: Server) -> None:
    proof = await prove(partial(ask, server.url, api_key=KEY), "tiny", timeout_s=60)
    assert proof.level is ResumeLevel.REPLAY, proof
    assert all(case.passed for case in proof.cases)


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("way", WAYS)
def test_a_repeated_stream_has_the_same_tokens(server: Server, kind: str, way: str) -> None:
    if way == "schema" and kind in ("messages", "responses"):
        pytest.skip("these two APIs name a schema otherwise")
    whole = ids_of(server.stream(kind, **WAYS[way]))
    assert len(whole) > 2
    for cut in (1, len(whole) // 2, len(whole) - 1):
        assert ids_of(server.stream(kind, [whole[:cut]], **WAYS[way])) == whole


def test_a_stream_that_turns_out_differently_ends_with_an_error(server: Server) -> None:
    events = server.stream("completions", [[1, 2, 3]], temperature=0)
    assert "differs from its beginning" in events
    assert "[DONE]" not in events


def test_only_the_engine_s_key_opens_it_and_only_its_api(server: Server) -> None:
    with server.client("another") as stranger, server.client() as gateway:
        assert stranger.get("/v1/models").status_code == 401
        assert stranger.get("/health").status_code == 200
        assert gateway.get("/v1/models").json()["data"][0]["id"] == "tiny"
        assert gateway.post("/slots/0?action=erase").status_code == 404
        assert gateway.get("/v1/stream?conv_id=c1").status_code == 404


def test_a_client_that_leaves_ends_its_request_whatever_header_it_sent(server: Server) -> None:
    body = {"model": "tiny", "stream": True, "prompt": "row", "max_tokens": 480, "ignore_eos": True}
    for _ in range(4):
        with server.client() as client:
            head = {"x-conversation-id": "c1"}
            with client.stream("POST", "/v1/completions", json=body, headers=head) as answer:
                next(answer.iter_lines())
    wait_until("no slot is taken", lambda: server.metric("num_running") == 0, 30)
    with server.client() as client:
        assert client.post("/v1/completions", json={**body, "stream": False, "max_tokens": 2}).status_code == 200
    assert server.metric("generation_tokens_total") > 0


def test_no_secret_is_in_a_command_line(server: Server) -> None:
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in process_tree(server.process.pid)]
    assert lines
    assert not [line for line in lines if KEY.encode() in line]


def test_the_rank_ends_when_its_server_does(tmp_path: Path) -> None:
    if reason := why_no_llama_cpp(over_nodes=True):
        pytest.skip(reason)
    with serving(installed(), tmp_path) as rank:
        children = Path(f"/proc/{rank.process.pid}/task/{rank.process.pid}/children").read_text().split()
        assert children
        os.kill(int(children[0]), signal.SIGKILL)
        assert rank.process.wait(timeout=30) == 1
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(rank.url.rpartition(":")[2])), 5):
            pass


def test_llama_cpp_that_is_stopped_does_not_end_its_answers_as_if_they_were_whole(tmp_path: Path) -> None:
    if reason := why_no_llama_cpp(over_nodes=True):
        pytest.skip(reason)
    asked = {"model": "tiny", "prompt": "row", "max_tokens": 480, "ignore_eos": True, "stream": True}
    with serving(installed(), tmp_path) as rank, rank.client() as client:
        got = b""
        with (
            contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
            client.stream("POST", "/v1/completions", json=asked) as answer,
        ):
            for piece in answer.iter_bytes():
                if not got:
                    rank.process.terminate()
                got += piece
    assert b"data: " in got
    assert b"[DONE]" not in got
    assert b'"usage"' not in got


def test_the_rank_ends_when_its_server_alone_is_asked_to_end_while_requests_wait(tmp_path: Path) -> None:
    """The server takes no more connections then, and waits for responses that never begin."""
    if reason := why_no_llama_cpp(over_nodes=True):
        pytest.skip(reason)
    body = json.dumps({"model": "tiny", "prompt": "row", "max_tokens": 480, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n"
    with serving(installed(), tmp_path) as rank, contextlib.ExitStack() as open_sockets:
        (child,) = Path(f"/proc/{rank.process.pid}/task/{rank.process.pid}/children").read_text().split()
        for _ in range(64):  # four run at once; some may have ended, whose connections stay open
            asking = socket.create_connection(("127.0.0.1", int(rank.url.rpartition(":")[2])), 5)
            open_sockets.enter_context(asking).sendall(f"{head}\r\n".encode() + body)
        wait_until("some run", lambda: rank.metric("num_running") > 0, 30)
        os.kill(int(child), signal.SIGTERM)

        def is_over() -> bool:
            with contextlib.suppress(httpx.HTTPError), rank.client("none") as other:
                other.get("/metrics")  # as gateways do, once a second
            return rank.process.poll() is not None

        wait_until("the rank has ended", is_over, 60)
