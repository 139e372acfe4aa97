"""Tests of where a stream counts as whole: at the mark of its end, and not at a text that holds it."""

from __future__ import annotations

import json

import pytest
from gateway_lab import config, endpoint, table

from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.http.response_head import ResponseHead
from longboat.gateway.resume.resume_state import EngineFaultError, ResumeState

JOURNALED = [(b"content-type", b"text/event-stream"), (b"x-longboat-journal", b"1")]


def begun(kind: AnswerKind) -> ResumeState:
    state = GatewayState(config())
    state.offer_table("e", table(endpoint("http://127.0.0.1:1")))
    (upstream,) = state.table.endpoints("tiny") or ()
    resume_state = ResumeState(kind, 1, None)
    resume_state.begins(ResponseHead(200, JOURNALED), upstream)
    return resume_state


def chat(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def delta(text: str) -> bytes:
    event = {"type": "response.output_text.delta", "delta": text}
    return b"event: response.output_text.delta\ndata: " + json.dumps(event).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (AnswerKind.OPENAI_EVENTS, chat("print('data: [DONE]')")),
        (AnswerKind.RESPONSES_EVENTS, delta("print('event: response.completed')")),
    ],
)
def test_a_text_that_holds_the_mark_of_the_end_is_not_the_end(kind: AnswerKind, event: bytes) -> None:
    with pytest.raises(EngineFaultError, match="before the end"):
        begun(kind).feed(b": ids 0 5\nid: 1\n" + event, last=True)


def test_the_mark_ends_a_stream_wherever_it_stands_among_events() -> None:
    for events in (b"data: [DONE]\n\n", b": ids 0 5\nid: 1\n" + chat("a") + b"data: [DONE]\n\n"):
        begun(AnswerKind.OPENAI_EVENTS).feed(events, last=True)
