"""The forked side of the warm parent: turns a copy of the parent into the worker that Ray ordered."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path

from longboat.cluster.workers.fork_request import ForkRequest

__all__ = ("become_worker", "take_place")

_M_ARENA_MAX = -8  # in glibc's malloc.h


def take_place(request: ForkRequest, streams: Sequence[int]) -> None:
    """Take the place of the process that Ray started: its output, group, folder, and score for the kernel."""
    for signal_number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
    if request.leads_group:
        os.setpgid(0, 0)
    Path("/proc/self/oom_score_adj").write_text(request.oom_score, encoding="ascii")
    os.chdir(request.cwd)


def become_worker(request: ForkRequest, script: str, code: types.CodeType) -> None:
    """Run Ray's script for workers as if the interpreter had been started with it.

    code: the compiled script; every fork runs the same
    """
    tempfile.tempdir = None
    _renew_randomness()
    _share_one_heap()
    sys.argv = [script, *request.argv]
    sys.path[0] = os.path.dirname(script)
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    exec(code, main.__dict__)  # noqa: S102 as the interpreter does with a script


def _share_one_heap() -> None:
    """Have all threads allocate from one heap: by default, each of Ray's thirty has one of its own, mostly empty.

    The programs that this process starts do not inherit this, as they would a variable.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _renew_randomness() -> None:
    """Draw new seeds: identifiers must differ between forks."""
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(int.from_bytes(os.urandom(4), "big"))
    if multiprocessing := sys.modules.get("multiprocessing"):
        multiprocessing.current_process().authkey = os.urandom(32)
