"""The fast index of prefixes against the plain one, alone and with several processes in one table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.prefixes.index import DictIndex
from longboat.routing.prefixes.prompt import BLOCK_BYTES
from longboat.routing.prefixes.shared_index import SharedIndex

SLOTS = 130
CHAINS = [b"".join((1000 * chain + at).to_bytes(8, "little") for at in range(12)) for chain in range(1, 5)]
PREFIXES = st.builds(lambda chain, depth: chain[: depth * BLOCK_BYTES], st.sampled_from(CHAINS), st.integers(0, 12))
SLOT = st.one_of(st.integers(0, 3), st.sampled_from((63, 64, 127, 128, SLOTS - 1)))
STEPS = st.lists(st.tuples(st.sampled_from(("place", "place", "remove", "clear", "drop", "tidy")), SLOT, PREFIXES))


def done(index: DictIndex | SharedIndex, step: str, slot: int, blocks: bytes) -> None:
    if step == "place":
        index.place(slot, blocks)
    elif step == "remove":
        index.remove(slot, blocks[-2 * BLOCK_BYTES :])
    elif step == "clear":
        index.clear(slot)
    elif step == "drop":
        index.drop(slot)
    elif isinstance(index, SharedIndex):
        index.tidy()


@given(steps=STEPS)
def test_it_says_what_the_plain_index_says(steps: list[tuple[str, int, bytes]]) -> None:
    fast, plain = SharedIndex(max_bytes=1 << 20, max_slots=SLOTS), DictIndex()
    for step, slot, blocks in steps:
        done(fast, step, slot, blocks)
        done(plain, step, slot, blocks)
        for chain in CHAINS:
            assert fast.depths(chain, SLOTS) == plain.depths(chain, SLOTS)
    assert len(fast) == len(plain)


def test_its_memory_is_bounded_and_the_blocks_that_are_used_stay() -> None:
    index = SharedIndex(max_bytes=256 * 1024, max_slots=64)
    hot = os.urandom(20 * BLOCK_BYTES)
    for _ in range(400):
        index.place(1, hot)
        index.place(0, os.urandom(100 * BLOCK_BYTES))
    assert len(index) <= index.max_blocks
    assert len(index) > index.max_blocks * 0.9
    assert index.max_bytes <= 256 * 1024
    assert index.depths(hot, 2)[1] == 20


def test_blocks_that_a_replica_lost_make_room_before_those_that_are_held() -> None:
    index = SharedIndex(max_bytes=64 * 1024, max_slots=64)
    held = os.urandom(BLOCK_BYTES * (index.max_blocks // 4))
    index.place(0, held)
    for _ in range(50):
        lost = os.urandom(BLOCK_BYTES * (index.max_blocks // 8))
        index.place(1, lost)
        index.remove(1, lost)
    kept = sum(index.depths(held[at : at + BLOCK_BYTES], 1)[0] for at in range(0, len(held), BLOCK_BYTES))
    assert kept > index.max_blocks // 4 * 0.85


def test_processes_that_share_a_file_agree_on_slots_and_see_each_others_blocks(tmp_path: Path) -> None:
    path = str(tmp_path / "prefixes.index")
    one, two = SharedIndex(1 << 20, 128, path), SharedIndex(1 << 20, 128, path)
    assert [one.slot_of("a"), two.slot_of("b"), two.slot_of("a"), one.slot_of("b")] == [0, 1, 0, 1]
    one.place(0, CHAINS[0])
    assert two.depths(CHAINS[0], 2) == [12, 0]
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_late_word_of_one_process_does_not_reach_the_slots_next_owner(tmp_path: Path) -> None:
    path = str(tmp_path / "prefixes.index")
    one, two = SharedIndex(1 << 20, 64, path), SharedIndex(1 << 20, 64, path)
    slots = [one.slot_of(f"r{n}") for n in range(64)]
    assert [two.slot_of(f"r{n}") for n in range(64)] == slots
    with pytest.raises(IndexError, match="all 64 slots"):
        one.slot_of("one more")
    one.drop(7)
    assert one.slot_of("new") == 7
    one.place(7, CHAINS[0])
    two.place(7, CHAINS[1])  # it still means r7
    two.drop(7)
    assert one.depths(CHAINS[0], 8)[7] == 12
    assert one.depths(CHAINS[1], 8)[7] == 0
    assert two.slot_of("new") == 7


def test_a_freed_slot_rests_longest() -> None:
    index = SharedIndex(1 << 20, 64)
    first = index.slot_of("first")
    index.drop(first)
    assert index.slot_of("second") != first
    assert index.slot_of("first") not in (first, index.slot_of("second"))


_WRITER = """
import random, sys
from longboat.routing.prefixes.shared_index import SharedIndex
index = SharedIndex(1 << 22, 64, sys.argv[1])
slot, draw = int(sys.argv[2]), random.Random(int(sys.argv[2]))
own = [random.Random(1000 + n).randbytes(80) for n in range(200)]
for _ in range(30000):
    chain = own[draw.randrange(200)]
    depth = 8 * draw.randrange(1, 11)
    (index.place if draw.random() < 0.6 else index.remove)(slot, chain[:depth])
index.clear(slot)
index.place(slot, own[slot])
"""


def test_processes_write_at_once_and_what_each_wrote_last_holds(tmp_path: Path) -> None:
    path = str(tmp_path / "prefixes.index")
    index = SharedIndex(1 << 22, 64, path)
    command = [sys.executable, "-c", _WRITER, path]
    writers = [subprocess.Popen([*command, str(slot)], cwd=tmp_path) for slot in range(4)]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0, 0]
    import random

    chains = [random.Random(1000 + n).randbytes(80) for n in range(200)]
    for at, chain in enumerate(chains):
        assert index.depths(chain, 4) == [10 if slot == at else 0 for slot in range(4)]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((100, 64), "max_bytes is 100; the least is"),
        ((1 << 20, 0), "max_slots is 0; it may be 1 to 1024"),
        ((1 << 20, 1025), "max_slots is 1025; it may be 1 to 1024"),
    ],
)
def test_sizes_that_cannot_work_are_refused(sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SharedIndex(*sizes)


def test_a_file_of_another_size_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "prefixes.index"
    path.write_bytes(b"something else")
    with pytest.raises(FileExistsError):
        SharedIndex(1 << 20, 64, str(path))
    assert path.read_bytes() == b"something else"
    SharedIndex(1 << 20, 64, str(tmp_path / "other"))
    with pytest.raises((ValueError, FileExistsError)):
        SharedIndex(1 << 20, 256, str(tmp_path / "other"))


def test_slots_and_names_that_do_not_exist_are_refused() -> None:
    index = SharedIndex(1 << 20, 64)
    with pytest.raises(IndexError, match="slot 64: the index has the slots 0 to 63"):
        index.place(64, CHAINS[0])
    with pytest.raises(ValueError, match="names are of 8 bytes each, and these are 7 bytes"):
        index.place(0, b"1234567")
