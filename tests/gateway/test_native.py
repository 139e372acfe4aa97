"""The compiled leaf work says what the Python says, or nothing; it and its twins pass the same tests."""

from __future__ import annotations

import gc
import json
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import native_twin
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.gateway.api.body import BodyError, BodyKind, read_facts
from longboat.gateway.api.usage_shapes import DOCUMENT
from longboat.gateway.native import _native
from longboat.gateway.records.metrics import ITL_BOUNDS_S

MAKERS: list[Any] = [native_twin, _native]
both = pytest.mark.parametrize("maker", MAKERS, ids=["twin", "native"])

CORPUS = sorted((Path(__file__).parent / "fuzz" / "corpus").iterdir())


def scan(body: bytes, *, completions: bool = False, keyed: bool = True) -> tuple[Any, ...] | None:
    found = _native.scan(body, completions, keyed)
    if found is None:
        return None
    assert body[found[-2] - 1 : found[-1] + 1] == json.dumps(found[0], ensure_ascii=False).encode()
    return found[:-2]


def truth(body: bytes, *, completions: bool, keyed: bool) -> tuple[Any, ...] | None:
    """What ``scan`` may say at most; None where the body is refused."""
    kind = BodyKind.COMPLETIONS if completions else BodyKind.CHAT
    try:
        facts = read_facts(body, kind, refuse_fleet_fields=True, may_salt=not keyed)
    except BodyError:
        return None
    return (
        facts.model,
        facts.stream,
        facts.wants_usage,
        facts.num_prompt_tokens_estimate,
        facts.prompt_chars,
        facts.max_tokens,
        facts.n,
        facts.user,
        facts.document.keys().isdisjoint(("stream_options", "cache_salt")),
    )


def agree(body: bytes) -> int:
    """How often ``scan`` said something of this body; all of that is true."""
    said = 0
    for completions in (False, True):
        for keyed in (False, True):
            found = scan(body, completions=completions, keyed=keyed)
            if found is not None:
                said += 1
                right = truth(body, completions=completions, keyed=keyed)
                assert found == right and list(map(type, found)) == list(map(type, right))
    return said


# ordinary documents, as clients send them

TEXT = st.text(max_size=40)
NAMES = st.text("abcdefghijklmnop-.:_0", min_size=1, max_size=20)
NUMBERS = st.integers(-1000, 100_000) | st.sampled_from([0.0, 0.1, 0.7, 1.0, 1.25, 100.5, 2**63 - 1])
SCHEMAS = st.recursive(
    st.booleans() | st.none() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": NAMES, "description": TEXT, "parameters": st.dictionaries(NAMES, SCHEMAS, max_size=3)}
            ),
        }
    ),
    max_size=2,
)
PARTS = (
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
    | st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": TEXT})})
    | st.fixed_dictionaries({"type": st.just("tool_use"), "input": st.dictionaries(NAMES, SCHEMAS, max_size=2)})
)
CALLS = st.lists(
    st.fixed_dictionaries({"id": NAMES, "function": st.fixed_dictionaries({"name": NAMES, "arguments": TEXT})}),
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "tool"]),
            "content": TEXT | st.none() | st.lists(PARTS, max_size=3),
        },
        optional={"name": NAMES, "tool_calls": CALLS, "reasoning_content": TEXT},
    ),
    max_size=4,
)
IDS = st.lists(st.integers(0, 200_000), max_size=5)
PROMPTS = TEXT | IDS | st.lists(TEXT, max_size=4) | st.lists(IDS, max_size=3)
LIMITS = st.none() | st.integers(0, 999_999_999)
ORDINARY = st.fixed_dictionaries(
    {"model": NAMES},
    optional={
        "messages": MESSAGES,
        "prompt": PROMPTS,
        "suffix": TEXT,
        "stream": st.booleans() | st.none(),
        "stream_options": st.none()
        | st.fixed_dictionaries({}, optional={"include_usage": st.booleans() | st.none(), "x": st.integers(0, 9)}),
        "max_tokens": LIMITS,
        "max_completion_tokens": LIMITS,
        "n": st.none() | st.integers(0, 128),
        "user": st.text("abc-_ 09", max_size=10) | st.none() | st.booleans(),
        "metadata": st.none() | st.dictionaries(st.sampled_from(["user_id", "trace"]), NAMES | st.none()),
        "tools": st.none() | TOOLS,
        "documents": st.none() | st.lists(st.dictionaries(NAMES, TEXT, max_size=2), max_size=2),
        "temperature": st.sampled_from([0, 0.1, 1.0, 1e-7]),
        "stop": st.none() | st.lists(TEXT, max_size=2),
        "seed": st.integers(0, 2**63 - 1),
        "logit_bias": st.dictionaries(NAMES, NUMBERS, max_size=3),
    },
)
STYLES = st.sampled_from(
    [
        lambda document: json.dumps(document).encode(),
        lambda document: json.dumps(document, ensure_ascii=False).encode(),
        lambda document: json.dumps(document, indent=2).encode(),
        lambda document: json.dumps(document).replace("/", "\\/").encode(),
        orjson.dumps,
    ]
)


@given(ORDINARY, STYLES, st.booleans())
def test_scan_knows_every_ordinary_body(document: dict[str, Any], style: Any, completions: bool) -> None:
    body = style(document)
    found = scan(body, completions=completions)
    assert found is not None
    assert found == truth(body, completions=completions, keyed=True)


# anything else

AWKWARD_KEYS = st.sampled_from(
    [
        *("model", "messages", "prompt", "suffix", "stream", "stream_options", "include_usage", "max_tokens", "n"),
        *("max_completion_tokens", "user", "metadata", "user_id", "tools", "documents", "cache_salt", "priority"),
        *("disagg_x", "bootstrap_", "longboat_", "rid", "nvext", "text", "content", "input", "parameters", "image"),
        *("name", "function", "source", "file_id", "output", "tool_calls", "", "é", "a\\n", "\\u006dodel"),
    ]
)
AWKWARD_SCALARS = st.sampled_from(
    [
        *(
            "null",
            "true",
            "false",
            "0",
            "-0",
            "-0.0",
            "1",
            "-1",
            "7.0",
            "1e2",
            "1E+2",
            "1e-5",
            "1e400",
            "01",
            "1.",
            ".5",
        ),
        *("+1", "0.00001", "0.0001", "1.50", "123456789", "1234567890", "9223372036854775807", "18446744073709551616"),
        *("-9223372036854775808", "-9223372036854775809", "1234567890.123456", "12345678901.123456", "1e16", "NaN"),
        *('""', '"a"', '"é"', '"😀"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"', '"\\ud83d\\u0041"', '"\\u0000"'),
        *(
            '"\\u001F\\u007f"',
            '"\\n\\t\\b\\f\\r"',
            '"\\/"',
            '"\\""',
            '"\\\\"',
            '"\\x"',
            '"\\u12"',
            '"\x7f"',
            '"\t"',
            '"\0"',
        ),
        *('"\\u2028\\u0022\\u005c"', '"long enough for a whole word"', "tru", "nul", "[]", "{}", "'a'", "Infinity"),
    ]
)
SPACES = st.sampled_from(["", "", "", " ", "\n\t\r "])


@st.composite
def awkward_objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(SPACES, AWKWARD_KEYS, SPACES, values, SPACES), max_size=5))
    return "{" + ",".join(f'{a}"{key}"{b}:{value}{c}' for a, key, b, value, c in members) + "}"


AWKWARD = st.recursive(
    AWKWARD_SCALARS,
    lambda inner: awkward_objects(inner) | st.lists(inner, max_size=4).map(lambda items: "[" + ", ".join(items) + "]"),
    max_leaves=12,
)


@given(awkward_objects(AWKWARD), st.booleans())
def test_scan_never_says_more_than_the_reader_of_bodies(text: str, named: bool) -> None:
    if named:
        text = text.replace("{", '{"model": "m"' + (", " if len(text) > 2 else ""), 1)
    agree(text.encode())


@given(ORDINARY, STYLES, st.data())
def test_scan_of_a_damaged_body_never_says_more(document: dict[str, Any], style: Any, data: st.DataObject) -> None:
    body = bytearray(style(document))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        piece = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b"{", b"}", b",", b"\xed\xa0\x80", b"\xc0\xaf"])
        )
        body[at : at + data.draw(st.integers(0, 4))] = piece
    agree(bytes(body))


@given(
    st.binary(max_size=6)
    | st.lists(st.sampled_from(b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5")).map(bytes)
)
def test_scan_takes_the_same_utf8_as_the_reader_of_bodies(raw: bytes) -> None:
    raw = raw.replace(b'"', b"").replace(b"\\", b"")
    for body in (b'{"model":"m","prompt":"' + raw + b'"}', b'{"prompt":"' + raw + b' and more","model":"m"}'):
        assert scan(body, completions=True) == truth(body, completions=True, keyed=True)


def test_scan_knows_each_code_point_and_its_borders() -> None:
    for code in (0x20, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF):
        assert scan(b'{"model":"m","prompt":"%b"}' % chr(code).encode(), completions=True)[4] == 1, hex(code)  # type: ignore[index]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_scan_of_a_fuzzed_body_never_says_more(path: Path) -> None:
    raw = path.read_bytes()
    for mark in (b"\r\n\r\n", b"{"):
        at = raw.find(mark)
        agree(raw[at + len(mark) if mark != b"{" else at :])
    agree(raw)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b'{"model":"m"',
        b'{"model":"m"}x',
        b'{"model":"m"}\0',
        b'\xef\xbb\xbf{"model":"m"}',
        b'{"model":"m",}',
        b'{"model":""}',
        b'{"model":null}',
        b'{"model":"m","model":"m"}',
        b'{"model":"m","a":{"b":1,"c":2,"b":3}}',
        b'{"model":"\\u006d"}',
        b'{"model":"m","user":"\\u006d"}',
        '{"model":"m","user":"é"}'.encode(),
        b'{"model":"m","n":-1}',
        b'{"model":"m","max_tokens":1.0}',
        b'{"model":"m","max_tokens":10000000000}',
        b'{"model":"m","stream":1}',
        b'{"model":"m","stream":true,"stream_options":[]}',
        b'{"model":"m","stream":true,"stream_options":{"include_usage":1}}',
        b'{"model":"m","priority":1}',
        b'{"model":"m","cache_salt":"s"}',
        b'{"model":"m","x":' + b"[" * 32 + b"]" * 32 + b"}",
        b'{"model":"m",' + b",".join(b'"%d":0' % i for i in range(64)) + b"}",
        b'{"model":"m","x":"' + b"x" * (4 * 1024 * 1024) + b'"}',
    ],
    ids=lambda body: repr(body[:60]),
)
def test_scan_leaves_what_is_out_of_the_ordinary_to_python(body: bytes) -> None:
    assert scan(body) is None


def test_scan_of_a_whole_chat_request() -> None:
    document = {
        "model": "org/llama",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hé 😀"}]},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "max_completion_tokens": 50,
        "n": 2,
        "metadata": {"user_id": "u-1"},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"minimum": 0.5, "text": "a\n"}}}],
    }  # fmt: skip
    chars = 2 * 16 + 9 + 4 + len(orjson.dumps(document["tools"]))
    assert scan(json.dumps(document).encode()) == (
        "org/llama", True, True, (chars + 3) // 4, chars, 50, 2, "u-1", False,
    )  # fmt: skip


def test_scan_counts_prompts_of_completions() -> None:
    assert scan(b'{"model":"m","prompt":["ab","c"],"n":3}', completions=True) == (
        "m",
        False,
        False,
        1,
        3,
        16,
        6,
        "",
        True,
    )
    assert scan(b'{"model":"m","prompt":[1,2,3],"max_tokens":null}', completions=True) == (
        *("m", False, False, 3, 12, None, 1, "", True),
    )


def test_scan_allows_a_salt_only_without_keys() -> None:
    body = b'{"model":"m","cache_salt":"s"}'
    assert scan(body, keyed=True) is None
    found = scan(body, keyed=False)
    assert found is not None and found[-1] is False


def test_scan_reads_deep_and_wide_bodies_up_to_its_bounds() -> None:
    assert scan(b'{"model":"m","x":' + b"[" * 31 + b"]" * 31 + b"}") is not None
    assert scan(b'{"model":"m",' + b",".join(b'"%d":0' % i for i in range(63)) + b"}") is not None


# the tokens that an answer tells

NUMBER = st.none() | st.integers(0, 999_999_999) | st.sampled_from([-1, 1 << 40, 1 << 41, 1.5, True, "7", [], {}])
DETAILS = st.none() | st.fixed_dictionaries({}, optional={"cached_tokens": NUMBER, "audio_tokens": NUMBER})
USAGE = st.fixed_dictionaries(
    {"prompt_tokens": NUMBER},
    optional={
        "completion_tokens": NUMBER,
        "total_tokens": NUMBER,
        "prompt_tokens_details": DETAILS,
        "input_tokens": NUMBER,
        "cache_read_input_tokens": NUMBER,
    },
)
ANSWER = st.fixed_dictionaries(
    {"id": TEXT},
    optional={
        "usage": USAGE | st.none(),
        "choices": st.lists(st.fixed_dictionaries({"text": TEXT}), max_size=2) | st.none(),
        "type": st.sampled_from(["message", "response"]),
        "metadata": st.dictionaries(st.sampled_from(["usage", "choices"]), USAGE, max_size=2),
    },
)


@given(ANSWER, STYLES)
def test_counts_of_an_answer_are_those_that_python_reads(document: dict[str, Any], style: Any) -> None:
    body = style(document)
    found = _native.counts_at(b"data: " + body, 6)
    if found is None:
        return
    end, num_choices, *counts = found
    assert end == 6 + len(body)
    assert num_choices == len(document.get("choices", "x")) or "choices" not in document
    usage = DOCUMENT.decode(body).usage
    assert usage is not None
    details = usage.prompt_tokens_details
    cached = usage.cache_read_input_tokens if details is None else details.cached_tokens
    assert counts == [usage.prompt_tokens, usage.completion_tokens, cached]


@given(ANSWER, STYLES, st.data())
def test_counts_of_a_damaged_answer_end_where_python_reads_them(
    document: dict[str, Any], style: Any, data: st.DataObject
) -> None:
    body = style(document)
    at = data.draw(st.integers(0, len(body)))
    damaged = body[:at] + data.draw(st.sampled_from([b"", b"}", b'"', b",", b"\x00", b"[", b"1"])) + body[at + 1 :]
    found = _native.counts_at(damaged, 0)
    if found is not None:
        usage = DOCUMENT.decode(damaged[: found[0]]).usage
        assert usage is not None and usage.completion_tokens == found[3]


def test_counts_of_ordinary_answers() -> None:
    usage = b'{"prompt_tokens":5,"total_tokens":12,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}'
    whole = b'{"id":"c","choices":[{"index":0,"message":{"content":"a"}}],"usage":%b}' % usage
    assert _native.counts_at(whole, 0) == (len(whole), 1, 5, 7, 3)
    event = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}'
    assert _native.counts_at(event, 0) == (len(event), 0, 5, 7, None)
    for at in range(1, len(whole)):
        assert _native.counts_at(whole[:at], 0) is None
    assert _native.counts_at(whole, len(whole)) is None and _native.counts_at(whole, -1) is None


EVENT = st.builds(lambda document, style: b"data: %b" % style(document), ANSWER, STYLES)
USAGE_EVENT = st.just(b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}')
OTHER_EVENT = st.sampled_from((b": comment", b"data: [DONE]", b'data: "usage"', b"event: usage", b""))


@given(st.lists(st.tuples(EVENT | USAGE_EVENT | OTHER_EVENT, st.sampled_from((b"\n\n", b"\n", b"\r\n\r\n", b"")))))
def test_the_event_of_usage_is_taken_as_the_twin_takes_it(events: list[tuple[bytes, bytes]]) -> None:
    block = b"".join(event + end for event, end in events)
    assert _native.take_usage(block) == native_twin.take_usage(block)


@given(st.lists(st.sampled_from((b"\n", b"\r\n", b"\n\n", b"\r", b'"usage":', b'"usage": ', b"{", b"a"))))
def test_events_are_counted_as_python_counts_them(pieces: list[bytes]) -> None:
    block = b"".join(pieces)
    tells = b'"usage":{' in block or b'"usage": {' in block
    assert _native.events_in(block) == (block.count(b"\n\n") or block.count(b"\r\n\r\n"), tells)


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=20), st.binary(max_size=20), st.data())
def test_a_body_is_spliced_at_two_places(
    space: bytes, members: bytes, new: bytes, name: bytes, data: st.DataObject
) -> None:
    space = space.replace(b"{", b" ")
    body, first = space + b"{" + members, len(space) + 1
    begin, end = sorted(data.draw(st.integers(first, len(body))) for _ in range(2))
    assert _native.spliced(body, new, begin, end, name) == b"{" + new + body[first:begin] + name + body[end:]
    assert _native.spliced(body, new, 0, 0, name) == b"{" + new + name + members
    for places in ((end + 1, end), (-1, end), (0, end), (begin, len(body) + 1)):
        with pytest.raises(ValueError, match="places"):
            _native.spliced(body, new, *places, name)
    for places in ((0, 0), (first, first)):
        with pytest.raises(ValueError, match="places"):
            _native.spliced(space, new, *places, name)


VALUES = st.none() | st.text(st.characters(exclude_categories=("Cs",))) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(VALUES | st.floats(-1e14, 1e14), max_size=9))
def test_a_line_is_json_with_three_decimals(values: list[Any]) -> None:
    keys = tuple(b'"%d":' % number for number in range(9))
    line = _native.json_line(keys, tuple(values))
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    found = list(json.loads(line).values())
    assert [type(value) for value in found] == [type(value) for value in values]
    for value, written in zip(values, found, strict=True):
        assert (
            value == written if not isinstance(value, float) else abs(value - written) <= max(6e-4, abs(value) / 1e15)
        )


def test_a_line_holds_what_json_can() -> None:
    keys = (b'"a":', b'"b":')
    assert _native.json_line(keys, (1.5, 0.0)) == b'{"a":1.5,"b":0.0}\n'
    assert _native.json_line(keys, (-0.0504, 12.35)) == b'{"a":-0.05,"b":12.35}\n'
    assert _native.json_line(keys, (float("nan"), float("inf"))) == b'{"a":null,"b":null}\n'
    assert _native.json_line(keys, ("x" * 5000, None)) == b'{"a":"%b","b":null}\n' % (b"x" * 5000)
    for values in (("\ud800",), (b"bytes",), (2**70,), (1, 2, 3)):
        with pytest.raises((UnicodeEncodeError, TypeError, OverflowError)):
            _native.json_line(keys, values)  # type: ignore[arg-type]


def test_the_event_of_usage_is_taken_out_of_its_stream() -> None:
    first, done = b'data: {"choices":[{"delta":{"content":"usual"}}]}\n\n', b"data: [DONE]\n\n"
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}\n\n'
    assert _native.take_usage(first + usage + done) == (first + done, 5, 7, None)
    assert _native.take_usage(usage) == (b"", 5, 7, None)
    assert _native.take_usage(first + done) is None
    assert _native.take_usage(usage + first + usage) is None  # a client that asked for usage gets it twice
    for at in range(len(first) + 1, len(first + usage)):
        assert _native.take_usage((first + usage)[:at]) is None


class Pair(NamedTuple):
    """A named tuple."""

    one: int
    other: list[int]


def test_named_makes_what_the_class_makes() -> None:
    made = _native.named(Pair, (1, [2]))
    assert type(made) is Pair and made == Pair(1, [2]) and made.other == [2]
    held = weakref.ref(loop := Loop())
    loop.items = _native.named(Pair, (1, [loop]))  # type: ignore[arg-type,list-item]
    del loop
    gc.collect()
    assert held() is None
    for wrong in ((list, (1,)), (Pair, [1, []]), (1, ())):
        with pytest.raises(TypeError):
            _native.named(*wrong)  # type: ignore[arg-type]


def test_named_leaves_a_tuple_that_another_holds() -> None:
    items = (1, [2])
    made = _native.named(Pair, items)
    assert type(made) is Pair and type(items) is tuple and made == items
    with_dict = _native.named(Noted, tuple([1, 2]))  # of which there is no other reference
    with_dict.note = "kept"
    assert type(with_dict) is Noted and with_dict == (1, 2) and with_dict.note == "kept"


class Noted(tuple[int, ...]):
    """A tuple with a dict."""

    note: str


class Loop:
    """Something that can refer to itself."""

    items: object = None


def test_scan_takes_bytes_only() -> None:
    assert _native.scan(bytearray(b'{"model":"m"}'), False, False) is None  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.scan(b"{}")  # type: ignore[call-arg]


# head_of


@both
@pytest.mark.parametrize(
    ("head", "key", "length"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 12", b"POST / HTTP/1.1\r\nContent-Length: ", 12),
        (b"A\r\ncontent-length: 0\r\nb: c", b"A\r\ncontent-length: \r\nb: c", 0),
        (b"A\r\nContent-length: 007", b"A\r\nContent-length: ", 7),
        (b"A\r\ncontent-length: " + b"9" * 15, b"A\r\ncontent-length: ", 999_999_999_999_999),
        (b"A\r\ncontent-length: " + b"9" * 16, None, -1),
        (b"A\r\nCONTENT-LENGTH: 1", None, -1),
        (b"A\r\ncontent-length:1", None, -1),
        (b"A\r\ncontent-length: ", None, -1),
        (b"A\r\ncontent-length: 1 ", None, -1),
        (b"A\r\ncontent-length: x\r\ncontent-length: 2", b"A\r\ncontent-length: x\r\ncontent-length: ", 2),
        (b"A\r\ncontent-length: 1\r\ncontent-length: 2", b"A\r\ncontent-length: \r\ncontent-length: 2", 1),
        (b"A", None, -1),
        (b"", None, -1),
    ],
)
def test_head_is_taken_without_its_length(maker: Any, head: bytes, key: bytes | None, length: int) -> None:
    for body in (b"", b"hello", b"\r\ncontent-length: 5\r\n\r\n"):
        assert maker.head_of(head + b"\r\n\r\n" + body, 64) == (head if key is None else key, len(head) + 4, length)


@both
@pytest.mark.parametrize("data", [b"", b"A\r\ncontent-length: 1\r\n", b"A" * 61 + b"\r\n\r\n"])
def test_head_without_an_end_is_none(maker: Any, data: bytes) -> None:
    assert maker.head_of(data, 64) is None


PIECES = (
    b"\r\n",
    b"\r",
    b"\n",
    b"content-length: ",
    b"Content-Length: ",
    b"content-length",
    b"12",
    b"9" * 15,
    b" ",
    b"x",
)


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=16).map(b"".join), st.integers(0, 80))
def test_heads_are_taken_alike(data: bytes, max_bytes: int) -> None:
    for whole in (data, data + b"\r\n\r\n", data + b"\r\n\r\n" + data):
        assert _native.head_of(whole, max_bytes) == native_twin.head_of(whole, max_bytes)


def test_a_head_that_came_before_gives_the_same_key_and_no_other_does() -> None:
    head = bytearray(b"POST / HTTP/1.1\r\nauthorization: Bearer %b\r\ncontent-length: 10\r\n\r\n" % (b"k" * 40))
    first, again = _native.head_of(bytes(head), 200), _native.head_of(bytes(head).replace(b"10", b"7"), 200)
    assert first is not None and again is not None and first[0] is again[0]
    for at in range(head.index(b"kk"), head.index(b"k\r")):  # some of these do not choose its place
        head[at] = ord("x")
        found = _native.head_of(bytes(head), 200)
        assert found == native_twin.head_of(bytes(head), 200) and found is not None and found[0] != first[0]
        head[at] = ord("k")


def test_models_with_alike_names_are_told_apart() -> None:
    for model in ("mac", "mbc", "mac", "mbc", "", "m" * 300, "grün"):
        found = _native.scan(orjson.dumps({"model": model, "messages": []}), False, False)
        assert found is None if not model else found is not None and found[0] == model


# whole_chunks


CHUNKS = (
    b"1\r\na\r\n",
    b"a\r\n0123456789\r\n",
    b"0\r\n\r\n",
    b"\r\n",
    b"1\r",
    b"A\r\n",
    b"01\r\na\r\n",
    b"0",
    b"3fff\r\n",
    b"x",
)


@given(st.lists(st.sampled_from(CHUNKS) | st.binary(max_size=3), max_size=8).map(b"".join), st.integers(0, 12))
def test_chunks_are_taken_alike(data: bytes, at: int) -> None:
    assert _native.whole_chunks(data, at) == native_twin.whole_chunks(data, at)


@both
@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 4095, 4096, 16383, 16384])
def test_large_chunks_are_whole_up_to_a_bound(maker: Any, size: int) -> None:
    wire = b"%x\r\n%b\r\n" % (size, b"x" * size)
    found = None if size > 16383 else (b"x" * size, False)
    assert maker.whole_chunks(wire, 0) == found
    assert maker.whole_chunks(b"head" + wire, 4) == found
    assert maker.whole_chunks(wire[:-1], 0) is None


# Numbering and the log of tokens


EVENTS = [
    b": ids 0 1\n", b": ids 0 7,8\n", b": ids 1\n", b": steps 4\n", b": ", b"id: 1\n", b"id: 2\n", b"id: 1.2\n",
    b"id: 1234567890\n", b"id: \n", b'data: {"a":1}\n\n', b"data: [DONE]\n\n", b"event: x\n", b"\n", b"data: x\r\n\r\n",
    b": ids 0 5\nid: 3\ndata: {}\n\n", b"id: 3\ndata: {}\n\n",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(EVENTS) | st.binary(max_size=3), max_size=9).map(b"".join),
    st.sampled_from([b"", b"1", b"2", b"3", b"x"]),
    st.sampled_from([0, 1, 9, 999_998, 1_000_000]),
)
def test_events_are_numbered_alike(events: bytes, before: bytes, further: int) -> None:
    assert _native.numbered(events, before, further) == native_twin.numbered(events, before, further)


@both
def test_events_with_one_count_of_tokens_get_ids_of_their_own(maker: Any) -> None:
    events = b": ids 0 7\nid: 1\ndata: {}\n\n: ids 0 8\nid: 1\ndata: {}\n\n: ids 0 9\nid: 2\nevent: x\ndata: {}\n\n"
    numbered = b"id: 1\ndata: {}\n\nid: 1+1\ndata: {}\n\nid: 2\nevent: x\ndata: {}\n\n"
    assert maker.numbered(events, b"", 0) == (numbered, b"2", 0, True)
    assert maker.numbered(b"id: 2\ndata: {}\n\ndata: [DONE]\n\n", b"2", 3) == (
        b"id: 2+4\ndata: {}\n\ndata: [DONE]\n\n", b"2", 4, False,
    )  # fmt: skip


@both
@pytest.mark.parametrize(
    "events",
    [
        b"",
        b"id: 1\ndata: {}\n",
        b": steps 3\nid: 1\ndata: {}\n\n",
        b"data: {}\n\n",
        b"id: 1.2\ndata: {}\n\n",
        b"id: 1\n:\n\n",
    ],
)
def test_events_that_are_not_plain_are_left_to_python(maker: Any, events: bytes) -> None:
    assert maker.numbered(events, b"", 0) is None or not events


@both
def test_log_of_tokens_keeps_what_went_in_order(maker: Any) -> None:
    log = maker.TokenLog(100)
    assert (log.sent_bytes, log.last(), log.all(), log.take()) == (0, b"", b"", b"")
    pieces = [b"%d," % number * 40 for number in range(200)]
    for piece in pieces:
        log.keep(piece)
        assert log.last() == piece
    assert log.sent_bytes == len(b"".join(pieces))
    assert log.all() == log.take() == b"".join(pieces)
    assert (log.sent_bytes, log.last()) == (0, b"")


# Histogram


@both
@given(seconds=st.lists(st.floats(0, 20) | st.sampled_from(ITL_BOUNDS_S), max_size=30))
def test_times_are_counted_at_the_first_bound_that_they_do_not_exceed(maker: Any, seconds: list[float]) -> None:
    histogram = maker.Histogram(ITL_BOUNDS_S)
    counts = [0] * (len(ITL_BOUNDS_S) + 1)
    for time_s in seconds:
        histogram.observe(time_s)
        counts[sum(bound < time_s for bound in ITL_BOUNDS_S)] += 1
    assert histogram.counts() == [*counts, sum(seconds, 0.0)]


@both
def test_histogram_begins_with_nothing_and_gives_copies(maker: Any) -> None:
    histogram = maker.Histogram((1.0, 2.0))
    histogram.counts().clear()
    assert histogram.counts() == [0, 0, 0, 0.0]
    histogram.observe(2)
    assert histogram.counts() == [0, 1, 0, 2.0]
    assert [type(count) for count in histogram.counts()] == [int, int, int, float]


@both
def test_histogram_takes_numbers_only(maker: Any) -> None:
    with pytest.raises(TypeError):
        maker.Histogram((1.0,)).observe("1")
    with pytest.raises(TypeError):
        maker.Histogram()


# ChunkPath


def path_of(maker: Any) -> Any:
    """A connection as upstream.py has it, ready for a whole chunk; ``written`` and ``arrived`` say what went where."""

    class Owner:
        def data_arrived(self, data: bytes) -> None:
            path.arrived.append(data)

    class Path(maker.ChunkPath):  # type: ignore[misc]
        __slots__ = ("__weakref__", "arrived", "written")

    path = Path(Owner())
    path.arrived, path.written = [], []
    path.direct = path.between_chunks = True
    path.write = path.written.append
    return path


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


WHOLE = chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')


@both
def test_path_begins_with_nothing_set(maker: Any) -> None:
    path = maker.ChunkPath(None)
    names = ("direct", "between_chunks", "write", "itl", "journal", "last_s", "quiet", "num_events", "bytes_out")
    assert [getattr(path, name) for name in names] == [False, False, None, None, None, 0.0, 0, 0, 0]
    assert path.owner is None
    with pytest.raises(AttributeError):
        path.data_received(WHOLE)
    with pytest.raises(TypeError):
        maker.ChunkPath()


@both
def test_path_is_reset_for_the_next_request(maker: Any) -> None:
    path = path_of(maker)
    owner = path.owner
    path.itl, path.journal = maker.Histogram((1.0,)), object()
    path.quiet, path.num_events, path.bytes_out = 5, 6, 7
    path.reset()
    names = ("direct", "between_chunks", "write", "itl", "journal", "quiet", "num_events", "bytes_out")
    assert [getattr(path, name) for name in names] == [False, False, None, None, None, 0, 0, 0]
    assert path.owner is owner


@both
def test_path_writes_a_whole_chunk_as_it_came_and_counts_it(maker: Any) -> None:
    path = path_of(maker)
    path.itl = maker.Histogram((1.0, 1e9))
    path.last_s = time.monotonic() - 10
    path.quiet = 7
    path.num_events, path.bytes_out = 3, 100
    path.data_received(WHOLE)
    assert path.written == [WHOLE] and path.written[0] is WHOLE and path.arrived == []
    assert (path.quiet, path.num_events, path.bytes_out) == (0, 4, 100 + len(WHOLE) - 6)
    assert path.itl.counts()[:3] == [0, 1, 0] and 10 <= path.itl.counts()[3] < 100
    assert abs(path.last_s - time.monotonic()) < 60


@both
def test_path_needs_no_histogram(maker: Any) -> None:
    path = path_of(maker)
    path.data_received(WHOLE)
    assert path.num_events == 1


@both
@pytest.mark.parametrize(
    ("name", "value"), [("direct", False), ("between_chunks", False), ("write", None), ("journal", object())]
)
def test_path_that_is_not_open_hands_every_chunk_on(maker: Any, name: str, value: object) -> None:
    path = path_of(maker)
    path.quiet = 5
    setattr(path, name, value)
    path.data_received(WHOLE)
    assert path.arrived == [WHOLE] and path.written == []
    assert (path.quiet, path.num_events, path.bytes_out, path.last_s) == (0, 0, 0, 0.0)


END = b"}]}\n\n"


@both
@pytest.mark.parametrize(
    ("data", "size"),
    [
        (chunk(END), 5),
        (chunk(b"x" * 10 + END), 15),
        (chunk(b"x" * 11 + END), 16),
        (chunk(b"x" * 250 + END), 255),
        (chunk(b"x" * 251 + END), 256),
        (chunk(b"x" * 4091 + END), 4096),
        (chunk(b"x" * 16378 + END), 16383),
        (chunk(b"x" * 16379 + END), 0),
        (chunk(b"x" * 65535 + END), 0),
        (chunk(b"data: [DONE]\n\n"), 14),
        (chunk(b"\n\n"), 2),
        (chunk(b"\n"), 1),
        (chunk(b"x\n"), 0),
        (chunk(b'"usage" ' + END), 13),
        (chunk(b'{"usage":{}}\n\n'), 0),
        (chunk(b'{"use":"usage"}\n\n'), 0),
        (chunk(b'{"usag":"usage "}\n\n'), 19),
        (chunk(b'"usage"\n\n'), 0),
        (chunk(b'x"usage"\n\n'), 0),
        (chunk(b"data: half"), 0),
        (chunk(b"\ra\n\n"), 0),
        (WHOLE + WHOLE, 0),
        (WHOLE[:-1], 0),
        (WHOLE[:-2], 0),
        (WHOLE + b"x", 0),
        (WHOLE.upper(), 0),
        (b"0" + WHOLE, 0),
        (WHOLE.replace(b"\r\n", b";a=b\r\n", 1), 0),
        (WHOLE.replace(b"\r\n", b"\n", 1), 0),
        (b"0\r\n\r\n", 0),
        (b"0\r\n\n\n\r\n", 0),
        (b"A\r\n" + b"x" * 5 + END + b"\r\n", 0),
        (b"-5\r\n" + END + b"\r\n", 0),
        (b"", 0),
        (b"5", 0),
        (b"5\r", 0),
        (b"5\r\n", 0),
        (b"\r\n", 0),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_path_takes_exactly_one_whole_chunk_of_whole_events(maker: Any, data: bytes, size: int) -> None:
    path = path_of(maker)
    path.data_received(data)
    assert (path.written, path.arrived) == (([data], []) if size else ([], [data]))
    assert path.bytes_out == size


@both
@pytest.mark.parametrize("size", [15, 16, 255, 256, 4095, 4096, 16000])
def test_path_frames_what_is_left_of_a_chunk_without_its_ids(maker: Any, size: int) -> None:
    path = path_of(maker)
    path.journal = maker.TokenLog(1 << 20)
    event = b"x" * (size - len(END)) + END
    path.data_received(chunk(b": ids 0 5\n" + event))
    assert path.written == [chunk(event)] and path.journal.all() == b": ids 0 5\n" + event


PIECES = st.sampled_from(
    [b"1", b"5", b"a", b"1f", b"3fff", b"0", b"\r\n", b"\r", b"\n", b"\n\n", b'"usage"', b"}]}", b"x" * 11, b";"]
)
BODIES = st.lists(PIECES, max_size=6).map(b"".join)


@given(st.lists(PIECES, max_size=8).map(b"".join) | BODIES.map(chunk) | BODIES.map(lambda body: chunk(body + b"\n\n")))
def test_path_and_its_twin_take_the_same_chunks(data: bytes) -> None:
    ours, twins = path_of(_native), path_of(native_twin)
    ours.data_received(data)
    twins.data_received(data)
    assert (ours.written, ours.arrived, ours.bytes_out) == (twins.written, twins.arrived, twins.bytes_out)


@both
def test_path_lets_errors_of_those_it_calls_through(maker: Any) -> None:
    def fails(_: object) -> None:
        raise OSError("gone")

    path = path_of(maker)
    path.write = fails
    with pytest.raises(OSError, match="gone"):
        path.data_received(WHOLE)


@both
def test_path_may_be_closed_by_whom_it_calls(maker: Any) -> None:
    path = path_of(maker)
    written = path.written

    class Closes:
        def observe(self, _: float) -> None:
            path.write = path.itl = None

    path.itl = Closes()
    path.data_received(WHOLE)
    assert written == [WHOLE]
    path.data_received(WHOLE)
    assert path.arrived == [WHOLE]


@both
def test_path_is_let_go_with_the_circle_it_is_in(maker: Any) -> None:
    path = path_of(maker)
    path.write = path.owner.data_arrived
    path.journal = [path]
    gone = weakref.ref(path)
    del path
    gc.collect()
    assert gone() is None


@both
def test_attributes_of_a_path_can_be_set_again(maker: Any) -> None:
    path = path_of(maker)
    for _ in range(1000):
        path.write, path.itl, path.journal = object(), maker.Histogram((1.0,)), object()
        path.write = path.itl = path.journal = None
    path.quiet += 1
    path.last_s = 5
    assert (path.quiet, path.last_s, path.write) == (1, 5, None)
