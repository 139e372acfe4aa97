"""Runs a command below a small init process where the command is the first process of a container.

The kernel gives the first process every orphan to collect, and passes it no signal for which it has no handler:
SIGTERM would not end a command that has none. ``tini`` does the same for images that have it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

__all__ = ("run_below_init",)

_FIRST = 1
_PASSED_ON = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}
)


def run_below_init(pid: int | None = None) -> None:
    """Return in a child where this is the first process, which stays behind as init; else return at once.

    The first process ends when the command does, with its exit code, or 128 and the number of the signal that ended it.
    pid: of this process; None: the kernel's word
    """
    if (os.getpid() if pid is None else pid) != _FIRST:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # no signal is lost before there are handlers
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the command once: not from init as well
        _take_terminal()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: _pass_on(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _collect_until(child)


def _take_terminal() -> None:
    """Make the command's group the one that reads from the terminal, where there is one."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, before)


def _pass_on(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _collect_until(child: int) -> NoReturn:
    """Collect every process that ends, and end with the command."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
