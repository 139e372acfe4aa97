"""JSON bodies made up by rule: an engine gets a document with the same meaning as the one that came, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arena import Arena, check_engine_saw_only_whole_requests, check_nothing_is_left
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETTINGS = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])

keys = st.text(max_size=6) | st.sampled_from(["a", 'a"', "a\\", "a:", "b ", "\u00e9", "model ", "stream_"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
RESERVED = frozenset(
    (
        *(
            "model",
            "messages",
            "prompt",
            "stream",
            "stream_options",
            "max_tokens",
            "max_completion_tokens",
            "n",
            "user",
        ),
        *("stop", "input", "cache_salt", "priority", "vllm_xargs", "kv_transfer_params", "ec_transfer_params", "prior"),
        *("data_parallel_rank", "routed_dp_rank", "nvext", "request_id", "rid"),
        *("custom_logit_processor", "custom_params"),
    )
)
extras = st.dictionaries(
    keys.filter(lambda key: key not in RESERVED and not key.startswith("boot")), values, max_size=4
)


def post(body: bytes, path: bytes = b"/v1/completions") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body)


@st.composite
def texts(draw: Any, document: dict[str, Any]) -> bytes:
    """One of the many ways to write a document."""
    space = draw(st.sampled_from(["", " ", "\n", " \t\r\n "]))
    text = json.dumps(
        document,
        ensure_ascii=draw(st.booleans()),
        separators=(f"{space},{space}", f"{space}:{space}"),
        indent=draw(st.sampled_from([None, 0, 2])),
    )
    return (space + text + space).encode("utf-8", "surrogatepass")


@st.composite
def right_bodies(draw: Any) -> bytes:
    members = list({**draw(extras), "model": "tiny", "prompt": draw(st.text(max_size=20))}.items())
    return draw(texts(dict(draw(st.permutations(members)))))  # type: ignore[no-any-return]


def is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@SETTINGS
@given(right_bodies().filter(is_text))
def test_right_body_reaches_the_engine_with_its_meaning(arena: Arena, body: bytes) -> None:
    played = arena.play([post(body)], answers=1)
    check_nothing_is_left(arena, played)
    if played.statuses == [400]:  # some numbers and lone surrogates have no exact meaning everywhere
        assert b"invalid_json" in played.raw or b"fleet" in played.raw, played.raw
        return
    assert played.statuses == [200]
    assert json.loads(played.seen[0].body) == json.loads(body)


@SETTINGS
@given(extras, st.sampled_from(["a", "model", "prompt", "x\\u0041"]), st.integers(0, 3))
def test_key_that_comes_twice_is_refused(arena: Arena, extra: dict[str, Any], key: str, depth: int) -> None:
    again = key.replace("\\u0041", "A")
    twice = f'{{"{key}":1,"{again}":"tiny"}}'
    inner = '{"in":' * depth + twice + "}" * depth
    rest = json.dumps({f"_{name}": value for name, value in extra.items()})[1:-1]
    more = f",{rest}" if rest else ""
    body = f'{{"model":"tiny","prompt":"x","last":{inner}{more}}}'
    played = arena.play([post(body.encode("utf-8", "replace"))], answers=1)
    assert played.statuses == [400], body
    assert played.seen == []


@settings(SETTINGS, max_examples=150)
@given(right_bodies(), st.data())
@pytest.mark.parametrize(
    "path", [b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/v1/embeddings", b"/tokenize"]
)
def test_damaged_body_is_refused_or_still_json(arena: Arena, path: bytes, body: bytes, data: st.DataObject) -> None:
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        noise = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b"{", b"]", b",", b'"a":', b"\xc3"]))
        damaged[at : at + data.draw(st.integers(0, 3))] = noise
    played = arena.play([post(bytes(damaged), path)], answers=1)
    check_nothing_is_left(arena, played)
    check_engine_saw_only_whole_requests(played)
    assert played.statuses[0] in (200, 400, 404)
    if not _is_json(bytes(damaged)):
        assert played.seen == []


@SETTINGS
@given(st.integers(1, 6000), st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]), st.booleans())
def test_nesting_costs_no_stack(arena: Arena, depth: int, signs: tuple[bytes, bytes], is_closed: bool) -> None:
    opening, closing = signs
    nested = opening * depth + (b"1" + closing * depth if is_closed else b"")
    played = arena.play(
        [post(b'{"model":"tiny","prompt":"x","deep":' + nested + (b"}" if is_closed else b""))], answers=1
    )
    check_nothing_is_left(arena, played)
    assert played.statuses[0] in ((200, 400) if is_closed else (400,))


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body.decode())
    except (ValueError, RecursionError):
        return False
    return True
