"""Answers are read out of streams, and what is wrong with a stream is found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chaos_suite.answer import differences, read_stream, read_whole, seed_of
from chaos_suite.sse import EventReader, ServerEvent

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def _events(*documents: dict[str, Any], done: bool = True) -> list[ServerEvent]:
    data = [json.dumps(document) for document in documents] + (["[DONE]"] if done else [])
    return [ServerEvent("", "", text) for text in data]


def _chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "created": 5, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


ROLE = _chunk({"role": "assistant", "content": ""})
GOOD = (ROLE, _chunk({"content": "a b"}), _chunk({"content": " c"}, "stop"))


def test_pieces_do_not_matter() -> None:
    other = (ROLE, _chunk({"content": "a"}), _chunk({"content": " b c"}), _chunk({"content": ""}, "stop"))
    facts, wrongs = read_stream(CHAT, _events(*GOOD))
    assert wrongs == []
    assert differences(facts, read_stream(CHAT, _events(*other))[0]) == []


@pytest.mark.parametrize(
    ("documents", "word"),
    [
        ((*GOOD, GOOD[1]), "after its end"),
        ((ROLE, ROLE, *GOOD[1:]), "opened twice"),
        ((*GOOD[:2], {**GOOD[2], "id": "c2"}), "id changes"),
        ((*GOOD, {"error": {"message": "broken"}}), "error in the stream"),
        ((*GOOD, {"choices": [], "usage": {}}, {"choices": [], "usage": {}}), ""),
    ],
)
def test_what_is_no_single_stream_is_found(documents: tuple[dict[str, Any], ...], word: str) -> None:
    wrongs = read_stream(CHAT, _events(*documents))[1]
    assert any(word in wrong for wrong in wrongs) if word else wrongs == []


def test_stream_without_its_end_is_found() -> None:
    assert read_stream(CHAT, _events(*GOOD, done=False))[1] == ["the stream does not end in [DONE]"]
    assert read_stream(CHAT, [*_events(*GOOD), *_events(*GOOD)])[1]


def test_usage_counts_once() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
    assert read_stream(CHAT, _events(*GOOD, usage))[0]["usage"]["total_tokens"] == 7
    assert "usage comes twice" in read_stream(CHAT, _events(*GOOD, usage, usage))[1]


def test_missing_and_doubled_text_differ() -> None:
    whole = read_stream(CHAT, _events(*GOOD))[0]
    for documents in ((ROLE, GOOD[2]), (*GOOD[:2], *GOOD[1:])):
        assert differences(read_stream(CHAT, _events(*documents))[0], whole)


def test_whole_body_says_what_the_stream_says() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    message = {"role": "assistant", "content": "a b c", "tool_calls": []}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    streamed = read_stream(CHAT, _events(*GOOD, {"choices": [], "usage": usage}))[0]
    assert read_whole(CHAT, json.dumps(body).encode()) == streamed


def test_message_block_out_of_turn_is_found() -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    ends = ({"type": "content_block_stop", "index": 0}, {"type": "message_stop"})
    good = ({"type": "message_start"}, start, delta, *ends)
    assert read_stream(MESSAGES, _events(*good, done=False)) == ({"0.kind": ["text", None], "0.said": "a"}, [])
    assert read_stream(MESSAGES, _events(*good[:3], *good[1:], done=False))[1]
    assert read_stream(MESSAGES, _events(*good, *good, done=False))[1]


def test_response_that_is_numbered_anew_is_found() -> None:
    item = {"id": "i", "content": [{"text": "a"}]}
    document = {"id": "r", "status": "completed", "output": [item], "usage": {}}
    events = [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "i", "delta": "a"},
        {"type": "response.completed", "response": document},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    assert read_stream(RESPONSES, _events(*numbered, done=False))[1] == []
    assert read_stream(RESPONSES, _events(*numbered[:2], numbered[1], *numbered[2:], done=False))[1]


def test_events_come_out_of_any_pieces() -> None:
    text = ": ids 0 1\nid: 1\nevent: x\ndata: é\n\n: waiting\n\ndata: [DONE]\n\n".encode()
    for size in (1, 3, len(text)):
        reader = EventReader()
        events = [event for at in range(0, len(text), size) for event in reader.feed(text[at : at + size])]
        assert events == [ServerEvent("x", "1", "é"), ServerEvent("", "1", "[DONE]")]
        assert reader.num_comments == 2


def test_seed_is_read_from_the_fingerprint() -> None:
    assert seed_of(_events(_chunk({}, system_fingerprint="fake-seed-42"))) == 42
    assert seed_of(_events(_chunk({}))) is None


@pytest.mark.parametrize(("logprob", "is_same"), [(-1.31223, True), (-1.3132, False)])
def test_last_digits_of_a_log_probability_do_not_matter(logprob: float, is_same: bool) -> None:
    first, second = (
        {"0.logprobs.content": [{"token": "2", "logprob": value, "top_logprobs": [{"token": "2", "logprob": value}]}]}
        for value in (-1.3122272491455078, logprob)
    )
    assert (differences(first, second) == []) is is_same
