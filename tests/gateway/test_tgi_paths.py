"""TGI's own paths through the gateway: /generate and /generate_stream, beside OpenAI's."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import DEADLINE_S
from gateway_lab import RawClient, endpoint, settled, started_gateway

DOUBLE = Path(__file__).parents[1] / "engines" / "tgi_double.py"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def tgi() -> Iterator[str]:
    """A double of TGI, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(DOUBLE), "--model-id", "/models/m", "--hostname", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    until_s = time.monotonic() + DEADLINE_S
    while not _listens(port):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.communicate()


async def client_of(tgi: str, make_upstream: Any) -> tuple[RawClient, Any]:
    other = await make_upstream(_no_path)
    gateway = await started_gateway(other, endpoints=[endpoint(tgi, model="t", api_key="")])
    return await RawClient.to(gateway), gateway


async def _no_path(seen: Any) -> None:
    body = b'{"detail":"Not Found"}'
    await seen.send(b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n" + body)


async def test_generate_and_its_stream_are_relayed(tgi: str, make_upstream: Any) -> None:
    client, gateway = await client_of(tgi, make_upstream)
    body = {"model": "t", "inputs": "What is your name?", "parameters": {"max_new_tokens": 3}}
    assert (await client.post(body, path="/generate")).json() == {"generated_text": "My name is"}
    stream = await client.post(body, path="/generate_stream")
    events = [json.loads(line[5:]) for line in stream.body.split(b"\n\n") if line]
    assert [event["token"]["text"] for event in events] == ["My", " name", " is"]
    assert events[-1]["generated_text"] == "My name is"
    chat = {"model": "t", "messages": [{"role": "user", "content": "hello"}]}
    assert (await client.post(chat)).status == 200
    assert settled(gateway).recent is not None
    gateway.stop(0.0)
    await gateway.stopped.wait()


@pytest.mark.parametrize(("inputs", "status"), [("overloaded", 429), ("", 422)])
async def test_errors_of_tgi_are_the_clients(tgi: str, make_upstream: Any, inputs: str, status: int) -> None:
    client, gateway = await client_of(tgi, make_upstream)
    response = await client.post({"model": "t", "inputs": inputs}, path="/generate")
    assert response.status == status
    assert set(response.json()) == {"error", "error_type"}
    gateway.stop(0.0)
    await gateway.stopped.wait()


async def test_error_in_a_stream_reaches_the_client(tgi: str, make_upstream: Any) -> None:
    client, gateway = await client_of(tgi, make_upstream)
    response = await client.post({"model": "t", "inputs": "broken"}, path="/generate_stream")
    assert b'"error_type":"incomplete_generation"' in response.body
    gateway.stop(0.0)
    await gateway.stopped.wait()


async def test_other_engines_get_no_fields_of_their_own_on_these_paths(tgi: str, make_upstream: Any) -> None:
    client, gateway = await client_of(tgi, make_upstream)
    for field in ("custom_logit_processor", "input_ids", "text", "rid", "cache_salt"):
        response = await client.post({"model": "tiny", "inputs": "x", field: "y"}, path="/generate")
        assert response.status == 400, field
    response = await client.post({"model": "tiny", "inputs": "x"}, path="/generate")
    assert (response.status, response.code) == (404, "path_not_offered")
    gateway.stop(0.0)
    await gateway.stopped.wait()
