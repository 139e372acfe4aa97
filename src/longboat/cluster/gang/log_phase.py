"""Follows an engine's log for the phases of its start, and stops where no later phase can come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from longboat.core.states import Phase

__all__ = ("follow_phases",)

FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.1, 2.0, 1.05
"""A start of a second is seen in its parts, and one of an hour costs a look every two seconds."""

LAST = Phase.WARMING
"""The last phase that a log can tell of: whether the engine serves is found out by asking it."""


async def follow_phases(
    log: Path, phase_of: Callable[[str], Phase | None], on_phase: Callable[[Phase], None], is_over: Callable[[], bool]
) -> None:
    """Read ``log`` as it grows and call ``on_phase`` with each phase found, until the last one came or ``is_over``.

    phase_of: the phase that a line of the log tells of, if any
    """
    position, pause_s = 0, FIRST_PAUSE_S
    while not is_over():
        text, position = await asyncio.to_thread(_read_from, log, position)
        found = [phase for line in text.splitlines() if (phase := phase_of(line)) is not None]
        for phase in found:
            on_phase(phase)
        if LAST in found:
            return
        pause_s = FIRST_PAUSE_S if found else min(pause_s * GROWTH, LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)


def _read_from(path: Path, position: int) -> tuple[str, int]:
    """Return the whole lines from ``position`` on, and where the next one begins."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(1 << 20)
    except FileNotFoundError:
        return "", position
    whole = data.rfind(b"\n") + 1
    return data[:whole].decode(errors="replace"), position + whole
