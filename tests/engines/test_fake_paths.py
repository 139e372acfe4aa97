"""Tests of every other path of the fake engine: embeddings, ranks, responses, messages, audio, tokens, tools."""

from __future__ import annotations

import base64
import math
import re
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from engines.fake_process import PLAIN, FakeProcess, fake_engine

_ASK = [{"role": "user", "content": "who rows the boat?"}]
_TOOL = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeProcess]:
    with fake_engine() as started:
        yield started


def _post(engine: FakeProcess, path: str, **body: Any) -> Any:
    response = httpx.post(engine.url + path, json={"model": "m", **body}, timeout=20, verify=PLAIN)
    assert response.status_code == 200, response.text
    return response.json() if response.headers["content-type"] == "application/json" else response.text


def _events(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def _counter(engine: FakeProcess, name: str) -> float:
    found = re.search(rf"^{re.escape(name)}\S* (\S+)$", httpx.get(f"{engine.url}/metrics").text, re.MULTILINE)
    assert found
    return float(found.group(1))


# texts to numbers


def test_embeddings_depend_on_the_text_only_and_have_length_one(engine: FakeProcess) -> None:
    answer = _post(engine, "/v1/embeddings", input=["the boat", "row", "the boat"])
    one, two, again = (item["embedding"] for item in answer["data"])
    assert one == again != two
    assert math.isclose(sum(value * value for value in one), 1, abs_tol=1e-3)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 5


def test_embeddings_come_in_base64_and_other_lengths(engine: FakeProcess) -> None:
    plain = _post(engine, "/v1/embeddings", input="row", dimensions=10)["data"][0]["embedding"]
    packed = _post(engine, "/v1/embeddings", input="row", dimensions=10, encoding_format="base64")
    numbers = struct.unpack("<10f", base64.b64decode(packed["data"][0]["embedding"]))
    assert numbers == pytest.approx(plain)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_are_higher_for_texts_that_share_words(engine: FakeProcess, path: str) -> None:
    answer = _post(engine, path, queries="the boat", documents=["the boat", "the crew", "some ink"])
    same, near, far = (item["score"] for item in answer["data"])
    assert same == pytest.approx(1, abs=1e-3)
    assert same > near > far


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_sorts_by_score_and_cuts(engine: FakeProcess, path: str) -> None:
    answer = _post(engine, path, query="the boat", documents=["some ink", "the boat", "the crew"], top_n=2)
    assert [result["index"] for result in answer["results"]] == [1, 2]
    assert answer["results"][0]["document"]["text"] == "the boat"
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_classify_and_pooling_answer(engine: FakeProcess) -> None:
    chosen = _post(engine, "/classify", input=["row", "sail"])["data"]
    assert sum(chosen[0]["probs"]) == pytest.approx(1, abs=1e-3)
    assert chosen[0]["num_classes"] == len(chosen[0]["probs"]) == 3
    pooled = _post(engine, "/pooling", input="row")["data"][0]["data"]
    assert pooled == _post(engine, "/v1/embeddings", input="row")["data"][0]["embedding"]


def test_tokens_of_a_prompt_are_counted_whatever_path_brought_them(engine: FakeProcess) -> None:
    before = _counter(engine, "vllm:prompt_tokens_total")
    _post(engine, "/rerank", query="a b", documents=["c", "d e f"])
    _post(engine, "/v1/embeddings", input=[1, 2, 3])
    assert _counter(engine, "vllm:prompt_tokens_total") - before == 9
    assert _counter(engine, "vllm:num_requests_running") == 0


def test_tokens_become_their_text_again(engine: FakeProcess) -> None:
    there = _post(engine, "/tokenize", prompt="the boat row", return_token_strs=True)
    assert (there["count"], there["token_strs"]) == (3, ["the", "boat", "row"])
    assert _post(engine, "/detokenize", tokens=there["tokens"]) == {"prompt": "the boat row"}
    assert _post(engine, "/tokenize", messages=_ASK)["count"] == 5


# chats


def test_logprobs_belong_to_the_tokens_streamed_or_not(engine: FakeProcess) -> None:
    ask = {"messages": _ASK, "max_tokens": 5, "logprobs": True, "top_logprobs": 3}
    choice = _post(engine, "/v1/chat/completions", **ask)["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in content)
    events = _events(_post(engine, "/v1/chat/completions", stream=True, **ask))
    streamed = [entry for event in events if (told := event["choices"][0]["logprobs"]) for entry in told["content"]]
    assert streamed == content


def test_choices_end_once_each_when_streamed(engine: FakeProcess) -> None:
    events = _events(_post(engine, "/v1/chat/completions", messages=_ASK, n=3, max_tokens=9, stream=True))
    ends = [event["choices"][0]["index"] for event in events if event["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


def test_completion_logprobs_tell_where_each_token_begins(engine: FakeProcess) -> None:
    choice = _post(engine, "/v1/completions", prompt="row", max_tokens=4, logprobs=2)["choices"][0]
    told = choice["logprobs"]
    assert [choice["text"][at:][: len(token)] for at, token in zip(told["text_offset"], told["tokens"], strict=True)]
    assert "".join(told["tokens"]) == choice["text"]
    assert [len(top) for top in told["top_logprobs"]] == [2] * 4


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")],
)
def test_tool_is_called_as_its_schema_wants(engine: FakeProcess, choice: Any, reason: str) -> None:
    ask = {"messages": _ASK, "tools": [{"type": "function", "function": _TOOL}], "tool_choice": choice}
    whole = _post(engine, "/v1/chat/completions", **ask)["choices"][0]
    call = whole["message"]["tool_calls"][0]
    assert (call["function"]["name"], whole["finish_reason"]) == ("weather", reason)
    assert orjson.loads(call["function"]["arguments"]) == {"city": "Oslo", "days": 7}
    calls = [
        part["function"]
        for event in _events(_post(engine, "/v1/chat/completions", stream=True, **ask))
        for part in event["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert "".join(part.get("arguments", "") for part in calls) == call["function"]["arguments"]


def test_tool_left_open_is_called_when_it_is_named(engine: FakeProcess) -> None:
    tools = [{"type": "function", "function": _TOOL}]
    silent = _post(engine, "/v1/chat/completions", messages=_ASK, tools=tools)["choices"][0]
    assert silent["message"]["tool_calls"] == []
    ask = [{"role": "user", "content": "use weather please"}]
    assert _post(engine, "/v1/chat/completions", messages=ask, tools=tools)["choices"][0]["message"]["tool_calls"]


def test_answer_by_schema_fits_and_can_be_cut_and_carried_on(engine: FakeProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/name"}, "at": {"type": "array", "items": {"type": "number"}}},
        "required": ["name", "at"],
        "$defs": {"name": {"type": "string", "minLength": 3}},
    }
    ask = {
        "messages": _ASK,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "return_token_ids": True,
    }
    whole = _post(engine, "/v1/chat/completions", **ask)["choices"][0]
    value = orjson.loads(whole["message"]["content"])
    assert len(value["name"]) >= 3
    assert value["at"] == [7]
    assert whole["finish_reason"] == "stop"
    cut = _post(engine, "/v1/chat/completions", max_tokens=4, **ask)["choices"][0]
    assert cut["finish_reason"] == "length"
    assert whole["message"]["content"].startswith(cut["message"]["content"])
    resumed = _post(engine, "/v1/chat/completions", vllm_xargs={"prior": cut["token_ids"]}, **ask)["choices"][0]
    assert resumed["message"]["content"] == whole["message"]["content"]


# responses


def test_response_is_kept_and_goes_on(engine: FakeProcess) -> None:
    first = _post(engine, "/v1/responses", input="who rows?", max_output_tokens=6)
    assert (first["status"], first["usage"]["output_tokens"]) == ("incomplete", 6)
    assert httpx.get(f"{engine.url}/v1/responses/{first['id']}").json() == first
    second = _post(engine, "/v1/responses", input="and now?", previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert second["status"] == "completed"


def test_response_streams_the_same_text_in_typed_events(engine: FakeProcess) -> None:
    whole = _post(engine, "/v1/responses", input="who rows?")
    events = _events(_post(engine, "/v1/responses", input="who rows?", stream=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["usage"] == whole["usage"]


def test_response_that_is_not_stored_is_unknown(engine: FakeProcess) -> None:
    gone = _post(engine, "/v1/responses", input="x", store=False)["id"]
    for response in (
        httpx.get(f"{engine.url}/v1/responses/{gone}"),
        httpx.post(f"{engine.url}/v1/responses/{gone}/cancel"),
        httpx.post(f"{engine.url}/v1/responses", json={"input": "y", "previous_response_id": gone}),
    ):
        assert response.status_code == 404
        assert gone in response.json()["error"]["message"]


def test_response_in_the_background_ends_or_is_cancelled() -> None:
    with fake_engine("--itl-ms", "20") as engine:
        kept = _post(engine, "/v1/responses", input="x", background=True, max_output_tokens=5)
        end_s = time.monotonic() + 20
        while (now := httpx.get(f"{engine.url}/v1/responses/{kept['id']}").json())["status"] != "incomplete":
            assert time.monotonic() < end_s, now
            time.sleep(0.02)
        assert now["output"]
        assert httpx.post(f"{engine.url}/v1/responses/{kept['id']}/cancel").status_code == 400
        long = _post(engine, "/v1/responses", input="x", background=True, max_output_tokens=5000)
        assert httpx.post(f"{engine.url}/v1/responses/{long['id']}/cancel").json()["status"] == "cancelled"
        while _counter(engine, "vllm:num_requests_running"):
            assert time.monotonic() < end_s
            time.sleep(0.02)


def test_response_calls_a_tool(engine: FakeProcess) -> None:
    ask = {"input": "x", "tools": [{"type": "function", **_TOOL}], "tool_choice": "required"}
    item = _post(engine, "/v1/responses", **ask)["output"][0]
    assert (item["type"], item["name"], orjson.loads(item["arguments"])) == (
        "function_call",
        "weather",
        {"city": "Oslo", "days": 7},
    )
    kinds = [event["type"] for event in _events(_post(engine, "/v1/responses", stream=True, **ask))]
    assert "response.function_call_arguments.done" in kinds


# messages


def test_message_says_the_same_streamed_or_not(engine: FakeProcess) -> None:
    ask = {"messages": _ASK, "max_tokens": 7, "system": "be short"}
    whole = _post(engine, "/v1/messages", **ask)
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", 7)
    assert _post(engine, "/v1/messages/count_tokens", messages=_ASK, system="be short") == {
        "input_tokens": whole["usage"]["input_tokens"],
        "context_management": {"original_input_tokens": whole["usage"]["input_tokens"]},
    }
    events = _events(_post(engine, "/v1/messages", stream=True, **ask))
    assert [event["type"] for event in events if event["type"] != "content_block_delta"] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[-2]["usage"] == whole["usage"]


def test_message_stops_at_a_sequence_and_calls_tools(engine: FakeProcess) -> None:
    text = _post(engine, "/v1/messages", messages=_ASK, max_tokens=30)["content"][0]["text"]
    stop = text.split()[5]
    stopped = _post(engine, "/v1/messages", messages=_ASK, max_tokens=30, stop_sequences=[stop])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    tools = [{"name": "weather", "input_schema": _TOOL["parameters"]}]
    ask = {"messages": _ASK, "max_tokens": 50, "tools": tools, "tool_choice": {"type": "any"}}
    called = _post(engine, "/v1/messages", **ask)
    assert called["stop_reason"] == "tool_use"
    assert called["content"][0]["input"] == {"city": "Oslo", "days": 7}
    events = _events(_post(engine, "/v1/messages", stream=True, **ask))
    pieces = (event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta")
    assert orjson.loads("".join(pieces)) == {"city": "Oslo", "days": 7}


def test_message_errors_have_anthropics_shape(engine: FakeProcess) -> None:
    response = httpx.post(f"{engine.url}/v1/messages", json={"model": "m", "messages": _ASK})
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert "max_tokens" in response.json()["error"]["message"]


# sound


def _hear(engine: FakeProcess, sound: bytes, kind: str = "transcriptions", **fields: str) -> httpx.Response:
    files = {"file": ("a.wav", sound, "audio/wav")}
    return httpx.post(f"{engine.url}/v1/audio/{kind}", files=files, data={"model": "m", **fields}, timeout=20)


def test_sound_is_heard_the_same_each_time(engine: FakeProcess) -> None:
    sound = bytes(range(256)) * 300
    heard = _hear(engine, sound).json()
    assert heard == _hear(engine, sound).json() != _hear(engine, sound[::-1] + b"x").json()
    assert heard["usage"] == {"type": "duration", "seconds": 3}
    assert _hear(engine, sound, response_format="text").text == heard["text"] + "\n"
    verbose = _hear(engine, sound, response_format="verbose_json").json()
    assert (verbose["text"], verbose["duration"]) == (heard["text"], len(sound) / 32000)


def test_sound_is_translated_and_streamed(engine: FakeProcess) -> None:
    translated = _hear(engine, b"sound" * 999, "translations").json()
    assert set(translated) == {"text"}
    response = _hear(engine, b"sound" * 999, stream="true", stream_include_usage="true")
    events = _events(response.text)
    words = [event["choices"][0]["delta"]["content"] for event in events[:-1]]
    assert "".join(words) == _hear(engine, b"sound" * 999).json()["text"]
    assert events[-1]["usage"]["completion_tokens"] == len(words)


def test_sound_without_a_file_or_a_form_is_refused(engine: FakeProcess) -> None:
    without = httpx.post(f"{engine.url}/v1/audio/transcriptions", data={"model": "m"}, files={"x": b"1"})
    assert (without.status_code, without.json()["error"]["param"]) == (400, "file")
    assert httpx.post(f"{engine.url}/v1/audio/transcriptions", json={}).status_code == 400


# faults and refusals


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {}),
        ("/v1/embeddings", {"input": [[]], "dimensions": "x"}),
        ("/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}),
        ("/rerank", {"query": "a"}),
        ("/detokenize", {"tokens": "x"}),
        ("/v1/responses", {}),
        ("/v1/responses", {"input": "x", "tools": 4}),
        ("/v1/messages", {"messages": 3, "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [3]}),
    ],
)
def test_wrong_fields_are_refused(engine: FakeProcess, path: str, body: dict[str, Any]) -> None:
    assert httpx.post(engine.url + path, json={"model": "m", **body}).status_code == 400
    assert httpx.post(engine.url + path, json={"model": "other", **body}).status_code == 404


def test_faults_reach_every_path() -> None:
    with fake_engine() as engine:
        for path, body in (("/v1/messages", {"messages": _ASK, "max_tokens": 9}), ("/v1/responses", {"input": "x"})):
            fault = {"kind": "break", "after_tokens": 2}
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.post(engine.url + path, json={**body, "stream": True, "longboat_fault": fault})
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{engine.url}/v1/embeddings", json={"input": "x"}, headers={"longboat-fault": "die"})


def test_key_guards_numbered_paths() -> None:
    with fake_engine(key="s3cret") as guarded:
        assert httpx.post(f"{guarded.url}/v2/rerank", json={}).status_code == 401
        assert httpx.post(f"{guarded.url}/v1/responses", json={}).status_code == 401
        assert httpx.post(f"{guarded.url}/tokenize", json={"prompt": "x"}).status_code == 200
