"""A fleet of real llama.cpp servers on one host: two replicas of the built-in model behind one address."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.llama_cpp import why_no_llama_cpp
from fleet.load import Load, num_resumed

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(600)]

FLEET = """
name: t
models:
  - name: tiny
    source: builtin:tiny
    engine: {kind: llama.cpp, args: [--parallel, "32"]}
    replicas: 2
    context: 512
"""
KINDS = ("chat/completions", "completions", "messages", "responses")
NUM_CLIENTS = 50


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if reason := why_no_llama_cpp():
        pytest.skip(reason)
    lab.must("up", "--detach", lab.write(FLEET), timeout_s=300)
    return lab


def body_of(kind: str, **more: object) -> dict[str, Any]:
    said = "What is Longboat?"
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0, **more}
    if kind == "completions":
        return {**asked, "prompt": said, "max_tokens": 24}
    if kind == "responses":
        return {**asked, "input": said, "max_output_tokens": 24}
    return {**asked, "messages": [{"role": "user", "content": said}], "max_tokens": 24}


def lines_of(fleet: FleetLab, kind: str, **headers: str) -> Iterator[str]:
    body = json.dumps(body_of(kind, stream=True)).encode()
    url = f"http://127.0.0.1:{fleet.local_port}/v1/{kind}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        yield from (line.decode().strip() for line in answer)


@pytest.mark.parametrize("kind", KINDS)
def test_each_api_streams_to_its_end(up: FleetLab, kind: str) -> None:
    events = [line.removeprefix("data: ") for line in lines_of(up, kind) if line.startswith("data: ")]
    last = {"messages": '"message_stop"', "responses": '"response.completed"'}.get(kind, "[DONE]")
    assert last in events[-1]
    assert kind == "completions" or "Longboat" in "".join(events)
    assert not any("timings" in event for event in events[:-1])


def test_what_a_client_gets_is_the_model_s_answer(up: FleetLab) -> None:
    status, choice = up.ask("tiny", "What is Longboat?", 24)
    assert status == 200
    streamed = [json.loads(line[6:]) for line in lines_of(up, "completions") if line.startswith("data: {")]
    assert "".join(choice["text"] for event in streamed for choice in event["choices"]) == choice["text"]


def test_replicas_prove_that_a_response_can_be_repeated(up: FleetLab) -> None:
    wait_until("both are proved", lambda: [r["resume"] for r in up.replicas("tiny")] == ["replay"] * 2, 60)


def test_streams_of_a_killed_replica_go_on_in_the_other(up: FleetLab) -> None:
    url, more = f"http://127.0.0.1:{up.local_port}", {"ignore_eos": True}
    before = num_resumed(up.local_port)
    with Load(url, "tiny", num_clients=NUM_CLIENTS, max_tokens=200, timeout_s=120.0, more=more) as clients:
        known = {replica["replica"]: replica for replica in up.replicas("tiny")}
        victim = known[clients.replica_at_work()]
        os.kill(victim["ranks"][0]["pid"], signal.SIGKILL)
        wait_until("it is known to be gone", lambda: victim["replica"] not in replica_names(up), 60)
        wait_until("both serve again", lambda: len(up.replicas("tiny")) == 2, 120)
    assert clients.wrong == []
    assert num_resumed(up.local_port) > before


def replica_names(up: FleetLab) -> list[str]:
    return [replica["replica"] for replica in up.replicas("tiny")]


def test_a_client_that_leaves_frees_its_slot_whatever_header_it_sent(up: FleetLab) -> None:
    """With ``X-Conversation-Id``, llama.cpp would go on without the client."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{up.local_port}/v1/completions",
        json.dumps({**body_of("completions", stream=True, ignore_eos=True), "max_tokens": 400}).encode(),
        {"Content-Type": "application/json", "X-Conversation-Id": "c1"},
    )
    answers = [urllib.request.urlopen(request, timeout=60) for _ in range(8)]
    for answer in answers:
        answer.readline()
        answer.close()
    wait_until("no slot is taken", lambda: running(up) == 0, 60)


def running(up: FleetLab) -> int:
    return sum(int(gateway["in_flight"]) for gateway in up.status()["gateways"])
