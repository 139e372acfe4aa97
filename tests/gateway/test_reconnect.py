"""The rest of a stream for a client that comes back: tokens, ids, and what is left out."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.gateway.resume.event_ids import Point
from longboat.gateway.resume.numbering import Numbering
from longboat.gateway.resume.reconnect import ClientRemainder, CrossedError, Identity, ItemIds, ResumeToken, identity_of

TOKEN = ResumeToken("tiny", "abc", 7, "f00d", "chatcmpl-1", "99", 1000)
DONE = b"data: [DONE]\n\n"


def event(position: str, text: str, name: str = "chatcmpl-1", created: int = 99) -> bytes:
    return f'id: {position}\ndata: {{"id":"{name}","created":{created},"text":"{text}"}}\n\n'.encode()


def chunk(position: str, choice: int | None, text: str, name: str = "chatcmpl-1") -> bytes:
    """An event of one of several choices; None: of all."""
    choices = "" if choice is None else f'{{"index":{choice}}}'
    return f'id: {position}\ndata: {{"id":"{name}","created":99,"choices":[{choices}],"text":"{text}"}}\n\n'.encode()


def stream(name: str = "chatcmpl-1", created: int = 99) -> list[bytes]:
    """One event a token, with a first event without any and two without any at the end."""
    positions = ["0", "1", "2", "3", "4", "4", "4"]
    return [event(at, f"e{i}", name, created) for i, at in enumerate(positions)] + [DONE]


def test_token_comes_back_as_it_was() -> None:
    assert ResumeToken.decode(TOKEN.encode("salt"), "salt", 1001.0) == TOKEN


@pytest.mark.parametrize("at", range(0, 80, 7))
def test_token_that_was_changed_or_is_anothers_or_old_is_refused(at: int) -> None:
    text = bytearray(TOKEN.encode("salt"))
    text[at % len(text)] ^= 1
    assert ResumeToken.decode(bytes(text), "salt", 1001.0) is None
    assert ResumeToken.decode(TOKEN.encode("salt"), "pepper", 1001.0) is None
    assert ResumeToken.decode(TOKEN.encode("salt"), "salt", 99_999.0) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_no_token_and_no_point_that_fails(data: bytes) -> None:
    assert ResumeToken.decode(data, "salt", 1.0) is None
    point = Point.read(data)
    assert point is None or Point.read(point.encode()) == point


@pytest.mark.parametrize("name", ["chatcmpl-b0a1", "cmpl-7-0", "resp_1f", "msg_1f", "1503a92996484d52ae0eccb2870506b3"])
def test_rest_of_each_engine_s_stream_has_the_identity_of_its_beginning(name: str) -> None:
    had, other = event("1", "x", name), f"{name[:-1]}9"
    rest = ClientRemainder(Point(((1, 0),)), identity_of(had))
    assert rest.feed(event("1", "x", other, 105)) == b""
    assert rest.feed(event("2", "y", other, 105)) == event("2", "y", name)


def test_events_of_one_count_get_ids_that_differ() -> None:
    numbering = Numbering()
    out = b"".join(numbering.feed(e, grows=False) for e in stream())
    ids = [line[4:] for line in out.split(b"\n") if line.startswith(b"id: ")]
    assert ids == [b"0", b"1", b"2", b"3", b"4", b"4+1", b"4+2"]


def test_numbering_of_a_whole_block_and_of_single_events_is_the_same() -> None:
    one, other = Numbering(), Numbering()
    single = b"".join(one.feed(e, grows=b"id: 4" not in e and b"id: 0" not in e and b"id" in e) for e in stream())
    assert other.feed(b"".join(stream()), grows=False) == single


def test_events_that_passed_together_are_numbered_by_their_last() -> None:
    numbering = Numbering()
    numbering.passed(event("3", "x") + event("4", "y"))
    assert numbering.feed(event("4", "end"), grows=False).startswith(b"id: 4+1\n")


def numbered_by_itself(place: int, sequence: int) -> bytes:
    return b'id: %d\nevent: response.output_text.delta\ndata: {"sequence_number":%d,"delta":"x"}\n\n' % (
        place,
        sequence,
    )


def test_rest_goes_on_with_the_numbers_that_events_tell_by_themselves() -> None:
    """The first engine told tokens 3 and 4 together, the second one each by itself."""
    first, again = Numbering(sequenced=True), Numbering(sequenced=True)
    had = [first.feed(numbered_by_itself(place, number), grows=True) for number, place in enumerate((1, 2, 4))]
    last = Point.read(had[-1].split(b"\n")[0][4:])
    assert last == Point(((4, 0),), 2)
    rest = ClientRemainder(last, Identity())
    news = b"".join(rest.feed(again.feed(numbered_by_itself(n + 1, n), grows=True)) for n in range(6))
    assert news == b"id: 5@3\n%bid: 6@4\n%b" % tuple(
        numbered_by_itself(0, number).partition(b"\n")[2] for number in (3, 4)
    )


def told(ends: set[int]) -> list[bytes]:
    """An answer of twelve tokens as one engine tells it: these are the last of an event. Others bring no token."""
    numbering, places = Numbering(sequenced=True), [0, *sorted(ends | {12}), 12, 12]
    grows = [place > before for place, before in zip(places, [0, *places], strict=False)]
    return [
        numbering.feed(numbered_by_itself(place, number), grows=more)
        for number, (place, more) in enumerate(zip(places, grows, strict=True))
    ]


ENDS = st.sets(st.integers(1, 12))


@given(ENDS, st.lists(st.tuples(ENDS, st.integers(1, 5)), max_size=4), st.integers(1, 5))
def test_client_that_comes_back_often_has_all_numbers_once(
    first: set[int], others: list[tuple[set[int], int]], cut: int
) -> None:
    has, made_in_full = told(first)[:cut], (set(range(1, 13)), 99)
    for ends, cut_again in [*others, made_in_full]:
        point = Point.read(has[-1].split(b"\n")[0][4:])
        assert point is not None
        rest = ClientRemainder(point, Identity())
        try:
            news = [out for event in told(ends) if (out := rest.feed(event))]
        except CrossedError:
            continue  # an engine is asked otherwise then
        has += news[:cut_again]
    numbers = re.findall(rb'^id: ([0-9+]+)@([0-9]+)\nevent: .*\ndata: {"sequence_number":([0-9]+)', b"".join(has), re.M)
    assert [(int(at), int(number)) for _, at, number in numbers] == [(n, n) for n in range(len(has))]
    assert [place for place, _, _ in numbers[-3:]] == [b"12", b"12+1", b"12+2"]


@pytest.mark.parametrize("seen", range(1, 8))
@pytest.mark.parametrize("in_one_block", [True, False])
def test_rest_is_what_the_client_has_not_seen(seen: int, in_one_block: bool) -> None:
    numbered = [Numbering().feed(e, grows=False) for e in stream()]
    numbering = Numbering()
    numbered = [numbering.feed(e, grows=False) for e in stream()]
    last = numbered[seen - 1].split(b"\n")[0][4:]
    point = Point.read(last)
    assert point is not None
    rest, numbering = ClientRemainder(point, identity_of(numbered[0])), Numbering()
    again = stream("chatcmpl-2", 105)
    blocks = [b"".join(again)] if in_one_block else again
    out = b"".join(rest.feed(numbering.feed(block, grows=False)) for block in blocks)
    assert out == b"".join(numbered[seen:])


def test_choices_are_left_out_each_up_to_its_own_count() -> None:
    rest = ClientRemainder(Point(((2, 0), (1, 0))), Identity())
    events = [chunk("0.1", 1, "b1"), chunk("0.2", 1, "b2"), chunk("1.2", 0, "a1"), chunk("2.2", 0, "a2")]
    events.append(chunk("3.2", 0, "a3"))
    out = b"".join(rest.feed(e) for e in events)
    assert [text for text in (b"a1", b"a2", b"a3", b"b1", b"b2") if text in out] == [b"a3", b"b2"]


@st.composite
def answers(draw: st.DrawFn) -> list[list[tuple[int, str]]]:
    """Of each choice its events: tokens that each brings, and its text. The first brings none, and some others."""
    return [
        [(0 if at == 0 else draw(st.sampled_from([0, 1, 1, 1, 2])), f"<{choice}:{at}>") for at in range(length)]
        for choice, length in enumerate(draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    ]


def made(answer: list[list[tuple[int, str]]], order: random.Random, number: int) -> list[bytes]:
    """The answer as one engine tells it: choices grow side by side, in any order. Some engines count only the choices
    that have begun, up to the last of them."""
    numbering, left = Numbering(len(answer)), [list(choice) for choice in answer]
    counts, out, begun = [0] * len(answer), [], order.choice([0, len(answer) - 1])
    while any(left):
        choice = order.choice([at for at, events in enumerate(left) if events])
        tokens, text = left[choice].pop(0)
        counts[choice] += tokens
        begun = max(begun, choice)
        raw = chunk(".".join(map(str, counts[: begun + 1])), choice, text, f"chatcmpl-{number}")
        out.append(numbering.feed(raw, grows=tokens > 0))
    out.append(numbering.feed(chunk(".".join(map(str, counts)), None, "usage", f"chatcmpl-{number}"), grows=False))
    return [*out, DONE]


@settings(deadline=None)
@given(answers(), st.randoms(use_true_random=False), st.lists(st.integers(0, 20), max_size=4))
def test_client_that_comes_back_often_has_each_event_of_each_choice_once(
    answer: list[list[tuple[int, str]]], order: random.Random, cuts: list[int]
) -> None:
    has = made(answer, order, 0)[: cuts[0] if cuts else None]
    for number, cut in enumerate([*cuts[1:], None], 1):
        if has[-1:] == [DONE]:
            break
        ids = [line[4:] for event in has for line in event.split(b"\n") if line.startswith(b"id: ")]
        point = Point.read(ids[-1]) if ids else Point(())
        assert point is not None
        rest = ClientRemainder(point, identity_of(b"".join(has)))
        news = b"".join(map(rest.feed, made(answer, order, number)))
        has += [event + b"\n\n" for event in news.split(b"\n\n")[:-1]][:cut]
    got = b"".join(has).decode()
    for choice in answer:
        assert [text for text in re.findall("<[0-9]:[0-9]+>", got) if text in [t for _, t in choice]] == [
            text for _, text in choice
        ]
    assert (got.count("usage"), got.count("[DONE]"), len(set(re.findall("chatcmpl-[0-9]+", got)))) == (1, 1, 1)


def test_nothing_is_new_before_every_choice_has_come_to_the_point() -> None:
    rest, other = (ClientRemainder(Point(((1, 0), (2, 0))), Identity()) for _ in range(2))
    early = [chunk("1.0", 0, "a1"), chunk("2.0", 0, "a2"), chunk("2.1", 1, "b1")]
    assert b"".join(map(rest.feed, early)) == b""
    with pytest.raises(CrossedError):
        rest.feed(chunk("2.3", 1, "b23"))
    out = b"".join(map(other.feed, [*early, chunk("2.2", 1, "b2"), chunk("2.3", 1, "b3")]))
    assert (b"a2" in out, b"b3" in out, b"a1" in out, b"b2" in out) == (True, True, False, False)
    assert out.startswith(b"id: 2.2\n")


@pytest.mark.parametrize(("told", "is_news"), [((5,), True), ((4,), False), ((), False)])
def test_event_across_the_point_is_news_where_the_engine_told_the_tokens_before_by_themselves(
    told: tuple[int, ...], is_news: bool
) -> None:
    """It made no event of tokens 4 and 5: their words were held back, for the client too."""
    rest = ClientRemainder(Point(((5, 0),)), Identity(), told)
    assert rest.feed(event("3", "x")) == b""
    if is_news:
        assert rest.feed(event("7", "y")) == event("7", "y")
        return
    with pytest.raises(CrossedError):
        rest.feed(event("7", "y"))


def test_event_across_the_point_is_told_with_what_would_make_it_whole() -> None:
    rest = ClientRemainder(Point(((5, 0),)), Identity())
    rest.feed(event("3", "x"))
    with pytest.raises(CrossedError) as crossed:
        rest.feed(event("7", "y"))
    assert crossed.value.priors == (4,)


ADDED = "response.output_item.added"


def test_what_a_response_repeats_of_its_request_keeps_its_ids() -> None:
    echo = {"metadata": {"id": "item_12345", "type": ADDED, "item_id": "msg_12345"}, "tools": [{"id": "tool_abcdef"}]}
    first = data_event({"type": "response.created", "response": {"id": "resp_1", **echo}})
    added = data_event({"type": ADDED, "item": {"id": "fc_aaaaaaaa", "tools": [{"id": "tool_abcdef"}]}})
    last = data_event({"type": "response.completed", "response": {**echo, "output": [{"id": "fc_aaaaaaaa"}]}})
    items = ItemIds()
    assert items.feed(first) == first
    out = items.feed(added + last)
    assert b"fc_aaaaaaaa" not in out
    assert (out.count(b"item_12345"), out.count(b"msg_12345"), out.count(b"tool_abcdef")) == (1, 1, 2)


def data_event(document: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(document, separators=(",", ":")).encode()


def test_items_of_a_response_have_the_same_ids_wherever_it_is_made() -> None:
    def made(response: str, item: str) -> list[bytes]:
        first = f'data: {{"type":"response.created","response":{{"id":"{response}","created_at":5}}}}\n\n'
        added = f'data: {{"type":"{ADDED}","item":{{"id":"msg_{item}","call_id":"call_{item}"}}}}\n\n'
        return [first.encode(), added.encode(), f'data: {{"item_id":"msg_{item}","delta":"a"}}\n\n'.encode()]

    one, other = ItemIds(), ItemIds("resp_11111111")
    a = [one.feed(event) for event in made("resp_11111111", "aaaaaaaaaa")]
    b = [other.feed(event) for event in made("resp_22222222", "bbbbbbbbbb")]
    assert b'"call_aaaaaaaaaa"' in a[1] and b"resp_11111111" in a[0]
    assert b"msg_aaaaaaaaaa" not in b"".join(a)
    assert a[2] == b[2]
