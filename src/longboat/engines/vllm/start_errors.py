"""Finds in vLLM's log why an engine did not start: the process that failed wrote it before the last lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ("cause_in",)

ELSEWHERE = "See root cause above"
SHOWN_LINES = 8
# (EngineCore pid=7) ERROR 11-22 23:56:45 [core.py:1510] ValueError: No available memory …
ERROR_LINE = re.compile(r"\((?!APIServer)[^)]+ pid=\d+\) ERROR \S+ \S+ \[[^\]]+\] (.*)")
RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")


def cause_in(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the end of the traceback that the last lines refer to; empty where they refer to none."""
    if not any(ELSEWHERE in line for line in lines[-SHOWN_LINES:]):
        return ()
    texts = [found[1] for line in lines if (found := ERROR_LINE.search(line))]
    raised = [index for index, text in enumerate(texts) if RAISED.match(text)]
    return tuple(texts[max(0, raised[-1] - SHOWN_LINES + 1) : raised[-1] + 1]) if raised else ()
