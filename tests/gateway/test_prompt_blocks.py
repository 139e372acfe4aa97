"""Names of a prompt's blocks: the C pass against its twin, and what prompts share."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import prefix_twin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.api.prompt_blocks import prompt_blocks
from longboat.gateway.native.prefix_names import prefix_names

FIELDS = (b"tools", b"system", b"messages", b"prompt")
TEXT = st.one_of(
    st.text(max_size=40),
    st.text(alphabet='"\\/\n\tüдз中🐎a ', max_size=700),
    st.integers(0, 2000).map(lambda size: random.Random(size).randbytes(size).hex()[:size]),
    st.integers(1000, 1050).map(lambda size: "data:" + "x" * size),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(("data", "content", "role")), st.text(max_size=5)), inner, max_size=4
        ),
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from(("model", "tools", "system", "messages", "prompt", "data", "x")), VALUES)
STYLES = st.sampled_from(((",", ":"), (", ", ": "), (" ,\n\t", " :\r\n ")))


def decoded(found: tuple[bytes, tuple[int, ...]] | None) -> tuple[list[int], list[int]] | None:
    return None if found is None else (list(memoryview(found[0]).cast("Q")), list(found[1]))


@given(document=DOCUMENTS, style=STYLES, seed=st.binary(max_size=60))
def test_it_names_what_its_twin_names_however_the_body_is_spaced(
    document: dict[str, Any], style: tuple[str, str], seed: bytes
) -> None:
    body = json.dumps(document, separators=style).encode()
    assert decoded(prefix_names(body, FIELDS, seed)) == prefix_twin.names_of(document, FIELDS, seed)


@given(sizes=st.lists(st.integers(0, 120), max_size=40), big=st.integers(0, 3_000_000))
def test_long_prompts_get_longer_blocks(sizes: list[int], big: int) -> None:
    document = {
        "messages": [{"content": "b" * (big if big % 7 == 0 else 0)}, *({"content": "a" * n} for n in sizes * 40)]
    }
    body = json.dumps(document).encode()
    assert decoded(prefix_names(body, FIELDS, b"s")) == prefix_twin.names_of(document, FIELDS, b"s")


@given(body=st.one_of(st.binary(max_size=200), st.text(alphabet='{}[]",:\\ almstrue0tn"', max_size=80).map(str.encode)))
def test_nothing_that_is_sent_breaks_it(body: bytes) -> None:
    found = prefix_names(body, FIELDS, b"")
    assert found is None or len(found[0]) == 8 * len(found[1])


@given(document=DOCUMENTS, data=st.data())
def test_a_body_that_breaks_off_is_none(document: dict[str, Any], data: st.DataObject) -> None:
    body = json.dumps(document).encode()
    assert prefix_names(body[: data.draw(st.integers(0, len(body) - 1))], FIELDS, b"") is None


def chat(*messages: str, **more: Any) -> bytes:
    roles = ("system", "user", "assistant")
    told = [{"role": roles[at % 3], "content": text} for at, text in enumerate(messages)]
    return json.dumps({"model": "m", "messages": told, **more}).encode()


def shared(one: bytes, two: bytes, kind: BodyKind = BodyKind.CHAT, seeds: tuple[bytes, bytes] = (b"", b"")) -> int:
    first, second = (bytes(prompt_blocks(body, kind, seed)[0]) for body, seed in zip((one, two), seeds, strict=True))
    names = list(zip(memoryview(first).cast("Q"), memoryview(second).cast("Q"), strict=False))
    return next((at for at, (a, b) in enumerate(names) if a != b), len(names))


TOPICS = [random.Random(n).randbytes(400).hex() for n in range(6)]


def test_the_next_turn_of_a_conversation_shares_every_block_of_the_turn_before() -> None:
    one, two = chat(*TOPICS[:3]), chat(*TOPICS[:5])
    names, _ = prompt_blocks(one, BodyKind.CHAT, b"")
    assert shared(one, two) == len(names) // 8 > 3


def test_what_comes_after_a_change_has_other_names() -> None:
    one = chat(*TOPICS[:4])
    assert (
        shared(one, chat(TOPICS[0], TOPICS[1] + "?", *TOPICS[2:4]))
        < len(prompt_blocks(one, BodyKind.CHAT, b"")[0]) // 8
    )
    assert shared(one, chat("You", *TOPICS[1:4])) == 0
    assert shared(one, chat(*TOPICS[:4], chat_template="x")) == 0
    assert shared(one, chat(*TOPICS[:4], tools=[{"type": "function"}])) == 0


def test_what_does_not_make_the_prompt_does_not_count() -> None:
    one = chat(*TOPICS[:4])
    names = len(prompt_blocks(one, BodyKind.CHAT, b"")[0]) // 8
    assert shared(one, chat(*TOPICS[:4], temperature=1, stream=True, user="u", tools=[])) == names
    again = json.dumps({"stop": ["a"], **json.loads(one)}, separators=(",", ":")).encode()
    assert shared(one, again) == names


def test_tenants_and_adapters_share_nothing() -> None:
    assert shared(chat(*TOPICS), chat(*TOPICS), seeds=(b"one", b"two")) == 0


def test_an_image_counts_by_its_bytes_and_weighs_what_an_image_weighs() -> None:
    def looks_at(image: bytes) -> bytes:
        url = "data:image/png;base64," + base64.b64encode(image).decode()
        parts = [{"type": "text", "text": TOPICS[0]}, {"type": "image_url", "image_url": {"url": url}}]
        return json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()

    one, other = looks_at(b"1" * 90_000), looks_at(b"1" * 89_999 + b"2")
    names, ends = prompt_blocks(one, BodyKind.CHAT, b"")
    assert len(names) // 8 < 4
    assert ends[-1] < 6000
    assert shared(one, one) == len(names) // 8
    assert shared(one, other) < len(names) // 8


def test_token_ids_and_texts_are_prompts() -> None:
    ids = list(range(10_000, 12_000))
    one = json.dumps({"model": "m", "prompt": ids}).encode()
    longer = json.dumps({"model": "m", "prompt": [*ids, *ids]}).encode()
    assert shared(one, longer, BodyKind.COMPLETIONS) >= len(prompt_blocks(one, BodyKind.COMPLETIONS, b"")[0]) // 8 - 1
    assert prompt_blocks(json.dumps({"token_ids": ids}).encode(), BodyKind.GENERATE, b"")[0]
    assert prompt_blocks(json.dumps({"inputs": "text"}).encode(), BodyKind.TGI, b"")[0]


def test_requests_of_several_prompts_and_of_none_have_no_blocks() -> None:
    for prompt in (["a", "b"], [[1], [2]], []):
        names, ends = prompt_blocks(json.dumps({"prompt": prompt}).encode(), BodyKind.COMPLETIONS, b"")
        assert (names, len(ends)) == (b"", 0)
    assert prompt_blocks(b"--boundary", BodyKind.FORM, b"") == (b"", ())
    assert prompt_blocks(json.dumps({"input": "a"}).encode(), BodyKind.EMBEDDINGS, b"") == (b"", ())


def test_keys_with_escapes_are_read_too() -> None:
    plain = chat(*TOPICS[:3])
    escaped = plain.replace(b'"messages"', rb'"mess\u0061ges"')
    assert prompt_blocks(escaped, BodyKind.CHAT, b"")[0]


@pytest.mark.parametrize("kind", [BodyKind.RESPONSES, BodyKind.MESSAGES])
def test_instructions_come_before_messages_wherever_they_stand(kind: BodyKind) -> None:
    first = {"instructions": TOPICS[0], "input": TOPICS[1], "system": TOPICS[2], "messages": [{"role": "user"}]}
    one = json.dumps(first).encode()
    two = json.dumps(dict(reversed(first.items()))).encode()
    assert shared(one, two, kind) == len(prompt_blocks(one, kind, b"")[0]) // 8
