"""Tests that the fake engine's tokens depend on prompt and position only, and stop strings never leak."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat_fake.engine.tokens import VOCABULARY, StopFilter, encode, natural_length, piece, prompt_digest, token_at


def test_tokens_depend_on_prompt_position_and_choice() -> None:
    one, other = prompt_digest(encode("row the boat")), prompt_digest(encode("row the ship"))
    first = [token_at(one, position) for position in range(50)]
    assert first == [token_at(one, position) for position in range(50)]
    assert first != [token_at(other, position) for position in range(50)]
    assert first != [token_at(one, position, choice=1) for position in range(50)]
    assert len(set(first)) > 20


def test_digest_and_tokens_are_the_same_on_every_machine() -> None:
    digest = prompt_digest((1, 2, 3))
    assert digest == 0xF4D62952D2A3EE72
    assert [token_at(digest, position) for position in range(5)] == [123, 89, 13, 53, 128]


def test_vocabulary_has_no_word_twice_and_many_multi_byte_words() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    assert sum(1 for word in VOCABULARY if not word.isascii()) >= len(VOCABULARY) // 4


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), min_size=1, max_size=40))
def test_generated_text_encodes_to_the_ids_it_came_from(ids: list[int]) -> None:
    assert list(encode("".join(piece(token, at) for at, token in enumerate(ids)))) == ids


@given(st.integers(0, 2**64 - 1))
def test_natural_length_is_bounded(digest: int) -> None:
    assert 16 <= natural_length(digest) < 80


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_stop_filter_lets_no_stop_string_out_and_holds_nothing_else_back(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    ends = [at for stop in stops if (at := whole.find(stop)) >= 0]
    filtered = StopFilter(tuple(stops))
    out = "".join(filtered.feed(text) for text in pieces) + filtered.flush()
    assert whole.startswith(out)
    assert all(stop not in out for stop in stops)
    assert (filtered.matched is None) == (not ends)
    if not ends:
        assert out == whole
