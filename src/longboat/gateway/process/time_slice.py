"""Requests a short EEVDF time slice, so that this thread runs soon after it wakes.

Since Linux 6.12 a thread of the ordinary class may name its time slice; threads with a shorter one run earlier
(https://docs.kernel.org/scheduler/sched-eevdf.html). The thread's share of the CPU stays the same. Older kernels take
the call and change nothing. Threads and processes that the thread starts later inherit the slice.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

__all__ = ("TIME_SLICE_NS", "request_short_time_slice", "time_slice_ns")

TIME_SLICE_NS = 100_000
"""The shortest slice that Linux grants; its default is about 3 ms."""

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr, which the C library does not offer."""

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr``: size, policy, flags, nice, priority, and nanoseconds: runtime, deadline, period."""


def request_short_time_slice(nanoseconds: int = TIME_SLICE_NS) -> bool:
    """Set the slice of the calling thread. Return False outside Linux, x86-64 and arm64, or the ordinary class."""
    if not _is_known() or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
    return _call(_CALLS[platform.machine()][0], 0, ctypes.create_string_buffer(wanted), 0) == 0


def time_slice_ns() -> int | None:
    """Return the slice of the calling thread; None where it is unknown, 0 on a kernel that does not grant any."""
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
