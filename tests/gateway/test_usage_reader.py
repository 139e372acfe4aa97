"""Usage of answers: read from every shape, and an added event goes while all others stay byte for byte."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.gateway.api.large_answer import LargeAnswer
from longboat.gateway.api.usage import AnswerKind, Usage, UsageReader
from longboat.gateway.http.responses import ErrorStyle, Refusal, error_event

COUNTS = {"prompt_tokens": 11, "total_tokens": 18, "completion_tokens": 7}
KNOWN = Usage(prompt_tokens=11, completion_tokens=7)


def event(document: Any, name: str = "", end: bytes = b"\n\n") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + orjson.dumps(document) + end


def chunk(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **more}


USAGE_EVENT = {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": COUNTS}


def read(kind: AnswerKind, *blocks: bytes, added: bool = False) -> tuple[bytes, Usage]:
    reader = UsageReader(kind, added=added)
    out = b"".join(reader.feed(block, last=False) for block in blocks) + reader.feed(b"", last=True)
    return out, reader.result()


TEXTS = st.sampled_from(['"usage":{"prompt_tokens":1}', "a\n\nb", '{"choices":[]}', "x", '"usage": {', "é"])
OTHER_EVENTS = st.one_of(
    TEXTS.map(chunk),
    TEXTS.map(lambda text: chunk(text, usage=None)),
    TEXTS.map(lambda text: chunk(text, usage=COUNTS)),
    st.just({"choices": [], "usage": None}),
    st.just({"choices": [], "prompt_filter_results": {"usage": {}}}),
    st.just({"error": {"message": '"usage":{', "usage": {}}}),
)
ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n"])


@given(st.lists(st.tuples(OTHER_EVENTS, st.booleans())), ENDS, st.booleans(), st.integers(0, 10))
def test_added_usage_event_goes_and_the_others_stay_byte_for_byte(
    others: list[tuple[Any, bool]], end: bytes, together: bool, at: int
) -> None:
    events = [event(document, end=end) for document, _ in others]
    done = b"data: [DONE]" + end
    with_usage = [*events[:at], event(USAGE_EVENT, end=end), *events[at:], done]
    blocks = [b"".join(with_usage)] if together else with_usage
    out, usage = read(AnswerKind.OPENAI_EVENTS, *blocks, added=True)
    assert out == b"".join([*events, done])
    assert usage == KNOWN


@given(st.sampled_from(AnswerKind), st.lists(st.binary(max_size=50) | st.just(event(USAGE_EVENT))))
def test_answers_pass_unchanged_where_nothing_was_added(kind: AnswerKind, blocks: list[bytes]) -> None:
    out, _ = read(kind, *blocks)
    assert out == b"".join(blocks)


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b'"usage":{', b'data: {"usage":{"', b"\n\n", b"data: "])))
def test_broken_streams_are_no_error(blocks: list[bytes]) -> None:
    for kind in AnswerKind:
        read(kind, *blocks, added=kind is AnswerKind.OPENAI_EVENTS)


def test_block_that_was_only_the_usage_event_becomes_empty() -> None:
    assert UsageReader(AnswerKind.OPENAI_EVENTS, added=True).feed(event(USAGE_EVENT), last=False) == b""


def test_usage_that_the_client_asked_for_stays_and_is_read() -> None:
    stream = [event(chunk("a")), event(USAGE_EVENT), b"data: [DONE]\n\n"]
    assert read(AnswerKind.OPENAI_EVENTS, *stream) == (b"".join(stream), KNOWN)


def test_events_are_counted_for_answers_that_end_early() -> None:
    reader = UsageReader(AnswerKind.OPENAI_EVENTS, added=True)
    for _ in range(3):
        reader.feed(event(chunk("a\n\nb")) * 2, last=False)
    assert reader.num_events == 6
    assert reader.result() == Usage()


def test_latest_of_continuous_counts_is_taken() -> None:
    stream = [event(chunk("a", usage={"prompt_tokens": 3, "completion_tokens": n})) for n in (1, 2)]
    _, usage = read(AnswerKind.OPENAI_EVENTS, *stream)
    assert usage == Usage(prompt_tokens=3, completion_tokens=2)


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"object": "chat.completion", "choices": [], "usage": COUNTS}, KNOWN),
        ({"data": [], "usage": {"prompt_tokens": 4, "total_tokens": 4}}, Usage(prompt_tokens=4)),
        (
            {"usage": COUNTS | {"prompt_tokens_details": {"cached_tokens": 5}}},
            Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=5),
        ),
        (
            {"usage": {"input_tokens": 11, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 5}}},
            Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=5),
        ),
        (
            {"type": "message", "usage": {"input_tokens": 6, "output_tokens": 7, "cache_read_input_tokens": 5}},
            Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=5),
        ),
        ({"text": "hello", "usage": {"type": "duration", "seconds": 3}}, Usage(prompt_tokens=150)),
        ({"text": "hello", "usage": {"type": "duration", "seconds": 0.21}}, Usage(prompt_tokens=11)),
        ({"text": "hello", "usage": {"type": "duration", "seconds": -1}}, Usage()),
        ({"text": "hello", "duration": "2.5", "segments": []}, Usage(prompt_tokens=125)),
        ({"text": "hello", "duration": 2}, Usage(prompt_tokens=100)),
        ({"text": "hello", "duration": "1e300"}, Usage()),
        ({"text": "hello", "duration": "long"}, Usage()),
        ({"count": 3, "tokens": [1, 2, 3]}, Usage()),
        ({"metadata": {"usage": {"prompt_tokens": 1}}, "usage": COUNTS}, KNOWN),
        ({"usage": COUNTS, "output": [{"input": {"usage": {"prompt_tokens": 1}}}]}, KNOWN),
        ({"metadata": {"usage": {"prompt_tokens": 1}}}, Usage()),
        ({"usage": {"prompt_tokens": "many"}}, Usage()),
    ],
)
def test_whole_answers_tell_their_usage(document: Any, usage: Usage) -> None:
    body = orjson.dumps(document)
    assert read(AnswerKind.JSON, body)[1] == usage
    assert read(AnswerKind.JSON, body[:20], body[20:])[1] == usage


def test_large_answer_is_read_at_its_end() -> None:
    details = COUNTS | {"prompt_tokens_details": {"cached_tokens": 5}}
    body = orjson.dumps({"data": [0.5] * 1_000_000, "usage": details, "prompt_logprobs": None})
    blocks = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    out, usage = read(AnswerKind.JSON, *blocks)
    assert out == body
    assert usage == Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=5)


LATE = {"prompt_logprobs": [{str(at): {"logprob": -1.5, "decoded_token": "usage"}} for at in range(40_000)]}
RESPONSES_COUNTS = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}


@pytest.mark.parametrize(
    "document",
    [
        {"id": "c", "choices": [], "usage": COUNTS, **LATE},
        {"metadata": {"usage": {"input_tokens": 1}}, "output": [], "usage": RESPONSES_COUNTS, "user": "x" * 1_200_000},
        {"choices": ["y" * 1_048_570], "usage": COUNTS, "user": "x" * 100_000},
        {"usage": COUNTS, "prompt_logprobs": ["usage"] * 150_000},
    ],
)
@pytest.mark.parametrize("size", [65_536, 1000, 10_000_000])
def test_large_answer_is_read_wherever_its_usage_is(document: Any, size: int) -> None:
    body = orjson.dumps(document)
    assert len(body) > 1024 * 1024
    _, usage = read(AnswerKind.JSON, *(body[at : at + size] for at in range(0, len(body), size)))
    assert usage == KNOWN


ECHOED = {"input_tokens": 0, "output_tokens": 0}
PAD = "x" * 1_100_000


@pytest.mark.parametrize(
    "document",
    [
        {"output": ["short"], "usage": RESPONSES_COUNTS, "metadata": {"pad": PAD, "usage": ECHOED}},
        {"output": [PAD], "usage": RESPONSES_COUNTS, "tools": [{"parameters": {"usage": ECHOED}}]},
        {"metadata": {"a": 'x"{[\\"' * 1000, '"usage"': ECHOED}, "usage": RESPONSES_COUNTS, "user": PAD},
        {"metadata": {"a": "\\" * 131_101, '{"': {"usage": ECHOED}}, "output": [PAD], "usage": RESPONSES_COUNTS},
        {"metadata": ['}]"' * 300_000, "\\", {"usage": ECHOED}], "usage": RESPONSES_COUNTS, "user": "}" * 9000},
    ],
)
@pytest.mark.parametrize("size", [997, 65_536, 10_000_000])
def test_large_answer_counts_only_its_own_usage(document: Any, size: int) -> None:
    body = orjson.dumps(document)
    _, usage = read(AnswerKind.JSON, *(body[at : at + size] for at in range(0, len(body), size)))
    assert usage == KNOWN


def test_large_answer_that_comes_at_once_takes_little_memory() -> None:
    body = b'{"choices": [%b], "usage": {"completion_tokens": 7}}' % b",".join([b'{"token": "a"}'] * 500_000)
    answer = LargeAnswer()
    tracemalloc.start()
    answer.feed(body)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    answer.end()
    assert answer.usage is not None and answer.usage.completion_tokens == 7
    assert peak_bytes < len(body)


def test_large_answer_of_which_only_the_clients_words_tell_usage_tells_nothing() -> None:
    document = {"output": [PAD], "metadata": {"usage": ECHOED}, "text": '"usage":{"input_tokens":0}'}
    assert read(AnswerKind.JSON, orjson.dumps(document))[1] == Usage()


@pytest.mark.parametrize("size", [65_536, 10_000_000])
def test_large_message_counts_its_cached_prompt(size: int) -> None:
    counts = {"input_tokens": 5, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 20, "output_tokens": 9}
    for document, prompt in (
        ({"id": "m", "type": "message", "content": [{"type": "text", "text": PAD}], "usage": counts}, 1025),
        ({"id": "r", "output": [{"type": "message", "content": PAD}], "usage": counts}, 5),
    ):
        body = orjson.dumps(document)
        _, usage = read(AnswerKind.JSON, *(body[at : at + size] for at in range(0, len(body), size)))
        assert usage == Usage(prompt_tokens=prompt, completion_tokens=9, cached_tokens=1000)


MEMBERS = st.dictionaries(
    st.sampled_from(["usage", "a", '"usage', "\\"]), st.just(ECHOED) | st.text(r'"{}[]\:', max_size=9)
)


@given(MEMBERS, MEMBERS, st.integers(1, 64), st.integers(0, 64))
def test_large_answer_is_read_as_json_wherever_it_is_cut(before: Any, after: Any, size: int, pad: int) -> None:
    document = {"m": before, "usage": RESPONSES_COUNTS, "n": [after], "p": "\\" * pad, "o": {"usage": ECHOED}}
    body = orjson.dumps(document) + b" " * 5000
    answer = LargeAnswer()
    for at in range(0, len(body), size):
        answer.feed(body[at : at + size])
    answer.end()
    assert answer.usage is not None
    assert answer.usage.input_tokens == 11


def test_truncated_answer_tells_nothing() -> None:
    assert read(AnswerKind.JSON, orjson.dumps({"usage": COUNTS})[:-3])[1] == Usage()


def response_event(kind: str, usage: Any) -> bytes:
    return event({"type": kind, "response": {"metadata": {"usage": {"input_tokens": 1}}, "usage": usage}}, kind)


@pytest.mark.parametrize("ending", ["response.completed", "response.incomplete"])
def test_responses_stream_tells_usage_in_its_last_event(ending: str) -> None:
    counts = {"input_tokens": 11, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 2}}
    stream = [response_event("response.created", None), event({"delta": '"usage":{'}), response_event(ending, counts)]
    usage = Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=2)
    assert read(AnswerKind.RESPONSES_EVENTS, *stream) == (b"".join(stream), usage)
    assert read(AnswerKind.RESPONSES_EVENTS, b"".join(stream))[1] == usage
    assert read(AnswerKind.RESPONSES_EVENTS, *stream[:2])[1] == Usage()


START = event(
    {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 0}}}, "message_start"
)
DELTA = event({"type": "content_block_delta", "delta": {"text": '"usage":{"input_tokens":1}'}}, "content_block_delta")


@pytest.mark.parametrize(
    "counts", [{"output_tokens": 7}, {"input_tokens": 6, "cache_read_input_tokens": 5, "output_tokens": 7}]
)
def test_messages_stream_tells_usage_at_both_ends(counts: dict[str, int]) -> None:
    stream = [START, DELTA, event({"type": "message_delta", "usage": counts}), event({"type": "message_stop"})]
    for blocks in (stream, [b"".join(stream)]):
        _, usage = read(AnswerKind.ANTHROPIC_EVENTS, *blocks)
        assert (usage.prompt_tokens, usage.completion_tokens) == (11, 7)
        assert usage.cached_tokens == counts.get("cache_read_input_tokens")


def test_messages_stream_that_ends_early_tells_its_prompt_only() -> None:
    assert read(AnswerKind.ANTHROPIC_EVENTS, START, DELTA)[1] == Usage(prompt_tokens=11)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_refusals_have_anthropics_shape_where_asked(status: int, kind: str) -> None:
    refusal = Refusal(status=status, message="No.", code="no", retry_after_s=3)
    answer = refusal.encode(request_id="r1", close=False, style=ErrorStyle.ANTHROPIC)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert orjson.loads(body) == {"type": "error", "error": {"type": kind, "message": "No."}, "request_id": "r1"}
    assert b"retry-after: 3" in head


def test_broken_messages_stream_ends_with_an_error_event() -> None:
    name, _, data = error_event("Broke.", "x", style=ErrorStyle.ANTHROPIC, request_id="r1").partition(b"\n")
    assert name == b"event: error"
    assert data.endswith(b"\n\n")
    assert orjson.loads(data.removeprefix(b"data: "))["error"] == {"type": "api_error", "message": "Broke."}
