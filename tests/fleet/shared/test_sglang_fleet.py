"""Real SGLang in a fleet beside vLLM and llama.cpp: answers in each API, and streams that outlive their replica."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engines.sglang_node import SGLANG_PYTHON
from fleet.fleet_lab import FleetLab, wait_until
from fleet.llama_cpp import why_no_llama_cpp
from fleet.load import Load, num_resumed
from fleet.paced_steps import STEP_S, paced_sglang, paced_vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang"),
]

VLLM_PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
MODEL = "  - {name: %s, source: 'builtin:tiny', engine: %s, replicas: %d, resources: {cpus: 0.5}}\n"
QUESTION = "What is your name?"
PACED_TOKENS = 80
PAUSE_S = 2.0
"""Between a client's requests while replicas start."""
SCHEMA = {"type": "object", "properties": {"oars": {"type": "integer"}}, "required": ["oars"]}
GRAMMAR = {"type": "json_schema", "json_schema": {"name": "boat", "schema": SCHEMA}}


LLAMA = (
    "  - {name: l, source: 'builtin:tiny', engine: llama.cpp, context: 1024, "
    "load: {users: 2}, resources: {cpus: 0.5}}\n"
)
NO_LLAMA = why_no_llama_cpp()


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    """A fleet of two replicas of SGLang and, where they are installed, one each of vLLM and llama.cpp."""
    models = MODEL % ("s", paced_sglang(), 2) + (MODEL % ("v", paced_vllm(), 1) if VLLM_PYTHON else "")
    models += "" if NO_LLAMA else LLAMA
    lab.must("up", lab.write(f"name: t\nmodels:\n{models}"), "--detach", timeout_s=800)
    return lab


def post(up: FleetLab, path: str, body: dict[str, Any]) -> dict[str, Any]:
    url = f"http://127.0.0.1:{up.local_port}{path}"
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=120) as answer:
        return dict(json.load(answer))


def chat(up: FleetLab, model: str, **more: object) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}
    return str(post(up, "/v1/chat/completions", body | more)["choices"][0]["message"]["content"])


def test_each_api_is_served(up: FleetLab) -> None:
    said = chat(up, "s")
    assert "Tiny" in said
    messages = {"model": "s", "max_tokens": 40, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    assert post(up, "/v1/messages", messages)["content"][0]["text"] == said
    assert up.ask("s", "The sea is", max_tokens=8)[1]["text"]


def test_steps_of_the_engine_are_paced(up: FleetLab) -> None:
    """Others rely on it: their answers are under way when a replica is killed."""
    began_s = time.monotonic()
    assert up.ask("s", max_tokens=20, ignore_eos=True)[0] == 200
    assert time.monotonic() - began_s > 19 * STEP_S


def test_a_grammar_is_kept(up: FleetLab) -> None:
    assert isinstance(json.loads(chat(up, "s", response_format=GRAMMAR))["oars"], int)


@pytest.mark.skipif(not VLLM_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON is not set: no vLLM")
@pytest.mark.skipif(bool(NO_LLAMA), reason=NO_LLAMA)
def test_three_engines_answer_behind_one_address(up: FleetLab) -> None:
    assert chat(up, "v") == chat(up, "s") == chat(up, "l")
    assert {replica["model"] for replica in up.replicas()} == {"s", "v", "l"}


@pytest.mark.skipif(not VLLM_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON is not set: no vLLM")
@pytest.mark.skipif(bool(NO_LLAMA), reason=NO_LLAMA)
def test_streams_of_the_other_engines_outlive_them_too(up: FleetLab) -> None:
    """Each has one replica: its streams wait for the next one."""
    url, long = f"http://127.0.0.1:{up.local_port}", {"ignore_eos": True}
    tokens = {"v": PACED_TOKENS, "l": 300}
    loads = [Load(url, name, num_clients=2, max_tokens=tokens[name], timeout_s=240.0, more=long) for name in tokens]
    with loads[0], loads[1]:
        wait_until("streams run", lambda: all(load.num_streams >= 2 for load in loads))
        victims = {name: up.replicas(name)[0]["ranks"][0]["pid"] for name in ("v", "l")}
        for pid in victims.values():
            os.kill(pid, 9)
        for load in loads:
            load.pause_s = PAUSE_S
        wait_until("both are back", lambda: all(_is_other(up, name, pid) for name, pid in victims.items()), 240)
    assert [load.wrong for load in loads] == [[], []]


def test_its_load_is_known_and_it_resumes_by_replay(up: FleetLab) -> None:
    assert [replica["resume"] for replica in up.replicas("s")] == ["replay", "replay"], up.replicas("s")
    assert {rank["started_by"] for replica in up.replicas("s") for rank in replica["ranks"]} == {"zygote"}


def test_replicas_tell_the_gateway_what_they_hold(up: FleetLab) -> None:
    wait_until("both tell it", lambda: [row["tells"] for row in _routes(up)] == [True, True], 60)
    for prompt in [f"{number} boats. " * 60 for number in range(8)] * 2:
        assert up.ask("s", prompt, max_tokens=2)[1]["text"]
    hits = [row["hits"] for row in _routes(up)]
    requests, expected, right, cached = (
        sum(hit[name] for hit in hits) for name in ("requests", "expected_tokens", "right_tokens", "cached_tokens")
    )
    assert requests >= 16
    assert right >= 0.9 * expected
    assert 0 < right <= cached


@pytest.mark.parametrize("model", ["s", pytest.param("l", marks=pytest.mark.skipif(bool(NO_LLAMA), reason=NO_LLAMA))])
def test_a_client_comes_back_to_several_choices_at_any_event(up: FleetLab, model: str) -> None:
    ask = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 1, "seed": 5, "n": 2, "max_tokens": 24}
    body = json.dumps({"model": model, "stream": True, **ask})
    token, events = stream(up, body)
    ids = [event.partition("\n")[0].removeprefix("id: ") for event in events if event.startswith("id: ")]
    assert len(set(ids)) == len(ids) > 8
    assert len(names(events)) == 1
    for at in {0, 1, 2, 3, len(ids) // 2, len(ids) - 1}:
        _, rest = stream(up, body, come_back(token, ids[at]))
        assert words([*events[: at + 1], *rest]) == words(events), (ids, ids[at], rest)
        assert names(rest) <= names(events)


def test_a_client_comes_back_to_a_tool_call_at_any_event(up: FleetLab) -> None:
    """A busy engine sends several tokens at once; the rest must follow from the tokens that the client has."""
    fields = {"name": {"type": "string", "maxLength": 24}, "knots": {"type": "integer", "maximum": 999}}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "row", "strict": True, "parameters": schema}}]
    ask = {"temperature": 0, "max_tokens": 64, "tools": tools, "tool_choice": "required"}
    bodies = [
        json.dumps({"model": "s", "stream": True, "messages": [{"role": "user", "content": words}], **ask})
        for words in ("Row the boat.", "Who rows, and how fast?", "Name the boat of the north.")
    ]
    with ThreadPoolExecutor(6) as pool:
        wholes = list(pool.map(lambda body: stream(up, body), bodies))
        points = []
        for body, (token, events) in zip(bodies, wholes, strict=True):
            ids = [event.partition("\n")[0].removeprefix("id: ") for event in events if event.startswith("id: ")]
            assert len({place.partition("+")[0] for place in ids}) > 3, ids  # they count tokens, not events
            points += [(body, token, events, ids, at) for at in range(0, len(ids), 3)]
        rests = pool.map(lambda point: stream(up, point[0], come_back(point[1], point[3][point[4]])), points)
        for (_, _, events, ids, at), (_, rest) in zip(points, rests, strict=True):
            assert arguments([*events[: at + 1], *rest]) == arguments(events), (ids, ids[at], rest)


def come_back(token: str, event_id: str) -> dict[str, str]:
    return {"x-longboat-resume": token, "last-event-id": event_id}


def arguments(events: list[str]) -> str:
    """Return the name and the arguments of the calls in a stream."""
    said = ""
    for event in events:
        for line in event.split("\n"):
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                for call in choice["delta"].get("tool_calls") or ():
                    said += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
    return said


def stream(up: FleetLab, body: str, more: dict[str, str] | None = None) -> tuple[str, list[str]]:
    """Return the token to come back with, and the events."""
    url = f"http://127.0.0.1:{up.local_port}/v1/chat/completions"
    headers = {"content-type": "application/json", **(more or {})}
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers), timeout=120) as answer:
        text = answer.read().decode()
        return str(answer.headers["x-longboat-resume"]), text.removesuffix("\n\n").split("\n\n")


def names(events: list[str]) -> set[str]:
    """Return the ids by which events say that they belong together."""
    lines = [line[6:] for event in events for line in event.split("\n") if line.startswith("data: {")]
    return {json.loads(line)["id"] for line in lines}


def words(events: list[str]) -> dict[int, str]:
    """Return what each choice says, and how it ends."""
    said = {0: "", 1: ""}
    for event in events:
        for line in event.split("\n"):
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                said[choice["index"]] += (choice["delta"].get("content") or "") + (choice["finish_reason"] or "")
    return said


def _routes(up: FleetLab) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{up.local_port}/admin/v1/routes", timeout=10) as answer:
        return [row for row in json.load(answer)["routes"] if row["model"] == "s"]


def test_streams_outlive_their_replica(up: FleetLab) -> None:
    url, long = f"http://127.0.0.1:{up.local_port}", {"ignore_eos": True}
    before = num_resumed(up.local_port)
    with Load(url, "s", num_clients=4, max_tokens=PACED_TOKENS, timeout_s=240.0, more=long) as clients:
        for _ in range(2):
            wait_until("two replicas serve", lambda: len(up.replicas("s")) == 2, 240)
            clients.pause_s = 0.0
            pids = {replica["replica"]: int(replica["ranks"][0]["pid"]) for replica in up.replicas("s")}
            victim = pids[clients.replica_at_work()]
            os.kill(victim, 9)
            wait_until("it is gone", lambda victim=victim: victim not in _pids(up), 60)
            clients.pause_s = PAUSE_S
    assert clients.wrong == []
    assert num_resumed(up.local_port) > before


def _is_other(up: FleetLab, name: str, gone: int) -> bool:
    return [replica["ranks"][0]["pid"] != gone for replica in up.replicas(name)] == [True]


def _pids(up: FleetLab) -> set[int]:
    return {rank["pid"] for replica in up.replicas("s") for rank in replica["ranks"]}
