"""Tests that the fake engine's KV memory never holds more than its size, and its events mirror its contents."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from longboat_fake.engine.blocks import BlockPool, BlockStored, KvEvent, Reservation, block_hashes


def test_hashes_follow_the_published_recipe() -> None:
    # cbor2.dumps("vllm-none-hash") and cbor2.dumps([root, [1, 300], None]), written out
    root = sha256(b"\x6evllm-none-hash").digest()
    expected = sha256(b"\x83\x58\x20" + root + b"\x82\x01\x19\x01\x2c" + b"\xf6").digest()
    assert block_hashes((1, 300, 7), 2) == (expected,)


def test_equal_prefixes_share_blocks_and_hits_are_counted() -> None:
    pool = BlockPool(num_blocks=8, block_tokens=4)
    prompt = tuple(range(8))
    first, second = pool.reserve(prompt, 12), pool.reserve(prompt, 12)
    assert first is not None and second is not None
    assert (first.cached_tokens, second.cached_tokens) == (0, 4)  # the last token is always computed
    assert pool.used_ratio == 4 / 8


def test_a_request_that_does_not_fit_waits_until_another_ends() -> None:
    pool = BlockPool(num_blocks=4, block_tokens=4)
    first = pool.reserve(tuple(range(8)), 16)
    assert first is not None
    assert pool.reserve((90, 91), 4) is None
    pool.release(first, tuple(range(16)))
    assert pool.used_ratio == 0
    assert pool.reserve((90, 91), 4) is not None


@given(st.data())
def test_events_tell_exactly_what_is_cached(data: st.DataObject) -> None:
    known: set[bytes] = set()

    def follow(event: KvEvent) -> None:
        known.update(event.hashes) if isinstance(event, BlockStored) else known.difference_update(event.hashes)

    pool = BlockPool(num_blocks=6, block_tokens=2, on_event=follow)
    running: list[tuple[Reservation, tuple[int, ...]]] = []
    for _step in range(data.draw(st.integers(1, 25))):
        if running and data.draw(st.booleans()):
            reservation, tokens = running.pop(data.draw(st.integers(0, len(running) - 1)))
            pool.release(reservation, tokens)
        else:
            prompt = tuple(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=6)))
            answer = tuple(data.draw(st.lists(st.integers(0, 1), max_size=4)))
            taken = pool.reserve(prompt, len(prompt) + len(answer))
            if taken is not None:
                running.append((taken, prompt + answer))
        assert 0 <= pool.used_ratio <= 1
        assert known == set(pool._held) | set(pool._idle)
        assert len(known) + pool._num_private <= pool.num_blocks
