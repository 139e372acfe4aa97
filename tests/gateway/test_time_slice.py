"""A gateway asks for short turns, and keeps its priority."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from longboat.gateway.process.time_slice import time_slice_ns

pytestmark = pytest.mark.skipif(time_slice_ns() is None, reason="this system does not report time slices")

ASK = """
import os, threading
from longboat.gateway.process.time_slice import request_short_time_slice, time_slice_ns
os.nice(3)
before = time_slice_ns()
print(request_short_time_slice(), before, time_slice_ns(), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
"""


def test_turns_are_short_and_the_priority_stays() -> None:
    """In a process of its own: there is no way back but to ask again."""
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=True)
    took, before, after, nice, scheduler = done.stdout.split()
    assert took == "True"
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12):
        assert int(after) == 100_000 < int(before)
    assert int(nice) == os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert int(scheduler) == os.SCHED_OTHER


def test_other_classes_are_left_alone() -> None:
    code = ASK.replace("os.nice(3)", "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("False")
    assert done.stdout.split()[-1] == str(os.SCHED_BATCH)
