"""What an engine that tells nothing is taken to hold."""

from __future__ import annotations

from hypothesis import given
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


def test_a_disappointment_takes_the_oldest_quarter_along() -> None:
    placed = PlacedPrompts(capacity_tokens=10_000)
    for talk in range(8):
        placed.sent(prompt(talk, 4))
    assert placed.found(prompt(7, 4), 4, 390) == b""
    assert placed.found(prompt(7, 4), 0, 0) == b""
    assert names(placed.found(prompt(7, 4), 4, 0)) == names(prompt(0, 4).blocks + prompt(1, 4).blocks)
