"""What an engine that tells nothing is taken to hold."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.routing.prefixes.placed import PlacedPrompts
from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt


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


class Twin:
    """The same in plain Python, with a dict from names to tokens."""

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.held: dict[bytes, int] = {}

    def sent(self, blocks: list[bytes], ends: Sequence[int], num_tokens: int) -> bytes:
        until = num_tokens
        for at in range(len(blocks) - 1, -1, -1):
            start = num_tokens * ends[at - 1] // ends[-1] if at else 0
            self.held.pop(blocks[at], 0)
            self.held[blocks[at]] = until - start
            until = start
        spare, gone = len(self.held) // 64, list[bytes]()
        while sum(self.held.values()) > self.capacity_tokens and len(self.held) > 1:
            gone.append(next(iter(self.held)))
            del self.held[gone[-1]]
        while gone and spare > 0 and len(self.held) > 1:
            spare -= 1
            gone.append(next(iter(self.held)))
            del self.held[gone[-1]]
        return b"".join(gone)

    def missed(self, blocks: list[bytes]) -> bytes:
        oldest = list(self.held)[: max(1, len(self.held) // 4)]
        gone = [name for name in oldest if name not in blocks]
        for name in gone:
            del self.held[name]
        return b"".join(gone)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 700), max_size=120),
            st.integers(0, 1 << 40) | st.integers(0, 3000),
            st.integers(1, 5000),
            st.booleans(),
        ),
        max_size=30,
    ),
    st.sampled_from((list, tuple, lambda ends: memoryview(array("I", ends)))),
    st.integers(1, 40_000),
)
@settings(max_examples=60)
def test_it_holds_what_the_twin_holds(
    sent: list[tuple[list[int], int, int, bool]], kind: Callable[[list[int]], Sequence[int]], capacity_tokens: int
) -> None:
    placed, twin = PlacedPrompts(capacity_tokens), Twin(capacity_tokens)
    for numbers, num_tokens, step, missed in sent:
        blocks = [at.to_bytes(8, "little") for at in numbers]
        ends = [step * at + 1 for at in range(len(blocks))]
        prompt = Prompt("k", num_tokens, blocks=b"".join(blocks), ends=kind(ends))
        assert placed.sent(prompt) == twin.sent(blocks, ends, num_tokens)
        if missed and num_tokens:
            assert placed.found(prompt, len(blocks), 0) == (twin.missed(blocks) if blocks else b"")
        assert placed.num_tokens == sum(twin.held.values())


def test_blocks_need_their_names() -> None:
    with pytest.raises(ValueError, match="more ends than blocks"):
        PlacedPrompts().sent(Prompt("k", 5, blocks=b"12345678", ends=[1, 2]))


def test_a_disappointment_takes_the_oldest_quarter_along() -> None:
    placed = PlacedPrompts(capacity_tokens=10_000)
    for talk in range(8):
        placed.sent(prompt(talk, 4))
    assert placed.found(prompt(7, 4), 4, 390) == b""
    assert placed.found(prompt(7, 4), 0, 0) == b""
    assert names(placed.found(prompt(7, 4), 4, 0)) == names(prompt(0, 4).blocks + prompt(1, 4).blocks)
