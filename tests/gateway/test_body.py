"""Request bodies: what is read of them, what is refused, and that splices change nothing else."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longboat.gateway.api.body import BodyError, BodyKind, Facts, read_body, read_facts, splice
from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.http.strict_json import MAX_DEPTH, decode_object
from longboat.gateway.resume.resume_state import resume_state_of
from longboat.gateway.resume.unstreamed_journal import whole_journal_of

# TGI's bodies have few fields, and any other is refused: see test_tgi_paths.
JSON_KINDS = [kind for kind in BodyKind if kind not in (BodyKind.FORM, BodyKind.NONE, BodyKind.TGI)]
SPACES = st.text(" \t\n\r", max_size=2)
AWKWARD = st.sampled_from(['"', "\\", '":', '\\":', '" :', ":", " :", "a", "é", "\n", "{", "[", ",", "😀", "model"])
STRINGS = st.lists(AWKWARD, max_size=4).map("".join)
SCALARS = st.sampled_from(["null", "true", "-0", "1e3", "12345678901234567890123", "1.5"])


@st.composite
def string_texts(draw: st.DrawFn) -> str:
    """One string as JSON, each character spelled plainly or as an escape."""
    text = draw(STRINGS)
    if draw(st.booleans()):
        return json.dumps(text, ensure_ascii=draw(st.booleans()))
    units = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)) + '"'


@st.composite
def object_texts(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(SPACES, string_texts(), SPACES, SPACES, values, SPACES), max_size=4))
    return "{" + ",".join(f"{a}{key}{b}:{c}{value}{d}" for a, key, b, c, value, d in members) + "}"


VALUES = st.recursive(
    SCALARS | string_texts(),
    lambda inner: object_texts(inner) | st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
    max_leaves=8,
)
OBJECTS = object_texts(VALUES)


def has_duplicates(text: str) -> bool:
    found = False

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=note)
    return found


def is_refused(text: str) -> bool:
    try:
        decode_object(text.encode())
    except BodyError as error:
        assert error.code == "duplicate_key"
        return True
    return False


@given(OBJECTS)
def test_duplicate_keys_are_found_exactly_as_a_pairs_hook_finds_them(text: str) -> None:
    assert is_refused(text) == has_duplicates(text)


@given(SPACES, OBJECTS, SPACES)
def test_decoded_object_equals_what_the_standard_library_decodes(before: str, text: str, after: str) -> None:
    assume(not has_duplicates(text))
    assert decode_object((before + text + after).encode()) == json.loads(text, parse_int=_as_orjson)


def _as_orjson(text: str) -> int | float:
    number = int(text)
    return number if -(2**63) <= number < 2**64 else float(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a" :1,"a" :":"}',
        '{"a":1,"\\u0061":2}',
        '{"a\\\\":1,"k":1,"k":2}',
        '{"a\\\\":1,"b":[{"a\\\\":1,"a\\\\":2}]}',
        '{"a\\"":1,"a\\"":2}',
        '{"":{"x":{"y":[[{"k":0,"k":0}]]}}}',
    ],
)
def test_duplicate_key_is_refused_and_named(text: str) -> None:
    with pytest.raises(BodyError) as caught:
        decode_object(text.encode())
    assert caught.value.code == "duplicate_key"
    assert caught.value.param in {"a", "a\\", 'a"', "k"}


def test_long_prompt_full_of_json_is_no_duplicate() -> None:
    snippet = '{"a" : 1, "a": 2, "\\\\": "\\"\\":"}'
    assert decode_object(orjson.dumps({"prompt": snippet * 3000}))["prompt"].startswith(snippet)


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{", "{}{}", '{"a":NaN}', "\ufeff{}", '{"a":"\\ud800"}', "{'a':1}"])
def test_what_is_not_one_json_object_is_refused(text: str) -> None:
    with pytest.raises(BodyError) as caught:
        decode_object(text.encode())
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    "body", [b'{"a":"\xff"}', b'{"a":"\xc0\xaf"}', '{"a":1}'.encode("utf-16"), b'{"a":"\xed\xa0\x80"}']
)
def test_other_encodings_than_utf_8_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_object(body)


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    assert decode_object(nested(MAX_DEPTH))
    for levels in (MAX_DEPTH + 1, 1000, 100_000):
        with pytest.raises(BodyError):
            decode_object(nested(levels))


def test_nesting_behind_many_numbers_is_bounded_too() -> None:
    numbers = b"1," * 2000
    assert decode_object(b'{"a":[' + numbers + b"[[1]]]}")
    with pytest.raises(BodyError):
        decode_object(b'{"a":[' + numbers + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]}")


def test_duplicate_key_behind_many_numbers_is_refused() -> None:
    with pytest.raises(BodyError):
        decode_object(b'{"a":[' + b"1," * 2000 + b'{"b":1,"b":2}]}')


def test_body_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(BodyError) as caught:
        decode_object(b'{"a":[' + b"[]," * 2_000_000 + b"0]}")
    assert caught.value.code == "body_too_complex"


UNSALTED = (BodyKind.TOKENIZE, BodyKind.DETOKENIZE, BodyKind.COUNT_TOKENS, BodyKind.RENDER)


def facts_of(kind: BodyKind = BodyKind.CHAT, *, refuse: bool = True, **fields: Any) -> Facts:
    return read_facts(orjson.dumps({"model": "m", **fields}), kind, refuse_fleet_fields=refuse)


MESSAGES = [{"role": "user", "content": "x" * 400}]


def test_chat_facts_are_read() -> None:
    facts = facts_of(messages=MESSAGES, stream=True, max_tokens=5, max_completion_tokens=7, n=3, user="u")
    assert (facts.model, facts.stream, facts.max_tokens, facts.n, facts.user) == ("m", True, 7, 3, "u")
    assert facts.usage_addable and not facts.wants_usage
    assert 100 <= facts.num_prompt_tokens_estimate <= 110


def test_client_that_asks_for_usage_keeps_it() -> None:
    facts = facts_of(messages=MESSAGES, stream=True, stream_options={"include_usage": True})
    assert facts.wants_usage and not facts.usage_addable


@pytest.mark.parametrize("kind", [BodyKind.RESPONSES, BodyKind.MESSAGES])
def test_streams_that_always_tell_usage_get_none_added(kind: BodyKind) -> None:
    assert not facts_of(kind, stream=True).usage_addable


@pytest.mark.parametrize(
    ("prompt", "tokens", "n"),
    [("abcd" * 10, 10, 2), (["abcd"] * 3, 3, 6), ([7] * 50, 50, 2), ([[7] * 50, [8] * 5], 55, 4), ([], 0, 2)],
)
def test_completion_prompts_are_counted(prompt: Any, tokens: int, n: int) -> None:
    facts = facts_of(BodyKind.COMPLETIONS, prompt=prompt, n=2)
    assert (facts.num_prompt_tokens_estimate, facts.n, facts.max_tokens) == (tokens, n, 16)


def test_completion_without_limit_is_up_to_the_engine() -> None:
    assert facts_of(BodyKind.COMPLETIONS, prompt="x", max_tokens=None).max_tokens is None


def test_images_count_as_a_constant_and_not_by_their_bytes() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    facts = facts_of(messages=[{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}])
    assert 1000 <= facts.num_prompt_tokens_estimate < 1100


def test_tools_and_their_calls_count() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "a" * 400}}
    tool = {"type": "function", "function": {"name": "f", "description": "d" * 400}}
    facts = facts_of(messages=[{"role": "assistant", "tool_calls": [call]}], tools=[tool])
    assert facts.num_prompt_tokens_estimate >= 200


@pytest.mark.parametrize(
    ("kind", "fields", "least"),
    [
        (BodyKind.EMBEDDINGS, {"input": ["x" * 40] * 10}, 100),
        (BodyKind.POOLING, {"messages": MESSAGES}, 100),
        (BodyKind.RERANK, {"query": "q" * 40, "documents": ["d" * 40] * 10}, 200),
        (BodyKind.SCORE, {"text_1": "q" * 40, "text_2": ["d" * 40] * 10}, 200),
        (BodyKind.SCORE, {"queries": ["q" * 40] * 10, "documents": ["d" * 40] * 10}, 200),
        (BodyKind.TOKENIZE, {"prompt": "x" * 400}, 100),
        (BodyKind.DETOKENIZE, {"tokens": [1] * 100}, 100),
        (BodyKind.COUNT_TOKENS, {"messages": MESSAGES}, 100),
    ],
)
def test_what_generates_nothing_has_a_prompt_and_no_completion(kind: BodyKind, fields: Any, least: int) -> None:
    facts = facts_of(kind, **fields)
    assert least <= facts.num_prompt_tokens_estimate <= least * 1.1
    assert (facts.max_tokens, facts.n, facts.stream) == (0, 1, False)


def test_messages_and_responses_facts_are_read() -> None:
    messages = facts_of(BodyKind.MESSAGES, system="s" * 40, messages=MESSAGES, max_tokens=9, metadata={"user_id": "u"})
    assert (messages.max_tokens, messages.user) == (9, "u")
    assert messages.num_prompt_tokens_estimate >= 110
    items = [{"role": "user", "content": [{"type": "input_text", "text": "x" * 400}]}]
    responses = facts_of(BodyKind.RESPONSES, input=items, instructions="s" * 40, max_output_tokens=9)
    assert responses.max_tokens == 9
    assert responses.num_prompt_tokens_estimate >= 110


@given(st.sampled_from(JSON_KINDS), st.dictionaries(st.sampled_from(["messages", "prompt", "input", "system"]), VALUES))
def test_prompts_of_any_shape_are_measured_without_error(kind: BodyKind, fields: dict[str, str]) -> None:
    text = ",".join(['"model":"m"', *(f'"{name}":{value}' for name, value in fields.items())])
    assume(not has_duplicates("{" + text + "}"))
    assert read_facts(b"{%b}" % text.encode(), kind, refuse_fleet_fields=True).num_prompt_tokens_estimate >= 0


@pytest.mark.parametrize(
    "name",
    [
        *("kv_transfer_params", "ec_transfer_params", "vllm_xargs", "priority", "cache_salt", "request_id", "prior"),
        *("data_parallel_rank", "bootstrap_host", "longboat_anything"),
        *("custom_logit_processor", "custom_params"),
    ],
)
def test_fields_of_the_fleet_are_refused_from_clients_only(name: str) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES, name: None}
    with pytest.raises(BodyError) as caught:
        facts_of(**fields)
    assert (caught.value.code, caught.value.param) == ("fleet_field", name)
    assert facts_of(refuse=False, **fields).model == "m"


def test_salt_may_be_the_clients_where_nothing_keeps_tenants_apart() -> None:
    body = b'{"model":"m","cache_salt":"mine"}'
    assert read_facts(body, BodyKind.CHAT, refuse_fleet_fields=True, may_salt=True).model == "m"


@pytest.mark.parametrize(
    "fields",
    [
        *({"stream": 1}, {"stream": "true"}, {"max_tokens": "9"}, {"max_tokens": 9.0}, {"n": True}),
        {"stream": True, "stream_options": []},
        {"stream": True, "stream_options": {"include_usage": 1}},
    ],
)
def test_types_that_engines_would_read_in_their_own_way_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BodyError) as caught:
        facts_of(messages=MESSAGES, **fields)
    assert caught.value.code == "invalid_type"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BodyKind.CHAT, '"n":1000000000'),
        (BodyKind.CHAT, '"n":16385'),
        (BodyKind.COMPLETIONS, '"n":8193,"prompt":["a","b"]'),
        (BodyKind.BATCH, '"n":8193,"messages":[[],[]]'),
        (BodyKind.GENERATE, '"sampling_params":{"n":16385}'),
    ],
)
def test_more_choices_than_engines_make_are_refused(kind: BodyKind, text: str) -> None:
    with pytest.raises(BodyError) as caught:
        read_body(f'{{"model":"m",{text}}}'.encode(), kind, keyed=True, content_type=b"application/json")
    assert (caught.value.code, caught.value.param) == ("too_many_choices", "n")
    assert "16384" in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("num_choices", "kept"), [(128, True), (129, False)])
def test_no_tokens_are_kept_of_more_choices_than_an_event_id_counts(stream: bool, num_choices: int, kept: bool) -> None:
    facts = facts_of(messages=MESSAGES, n=num_choices, stream=stream)
    whole = whole_journal_of(facts)
    streamed = resume_state_of(facts, AnswerKind.OPENAI_EVENTS, None, seeds=True)
    assert ((whole or streamed) is not None) is kept


@pytest.mark.parametrize(
    ("model", "code"), [(None, "model_missing"), ("", "model_missing"), (3, "invalid_type"), (["m"], "invalid_type")]
)
def test_model_must_be_named(model: Any, code: str) -> None:
    with pytest.raises(BodyError) as caught:
        read_facts(orjson.dumps({"model": model}), BodyKind.CHAT, refuse_fleet_fields=True)
    assert (caught.value.code, caught.value.param) == (code, "model")


BODIES = st.tuples(
    SPACES, st.lists(VALUES, max_size=2), SPACES, st.sampled_from(["", ',"stream_options":{"x":1}', ',"cache_salt":""'])
).map(lambda t: f'{t[0]}{{{t[2]}"a":[{",".join(t[1])}],"mod\\u0065l" :"m","stream":true{t[3]}}}{t[0]}')


@given(BODIES, st.sampled_from(JSON_KINDS), st.none() | STRINGS, st.booleans(), st.none() | st.text("abc", min_size=1))
def test_spliced_body_is_the_old_document_with_exactly_the_change(
    text: str, kind: BodyKind, model: str | None, add_usage: bool, salt: str | None
) -> None:
    assume(not has_duplicates(text))
    facts = read_facts(text.encode(), kind, refuse_fleet_fields=False)
    wanted = json.loads(text)
    if model is not None:
        wanted["model"] = model
    if add_usage and facts.usage_addable:
        wanted["stream_options"] = {**wanted.get("stream_options", {}), "include_usage": True}
    if salt is not None and kind not in UNSALTED:
        wanted["cache_salt"] = salt
    spliced = splice(text.encode(), facts, model=model, add_usage=add_usage, cache_salt=salt)
    assert json.loads(spliced) == wanted
    assert not has_duplicates(spliced.decode())


def test_body_without_change_is_the_same_object() -> None:
    body = b' {"model":"m", "stream":true}'
    facts = read_facts(body, BodyKind.CHAT, refuse_fleet_fields=True)
    assert splice(body, facts, model="m", add_usage=False, cache_salt=None) is body


def test_new_members_leave_every_byte_after_them() -> None:
    body = b' {\n"model" : "m", "stream":true, "x": 1.000 }'
    facts = read_facts(body, BodyKind.CHAT, refuse_fleet_fields=True)
    spliced = splice(body, facts, model=None, add_usage=True, cache_salt="s")
    assert (
        spliced
        == b'{"stream_options":{"include_usage":true},"cache_salt":"s",\n"model" : "m", "stream":true, "x": 1.000 }'
    )


def test_values_keep_their_bytes_where_another_is_replaced() -> None:
    body = b'{"x": 12345678901234567890123.10, "model":"m", "s":"\\u00e9\\/"}'
    facts = read_facts(body, BodyKind.CHAT, refuse_fleet_fields=True)
    spliced = splice(body, facts, model="other", add_usage=True, cache_salt=None)
    assert spliced == b'{"x":12345678901234567890123.10,"model":"other","s":"\\u00e9\\/"}'


def test_continuous_usage_stays_off_where_it_was() -> None:
    body = b'{"model":"m","stream":true,"stream_options":{"continuous_usage_stats":true,"x":1}}'
    facts = read_facts(body, BodyKind.CHAT, refuse_fleet_fields=True)
    spliced = orjson.loads(splice(body, facts, model=None, add_usage=True, cache_salt=None))
    assert spliced["stream_options"] == {"x": 1, "include_usage": True}
