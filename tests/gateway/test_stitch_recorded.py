"""Streams that vLLM 0.32 gave: cut and repeated under other names they read as unbroken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from message_streams import read_message
from response_streams import read_response
from stream_clients import read_openai, without_own_ids

from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.journal import Journal
from longboat.gateway.resume.remainder import Continuation

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
        continuation = Continuation(kind, journal)
        client += b"".join(map(continuation.feed, others))
        assert read(recorded, client) == expected, cut
