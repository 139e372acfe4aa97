"""Coverage-guided fuzzing of the gateway's HTTP edge, for hours: ``make fuzz`` (needs ``atheris``; Linux).

Inputs are raw client bytes, so the corpus is where it starts. What it finds joins the corpus as ``any.NAME.http``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zlib import crc32

import atheris

sys.path[:0] = [str(Path(__file__).parent)]

with atheris.instrument_imports(include=["longboat.gateway", "longboat.routing"]):
    from arena import Arena, check_nothing_is_left

ARENA: Arena | None = None


def pieces_of(data: bytes) -> list[bytes]:
    """The input cut in up to four, at places that follow from its bytes."""
    mixed = crc32(data)
    places = sorted({(mixed >> shift) % (len(data) + 1) for shift in (0, 8, 16)}) if mixed % 3 else []
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


def one_input(data: bytes) -> None:
    """Raises AssertionError or TimeoutError where the gateway did what it must not do."""
    global ARENA  # made after the fuzzer has set itself up
    if ARENA is None:
        ARENA = Arena(head_timeout_s=0.5, body_timeout_s=0.5)
    played = ARENA.play(pieces_of(data))
    assert played.raw == b"" or played.raw.startswith(b"HTTP/1.1 "), played.raw[:200]
    check_nothing_is_left(ARENA, played)
    for seen in played.seen:
        head = seen.head.lower()
        assert head.count(b"\r\ncontent-length:") == 1, head
        assert b"\r\ntransfer-encoding:" not in head, head


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
