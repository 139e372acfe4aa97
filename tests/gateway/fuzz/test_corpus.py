"""Every input of the corpus gets the answer that its name says, or a close; the engine sees whole requests only."""

from __future__ import annotations

from pathlib import Path

import pytest
from arena import CORPUS, Arena, Played, check_engine_saw_only_whole_requests, check_nothing_is_left
from seeds import seeds

FILES = sorted(CORPUS.glob("*.http"))


def expected_of(name: str) -> list[str] | None:
    """What the name promises: statuses in order; None: anything."""
    first = name.partition(".")[0]
    return None if first == "any" else [part for part in first.split("+") if part != "none"]


def fits(promise: str, status: int) -> bool:
    return 400 <= status < 600 and status != 500 if promise == "4xx5xx" else status == int(promise)


def check_promise(name: str, played: Played) -> None:
    promised = expected_of(name)
    if promised is None:
        return
    assert len(played.statuses) == len(promised), played.statuses
    assert all(fits(*pair) for pair in zip(promised, played.statuses, strict=True)), played.statuses
    assert len(played.seen) == played.statuses.count(200) - played.raw.count(b'{"alive":true}')


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("step", [0, 1], ids=["at-once", "in-bytes"])
def test_corpus_file_gets_what_its_name_says(arena: Arena, file: Path, step: int) -> None:
    data = file.read_bytes()
    if step and len(data) > 4000:
        step = max(1, len(data) // 500)
    pieces = [data[at : at + step] for at in range(0, len(data), step)] if step else [data]
    played = arena.play(pieces, answers=len(expected_of(file.stem) or ()))
    check_promise(file.stem, played)
    check_engine_saw_only_whole_requests(played)
    check_nothing_is_left(arena, played)


def test_corpus_files_are_the_seeds_and_what_fuzzers_found() -> None:
    written = {file.stem: file.read_bytes() for file in FILES if not file.stem.startswith("any.")}
    assert written == dict(seeds())
