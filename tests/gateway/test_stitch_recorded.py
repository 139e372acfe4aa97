"""Streams and whole answers that vLLM 0.32 gave: gathered they are equal; cut and repeated under other names too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from message_streams import read_message
from response_streams import read_response
from stream_clients import read_openai, without_own_ids

from longboat.gateway.journal import Journal
from longboat.gateway.stitch import Stitcher, StitchError
from longboat.gateway.stitch_gather import gather
from longboat.gateway.usage import AnswerKind

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("recorded_streams.json").read_text("utf-8"))
KINDS = {"/v1/messages": AnswerKind.ANTHROPIC_EVENTS, "/v1/responses": AnswerKind.RESPONSES_EVENTS}
OWN_IDS = re.compile(rb"(resp_|msg_|rs_|fc_|call_|chatcmpl-tool-|chatcmpl-|cmpl-)([0-9a-f]{8,})")
TIMES = re.compile(rb'("created(?:_at)?": ?)\d+')


def kind_of(recorded: dict[str, Any]) -> AnswerKind:
    return KINDS.get(recorded["path"], AnswerKind.OPENAI_EVENTS)


def read(recorded: dict[str, Any], stream: bytes) -> dict[str, Any]:
    if recorded["path"] == "/v1/messages":
        return read_message(stream)
    if recorded["path"] == "/v1/responses":
        return read_response(stream)
    return without_own_ids(read_openai(stream))


def comparable(answer: Any) -> Any:
    """Without names and times, which are new in each answer, and with as many digits as both ways of computing have."""
    if isinstance(answer, dict):
        own = ("id", "call_id", "created", "created_at", "signature")
        return {key: comparable(value) for key, value in answer.items() if key not in own}
    if isinstance(answer, list):
        return [comparable(item) for item in answer]
    return round(answer, 3) if isinstance(answer, float) else answer


@pytest.mark.parametrize("name", RECORDED)
def test_gathered_stream_is_the_whole_answer(name: str) -> None:
    recorded = RECORDED[name]
    kind = kind_of(recorded)
    body = gather(kind, Journal(kind, 2).feed(recorded["stream"].encode()))
    answer = json.loads(body)
    assert comparable(answer) == comparable(recorded["whole"])
    assert list(answer) == list(recorded["whole"])


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_stream_cut_at_any_event_reads_as_unbroken(name: str) -> None:
    recorded = RECORDED[name]
    kind = kind_of(recorded)
    events = [event + b"\n\n" for event in recorded["stream"].encode().split(b"\n\n") if event]
    others = [TIMES.sub(rb"\g<1>5", OWN_IDS.sub(rb"\1other\2", event)) for event in events]
    expected = read(recorded, Journal(kind, 2).feed(b"".join(events)))
    for cut in range(1, len(events)):
        journal = Journal(kind, 2)
        client = b"".join(map(journal.feed, events[:cut]))
        stitcher = Stitcher(kind, journal)
        client += b"".join(map(stitcher.feed, others))
        assert read(recorded, client) == expected, cut


@pytest.mark.parametrize("name", RECORDED)
def test_half_a_stream_is_no_answer(name: str) -> None:
    recorded = RECORDED[name]
    kind = kind_of(recorded)
    events = recorded["stream"].encode().split(b"\n\n")[:-2]
    with pytest.raises(StitchError):
        gather(kind, Journal(kind, 2).feed(b"\n\n".join(events) + b"\n\n"))
