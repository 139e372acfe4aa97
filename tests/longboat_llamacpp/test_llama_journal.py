"""The journal that the front end of llama.cpp weaves into streams."""

from __future__ import annotations

import json
import re

import pytest

from longboat_llamacpp.journal import DifferentResponseError, Journal


def event(text: str, made: int, index: int = 0, **more: object) -> bytes:
    choice = {"index": index, "finish_reason": None, "delta": {"content": text}}
    document = {"choices": [choice], "created": 1, "id": "a", "model": "m", "timings": {"predicted_n": made}, **more}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def ids_of(woven: bytes, choice: int = 0) -> list[int]:
    found = re.findall(rb"^: ids %d (\S+)$" % choice, woven, re.MULTILINE)
    return [int(number) for line in found for number in line.split(b",")]


HELLO = event("Hel", 1) + event("lo", 2) + event(" boat", 4)


def test_each_token_has_a_number_and_each_event_its_place() -> None:
    woven = Journal().feed(HELLO + b"data: [DONE]\n\n")
    assert len(ids_of(woven)) == 4
    assert re.findall(rb"^id: (\d+)$", woven, re.MULTILINE) == [b"1", b"2", b"4"]
    assert woven.endswith(b"data: [DONE]\n\n")


def test_tokens_without_an_event_of_their_own_are_counted() -> None:
    assert ids_of(Journal().feed(HELLO))[2] == 0


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_pieces_of_any_size_give_the_same(size: int) -> None:
    journal = Journal()
    pieces = [journal.feed(HELLO[at : at + size]) for at in range(0, len(HELLO), size)]
    assert b"".join(pieces) == Journal().feed(HELLO)


def test_a_repeated_response_passes_and_another_one_is_refused() -> None:
    ids = ids_of(Journal().feed(HELLO))
    assert ids_of(Journal([ids[:3]]).feed(HELLO)) == ids
    with pytest.raises(DifferentResponseError, match="after 1 tokens"):
        Journal([ids[:3]]).feed(event("Hel", 1) + event("p", 2))


def test_choices_are_counted_apart() -> None:
    woven = Journal().feed(event("a", 1) + event("b", 1, index=1) + event("c", 2))
    assert len(ids_of(woven)) == 2
    assert len(ids_of(woven, 1)) == 1
    assert woven.count(b"id: 2.1\n") == 1


def test_the_head_comes_first_and_timings_only_where_they_were_asked_for() -> None:
    first = Journal().feed(event("a", 1)).splitlines()[2]
    assert first.startswith(b'data: {"id":"a","created":1,"model":"m","choices":')
    assert b"timings" not in first
    assert b"timings" in Journal(keep_timings=True).feed(event("a", 1))


def test_the_role_alone_is_no_token() -> None:
    start = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}], "id": "a"}
    assert ids_of(Journal().feed(b"data: " + json.dumps(start).encode() + b"\n\n")) == []


def test_messages_and_responses_are_counted_by_their_deltas() -> None:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    start = b'event: message_start\ndata: {"type":"message_start"}\n\n'
    woven = Journal().feed(start + b"event: content_block_delta\ndata: " + json.dumps(delta).encode() + b"\n\n")
    assert len(ids_of(woven)) == 1
    assert b"event: content_block_delta\n" in woven
