"""Tests that token ids are woven into a stream of events, however it is cut."""

from __future__ import annotations

import pytest

from longboat_vllm.resume.carry import CarriedRequest
from longboat_vllm.resume.journal_lines import JournalLines


def chat(choice: int, text: str) -> bytes:
    return b'data: {"choices":[{"index":%d,"delta":{"content":"%s"}}]}\n\n' % (choice, text.encode())


def delta(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{%s}}]}\n\n' % text.encode()


ROLE = delta('"role":"assistant","content":""')


def test_a_text_that_holds_the_mark_of_the_end_has_ids() -> None:
    request = CarriedRequest(num_choices=1)
    lines = JournalLines(request)
    request.note(0, [1, 2])
    assert lines.feed(chat(0, "data: [DONE]")) == b": ids 0 1,2\nid: 2\n" + chat(0, "data: [DONE]")
    assert lines.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


def test_ids_of_each_choice_come_with_its_own_event() -> None:
    request = CarriedRequest(num_choices=2)
    lines = JournalLines(request)
    request.note(0, [1])
    request.note(1, [2, 3])
    assert lines.feed(chat(0, "a")) == b": ids 0 1\nid: 1.0\n" + chat(0, "a")
    assert lines.feed(chat(1, "b")) == b": ids 1 2,3\nid: 1.2\n" + chat(1, "b")


@pytest.mark.parametrize("role", [ROLE, delta('"reasoning_content":null,"role":"assistant","content":""')])
def test_event_in_which_nothing_was_generated_leaves_the_ids_for_the_next(role: bytes) -> None:
    request = CarriedRequest(num_choices=1)
    lines = JournalLines(request)
    request.note(0, [1])
    assert lines.feed(role) == b"id: 0\n" + role
    assert lines.feed(chat(0, "a")).startswith(b": ids 0 1\nid: 1\n")


@pytest.mark.parametrize(
    "words",
    [
        '"role":null,"content":null,"reasoning_content":null,"tool_calls":[{"index":0,"function":{"arguments":"{"}}]',
        '"role":"assistant","tool_calls":[{"index":0,"function":{"name":"row"}}]',
        '"role":"assistant","content":"a"',
    ],
)
def test_event_with_a_role_and_words_tells_its_ids(words: str) -> None:
    request = CarriedRequest(num_choices=1)
    request.note(0, [1])
    assert JournalLines(request).feed(delta(words)) == b": ids 0 1\nid: 1\n" + delta(words)


def test_event_without_a_choice_tells_all_ids_that_wait() -> None:
    request = CarriedRequest(num_choices=1)
    request.note(0, [1, 2])
    usage = b'data: {"choices":[],"usage":{}}\n\n'
    assert JournalLines(request).feed(usage) == b": ids 0 1,2\nid: 2\n" + usage


def test_named_events_have_their_lines_in_front_of_the_name() -> None:
    request = CarriedRequest(num_choices=1)
    lines = JournalLines(request)
    request.note(0, [7])
    start = b'event: message_start\ndata: {"type":"message_start"}\n\n'
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
    assert lines.feed(start + delta) == b"id: 0\n" + start + b": ids 0 7\nid: 1\n" + delta


def test_event_that_comes_in_pieces_leaves_whole() -> None:
    request = CarriedRequest(num_choices=1)
    lines = JournalLines(request)
    request.note(0, [7])
    event = chat(0, "long")
    assert lines.feed(event[:9]) == b""
    assert not lines.between_events
    assert lines.feed(event[9:] + event[:5]) == b": ids 0 7\nid: 1\n" + event
    assert lines.feed(event[5:], is_last=True) == b"id: 1\n" + event


def test_end_and_comments_of_the_engine_have_no_position() -> None:
    lines = JournalLines(CarriedRequest(num_choices=1))
    assert lines.feed(b": keep-alive\n\ndata: [DONE]\n\n") == b": keep-alive\n\ndata: [DONE]\n\n"
