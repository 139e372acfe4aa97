"""Runs a command in the namespaces of another process, as its parent: passes signals on, dies and lets die with it.

usage: enter.py PID COMMAND…

Runs alone, with the standard library only. The exit status is the command's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 1 << 17, 1 << 26, 1 << 28, 1 << 29, 1 << 30
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_LIBC = ctypes.CDLL(None, use_errno=True)


def enter(pid: int) -> None:
    """Enter all namespaces of ``pid``; the PID namespace counts for children only."""
    folder = os.getcwd()
    kinds = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWPID | _CLONE_NEWNET
    if os.readlink("/proc/self/ns/user") != os.readlink(f"/proc/{pid}/ns/user"):
        kinds |= _CLONE_NEWUSER
    if _LIBC.setns(os.pidfd_open(pid), kinds):
        raise OSError(ctypes.get_errno(), f"cannot enter the namespaces of process {pid}")
    os.chdir(folder)


def _child(argv: list[str]) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - tests start what they name
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def main() -> int:
    enter(int(sys.argv[1]))
    child = os.fork()
    if child == 0:
        _child(sys.argv[2:])
    for number in _PASSED_ON:
        signal.signal(number, lambda signum, _frame: os.kill(child, signum))
    _pid, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
