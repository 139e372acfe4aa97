"""Tests of the fake engine as a process: it answers like an engine, and fails on request."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest

from engines.fake_process import PLAIN, FakeProcess, fake_engine, spawn_fake, wait_until_serving
from free_ports import free_port

_CHAT = {"model": "m", "messages": [{"role": "user", "content": "who rows the boat?"}]}


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeProcess]:
    with fake_engine("--itl-ms", "1") as started:
        yield started


def _post(engine: FakeProcess, path: str = "/v1/chat/completions", **changes: Any) -> httpx.Response:
    body = {**_CHAT, **changes} if "chat" in path else {"model": "m", **changes}
    return httpx.post(engine.url + path, json=body, timeout=20, verify=PLAIN)


def _events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [orjson.loads(line) for line in lines[:-1]]


def _gauge(engine: FakeProcess, name: str) -> float:
    text = httpx.get(f"{engine.url}/metrics", timeout=5).text
    found = re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not in the metrics"
    return float(found.group(1))


def _eventually(check: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def test_models_and_health_answer(engine: FakeProcess) -> None:
    assert httpx.get(f"{engine.url}/v1/models").json()["data"][0]["id"] == "m"
    assert httpx.get(f"{engine.url}/health").status_code == 200
    assert httpx.get(f"{engine.url}/kv_event_sources").json() == {}
    assert httpx.get(f"{engine.url}/nothing").status_code == 404


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streamed_text_equals_whole_text(engine: FakeProcess, path: str) -> None:
    extra = {"prompt": "row row"} if path == "/v1/completions" else {}
    whole = _post(engine, path, max_tokens=30, **extra).json()["choices"][0]
    response = _post(engine, path, max_tokens=30, stream=True, **extra)
    choices = [event["choices"][0] for event in _events(response.text)]
    assert response.headers["content-type"].startswith("text/event-stream")
    if path == "/v1/completions":
        assert "".join(choice["text"] for choice in choices) == whole["text"]
    else:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in choices) == whole["message"]["content"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"] == "length"
    assert len(whole.get("text") or whole["message"]["content"]) > 60


def test_usage_comes_last_when_asked_for(engine: FakeProcess) -> None:
    events = _events(_post(engine, stream=True, max_tokens=5, stream_options={"include_usage": True}).text)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert all("usage" not in event for event in events[:-1])


def test_unlimited_answer_ends_by_itself(engine: FakeProcess) -> None:
    answer = _post(engine).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert 16 <= answer["usage"]["completion_tokens"] < 80


def test_answer_is_the_same_in_another_process(engine: FakeProcess) -> None:
    with fake_engine() as other:
        assert _post(engine).json()["choices"] == _post(other).json()["choices"]


def test_stop_string_ends_the_answer_before_it(engine: FakeProcess) -> None:
    text = _post(engine, max_tokens=30).json()["choices"][0]["message"]["content"]
    stop = text.split()[7]
    answer = _post(engine, max_tokens=30, stop=[stop, "never there"]).json()["choices"][0]
    assert answer["message"]["content"] == text[: text.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)
    events = _events(_post(engine, max_tokens=30, stop=stop, stream=True).text)
    streamed = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert streamed == answer["message"]["content"]


def test_several_choices_differ_and_the_first_is_the_single_one(engine: FakeProcess) -> None:
    single = _post(engine, max_tokens=8).json()["choices"][0]["message"]["content"]
    choices = _post(engine, max_tokens=8, n=3).json()["choices"]
    texts = [choice["message"]["content"] for choice in choices]
    assert texts[0] == single and len(set(texts)) == 3
    events = _events(_post(engine, max_tokens=8, n=3, stream=True).text)
    for index, text in enumerate(texts):
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["delta"]["content"] for choice in mine) == text


def test_token_ids_are_accepted_as_prompt(engine: FakeProcess) -> None:
    answers = _post(engine, "/v1/completions", prompt=[[1, 2], [3, 4]], max_tokens=2).json()["choices"]
    alone = _post(engine, "/v1/completions", prompt=[3, 4], max_tokens=2).json()["choices"][0]
    assert answers[1]["text"] == alone["text"] != answers[0]["text"]


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({"messages": []}, 400, "messages"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 10**6}, 400, "context length"),
        ({"seed": 10**24}, 400, "seed"),
        ({"model": "other"}, 404, "other"),
        ({"longboat_fault": {"kind": "explode"}}, 400, "explode"),
    ],
)
def test_bad_request_is_refused_with_its_reason(
    engine: FakeProcess, changes: dict[str, Any], status: int, word: str
) -> None:
    response = _post(engine, **changes)
    assert response.status_code == status
    assert word in response.json()["error"]["message"]


def test_body_that_is_no_json_is_refused(engine: FakeProcess) -> None:
    assert httpx.post(f"{engine.url}/v1/completions", content=b"{").status_code == 400


def test_connection_is_kept_for_the_next_request(engine: FakeProcess) -> None:
    used = set()
    with httpx.Client() as client:
        for _ in range(3):
            response = client.get(f"{engine.url}/health")
            used.add(response.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(used) == 1


def test_key_guards_the_api_only() -> None:
    with fake_engine(key="s3cret") as guarded:
        assert httpx.get(f"{guarded.url}/v1/models").status_code == 401
        assert httpx.get(f"{guarded.url}/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(f"{guarded.url}/v1/models", headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert httpx.get(f"{guarded.url}/health").status_code == 200


def test_requests_beyond_the_limit_wait_and_a_gone_client_makes_room() -> None:
    one = {"prompt": "x", "max_tokens": 1}
    with fake_engine("--itl-ms", "50", "--max-num-seqs", "1") as engine:
        long = {**_CHAT, "stream": True, "max_tokens": 900}
        with httpx.stream("POST", f"{engine.url}/v1/chat/completions", json=long):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{engine.url}/v1/completions", json=one, timeout=0.5)
            assert _gauge(engine, "vllm:num_requests_running") == 1
        _eventually(lambda: _gauge(engine, "vllm:num_requests_running") == 0, "the aborted answer still runs")
        assert _gauge(engine, "vllm:num_requests_waiting") == 0
        assert httpx.post(f"{engine.url}/v1/completions", json=one).status_code == 200


async def test_requests_wait_for_kv_blocks() -> None:
    with fake_engine("--itl-ms", "20", "--kv-blocks", "4", "--block-size", "32") as engine:
        async with httpx.AsyncClient(timeout=20) as client:
            body = {"prompt": "row", "max_tokens": 90}
            posts = [asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=body)) for _ in range(2)]
            await asyncio.sleep(0.5)
            waiting = await asyncio.to_thread(_gauge, engine, "vllm:num_requests_waiting")
            usage = await asyncio.to_thread(_gauge, engine, "vllm:kv_cache_usage_perc")
            answers = await asyncio.gather(*posts)
        assert (waiting, usage) == (1, 0.75)
        assert [answer.status_code for answer in answers] == [200, 200]


def test_die_ends_the_process_after_the_tokens_asked_for() -> None:
    with fake_engine() as engine:
        text = ""
        with pytest.raises(httpx.RemoteProtocolError):
            body = {**_CHAT, "stream": True, "longboat_fault": {"kind": "die", "after_tokens": 3}}
            with httpx.stream("POST", f"{engine.url}/v1/chat/completions", json=body) as response:
                for piece in response.iter_text():
                    text += piece
        assert text.count('"content":') == 4  # the opening and three tokens
        assert engine.process.wait(10) == -signal.SIGKILL


def test_break_closes_one_stream_and_the_engine_goes_on(engine: FakeProcess) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        headers = {"longboat-fault": '{"kind":"break","after_tokens":2}'}
        with httpx.stream(
            "POST", f"{engine.url}/v1/chat/completions", json={**_CHAT, "stream": True}, headers=headers
        ) as response:
            response.read()
    assert _post(engine).status_code == 200


def test_hang_stops_tokens_but_not_health_until_it_is_lifted() -> None:
    with fake_engine() as engine:
        assert httpx.post(f"{engine.url}/fault", json={"kind": "hang"}).status_code == 200
        time.sleep(0.1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{engine.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=0.5)
        assert httpx.get(f"{engine.url}/health").status_code == 200
        httpx.post(f"{engine.url}/fault", json={"kind": "none"})
        assert httpx.post(f"{engine.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_slow_makes_tokens_come_later() -> None:
    with fake_engine("--itl-ms", "10") as engine:
        httpx.post(f"{engine.url}/fault", json={"kind": "slow", "factor": 1000})
        time.sleep(0.1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{engine.url}/v1/completions", json={"prompt": "x", "max_tokens": 3}, timeout=1)


def test_die_by_admin_request_ends_the_process() -> None:
    with fake_engine() as engine:
        assert httpx.post(f"{engine.url}/fault", json={"kind": "die"}).status_code == 200
        assert engine.process.wait(10) == -signal.SIGKILL


def test_sigterm_ends_it_in_order() -> None:
    with fake_engine() as engine:
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(10) == 0


def test_taken_port_is_an_error(engine: FakeProcess) -> None:
    second = spawn_fake(port=int(engine.url.rpartition(":")[2]))
    assert second.process.wait(10) == 1
    assert "cannot serve" in second.stop()


def test_log_tells_the_phases_in_order() -> None:
    with fake_engine("--start-s", "0.1") as engine:
        engine.process.send_signal(signal.SIGTERM)
        log = engine.process.communicate(timeout=10)[0]
    assert re.findall(r"^phase=(\w+)", log, re.MULTILINE) == ["loading", "warming", "serving"]


def test_process_imports_only_what_starts_fast() -> None:
    code = "import longboat_fake.__main__, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"pydantic", "rich", "ray", "httpx", "yaml", "zmq", "msgpack", "torch", "vllm"}


def _gang(*flags: str) -> tuple[FakeProcess, FakeProcess]:
    gang = ("--nnodes", "2", "--master-port", str(free_port()), *flags)
    return spawn_fake(*gang), spawn_fake(*gang, "--node-rank", "1", "--headless")


def test_head_serves_only_when_all_ranks_have_joined() -> None:
    port = str(free_port())
    head = spawn_fake("--nnodes", "2", "--master-port", port)
    try:
        time.sleep(0.7)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{head.url}/health")
        other = spawn_fake("--nnodes", "2", "--master-port", port, "--node-rank", "1", "--headless")
        try:
            wait_until_serving(head)
            assert httpx.post(f"{head.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        finally:
            other.stop()
    finally:
        head.stop()


def test_lost_rank_hangs_generation_while_health_says_ok() -> None:
    head, other = _gang()
    try:
        wait_until_serving(head)
        other.stop()
        time.sleep(0.5)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{head.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=1)
        assert httpx.get(f"{head.url}/health").status_code == 200
    finally:
        head.stop()
        other.stop()


def test_rank_stays_when_the_head_is_gone() -> None:
    head, other = _gang()
    try:
        wait_until_serving(head)
        head.stop()
        time.sleep(0.5)
        assert other.process.poll() is None
    finally:
        head.stop()
        other.stop()
