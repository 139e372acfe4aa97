"""What an engine that tells nothing is taken to hold."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.prefixes.placed import PlacedPrompts
from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt
from longboat.routing.prefixes.shared_index import use_blocks


def prompt(talk: int, num_blocks: int) -> Prompt:
    blocks = b"".join((1000 * talk + at).to_bytes(8, "little") for at in range(num_blocks))
    return Prompt("k", 100 * num_blocks, blocks=blocks, ends=range(1, num_blocks + 1))


def names(data: bytes) -> set[bytes]:
    return {data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)}


def test_the_end_of_the_oldest_prompt_goes_first() -> None:
    placed = PlacedPrompts(capacity_tokens=1000)
    assert placed.sent(prompt(1, 5)) == b""
    assert placed.sent(prompt(2, 4)) == b""
    assert placed.num_tokens == 900
    assert placed.sent(prompt(3, 3)) == prompt(1, 5).blocks[-8:] + prompt(1, 5).blocks[-16:-8]


def test_a_prompt_that_is_sent_again_stays() -> None:
    placed = PlacedPrompts(capacity_tokens=1000)
    for talk in (1, 2, 1, 3):
        gone = placed.sent(prompt(talk, 4))
    assert names(gone) == names(prompt(2, 4).blocks[16:])


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12))))
def test_it_never_holds_more_than_the_cache_and_names_what_goes(sent: list[tuple[int, int]]) -> None:
    placed, held = PlacedPrompts(capacity_tokens=1500), set[bytes]()
    for talk, num_blocks in sent:
        held |= names(prompt(talk, num_blocks).blocks)
        held -= names(placed.sent(prompt(talk, num_blocks)))
        assert placed.num_tokens == 100 * len(held) <= 1500


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 1 << 40), st.integers(1, 5000))),
    st.sampled_from((list, tuple, lambda ends: memoryview(array("I", ends)))),
)
def test_blocks_are_used_from_the_end_to_the_beginning(
    sent: list[tuple[list[int], int, int]], kind: Callable[[list[int]], Sequence[int]]
) -> None:
    held: dict[bytes, int] = {}
    wanted: dict[bytes, int] = {}
    for blocks, num_tokens, step in sent:
        ends, until, before = [step * at + 1 for at in range(len(blocks))], num_tokens, sum(wanted.values())
        for at in range(len(blocks) - 1, -1, -1):
            name = blocks[at].to_bytes(8, "little")
            start = num_tokens * ends[at - 1] // ends[-1] if at else 0
            wanted.pop(name, 0)
            wanted[name] = until - start
            until = start
        change = use_blocks(held, b"".join(at.to_bytes(8, "little") for at in blocks), kind(ends), num_tokens)
        assert change == sum(wanted.values()) - before
        assert list(held.items()) == list(wanted.items())


def test_blocks_need_their_names() -> None:
    with pytest.raises(ValueError, match="more ends than blocks"):
        use_blocks({}, b"12345678", [1, 2], 5)


def test_a_disappointment_takes_the_oldest_quarter_along() -> None:
    placed = PlacedPrompts(capacity_tokens=10_000)
    for talk in range(8):
        placed.sent(prompt(talk, 4))
    assert placed.found(prompt(7, 4), 4, 390) == b""
    assert placed.found(prompt(7, 4), 0, 0) == b""
    assert names(placed.found(prompt(7, 4), 4, 0)) == names(prompt(0, 4).blocks + prompt(1, 4).blocks)
