"""Finds in vLLM's log why an engine did not start: the process that failed wrote it before the last lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ("cause_in",)

ELSEWHERE = re.compile(r"See (root cause above|stack trace for root cause)")
SHOWN_LINES = 8
# (EngineCore pid=7) ERROR 11-22 23:56:45 [core.py:1510] ValueError: No available memory …
ERROR_LINE = re.compile(r"\(((?!APIServer)[^)]+ pid=\d+)\) ERROR \S+ \S+ \[[^\]]+\] (.*)")
RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")
WORKER = "Worker"


def cause_in(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the end of the traceback that the last lines refer to; empty where they refer to none.

    The core of an engine with several ranks refers in turn to a worker: the first one that failed tells why.
    """
    if not any(ELSEWHERE.search(line) for line in lines[-SHOWN_LINES:]):
        return ()
    texts: dict[str, list[str]] = {}  # process → its errors
    for found in filter(None, map(ERROR_LINE.search, lines)):
        texts.setdefault(found[1], []).append(found[2])
    for process in sorted(texts, key=lambda process: process.startswith(WORKER)):
        told = texts[process]
        raised = [index for index, text in enumerate(told) if RAISED.match(text)]
        if raised and not ELSEWHERE.search(told[raised[-1]]):
            return tuple(told[max(0, raised[-1] - SHOWN_LINES + 1) : raised[-1] + 1])
    return ()
