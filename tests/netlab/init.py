"""The first process of a lab host: reaps what is orphaned, and ends, with the whole host, when its owner is gone.

usage: init.py CONTROL_FD NAME [FOLDER]

CONTROL_FD is one end of a socket pair whose other end only the owner holds. NAME is the host's name. FOLDER is
removed at the end.
Runs alone, with the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time

_KILL_DEADLINE_S = 5.0


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_everything() -> None:
    """SIGKILL all processes of this PID namespace and wait until they are gone."""
    end_s = time.monotonic() + _KILL_DEADLINE_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end_s:
            os.kill(-1, signal.SIGKILL)
            _reap()
            time.sleep(0.01)


def main() -> None:
    signal.signal(signal.SIGCHLD, _reap)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    socket.sethostname(sys.argv[2])
    control = socket.socket(fileno=int(sys.argv[1]))
    control.send(b"ready")
    with contextlib.suppress(OSError):
        control.recv(1)  # returns when the owner closes its end, by will or by death
    if len(sys.argv) > 3:
        _end_everything()
        shutil.rmtree(sys.argv[3], ignore_errors=True)


main()
