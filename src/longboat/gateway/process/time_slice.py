"""Asks Linux to let this thread run soon after something arrived for it, beside programs that compute for long.

Since Linux 6.12 a thread of the ordinary class may name the length of its turns; shorter turns come earlier
(https://docs.kernel.org/scheduler/sched-eevdf.html). Its part of the CPU stays the same. Older kernels take the call
and change nothing. Threads and processes that it starts later have it too.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

__all__ = ("TURN_NS", "ask_for_short_turns", "turn_ns")

TURN_NS = 100_000
"""The shortest that Linux grants; its own are about 3 ms."""

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr, which the C library does not offer."""

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr``: size, policy, flags, nice, priority, and nanoseconds: runtime, deadline, period."""


def ask_for_short_turns(nanoseconds: int = TURN_NS) -> bool:
    """For the calling thread. False where this is not Linux, an unknown processor, or another scheduling class."""
    if not _is_known() or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
    return _call(_CALLS[platform.machine()][0], 0, ctypes.create_string_buffer(wanted), 0) == 0


def turn_ns() -> int | None:
    """What the calling thread has; None where nobody can say, 0 on a kernel that does not grant any."""
    if not _is_known():
        return None
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if _call(_CALLS[platform.machine()][1], 0, found, _ATTRIBUTES.size, 0) != 0:
        return None
    return int(_ATTRIBUTES.unpack(found.raw)[5])


def _is_known() -> bool:
    return sys.platform == "linux" and platform.machine() in _CALLS


def _call(*words: object) -> int:
    try:
        return int(ctypes.CDLL(None).syscall(*words))
    except (OSError, AttributeError, ctypes.ArgumentError):
        return -1
