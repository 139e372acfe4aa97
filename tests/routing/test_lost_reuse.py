"""How much of what prompts repeat was evicted before."""

from __future__ import annotations

import random

import pytest

from longboat.routing.prefixes.lost_reuse import LostReuse


def names(seed: int, count: int) -> bytes:
    return random.Random(seed).randbytes(8 * count)


def test_repeated_blocks_that_no_replica_holds_are_lost() -> None:
    reuse = LostReuse()
    prompts = [names(seed, 400) for seed in range(50)]
    for blocks in prompts:
        reuse.note(blocks, 0)
    assert reuse.part == 0.0  # all of it was new
    for blocks in prompts:
        reuse.note(blocks, 300)
    assert reuse.part == pytest.approx(0.25, abs=0.05)
    for _ in range(100):
        for blocks in prompts:
            reuse.note(blocks, 400)
    assert reuse.part < 0.01  # long ago


def test_what_is_remembered_has_a_limit() -> None:
    reuse = LostReuse()
    for seed in range(1000):
        reuse.note(names(seed, 4000), 0)
    assert len(reuse._seen) == 32_768
    reuse.note(names(0, 4000), 0)
    assert reuse.part == 0.0  # that was forgotten
