"""Starts one worker of Ray: the node's warm parent forks it, or Ray's own script runs where that parent cannot.

Ray runs this file in place of its own script, with the arguments of that script. The process ends as soon as the worker
is forked: Ray knows a worker by the number in its arguments, and learns its process from the worker itself. The file
imports little, because each start of a worker pays for it.
"""

import _socket
import json
import os
import sys
import time

SOCKET = "workers/parent.sock"
"""Place of the warm parent's socket in the run folder of the node."""

RUN = "LONGBOAT_RUN"
GO = b"G"
"""The fork waits for this byte: where its orderer has lost patience and started the worker plainly, the fork ends."""

_PATIENCE_S = 20.0
_STREAMS = (0, 1, 2)
_SOL_SOCKET = _SCM_RIGHTS = 1  # on Linux


def fingerprint() -> str:
    """Return a mark of the installed code: an installation over it gives this file another one."""
    found = os.stat(__file__)
    return f"{sys.executable} {found.st_ino} {found.st_mtime_ns}"


def describe() -> dict[str, object]:
    """Return what a fork needs to become the worker that this process was started for."""
    with open("/proc/self/oom_score_adj") as file:
        oom_score = file.read().strip()
    return {
        "argv": sys.argv[1:],
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "leads_group": os.getpgid(0) == os.getpid(),
        "oom_score": oom_score,
        "fingerprint": fingerprint(),
    }


def is_forked(run: str) -> bool:
    """Ask the parent for a fork; while it loads, wait for it. Raises OSError and ValueError where it is away."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        parent = _connect(run, end_s - time.monotonic())
        try:
            answer = _ask(parent)
            if "pid" in answer:
                parent.sendall(GO)
                return True
        finally:
            parent.close()
        if not answer.get("again"):
            return False


def _connect(run: str, patience_s: float) -> _socket.socket:
    folder, name = os.path.split(os.path.join(run, SOCKET))
    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)  # names of sockets are short; this one has any length
    parent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        parent.settimeout(max(0.1, patience_s))
        parent.connect(f"/proc/self/fd/{folder_fd}/{name}")
    finally:
        os.close(folder_fd)
    return parent


def _ask(parent: _socket.socket) -> dict[str, object]:
    data = json.dumps(describe()).encode()
    streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in _STREAMS)
    parent.sendmsg([len(data).to_bytes(4, "big")], [(_SOL_SOCKET, _SCM_RIGHTS, streams)])
    parent.sendall(data)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        more = parent.recv(4096)
        if not more:
            raise ValueError("the parent left")
        answer += more
    return dict(json.loads(answer[4:]))


def plain_command() -> list[str]:
    """Return the command of Ray's own script with the arguments of this process."""
    from importlib.util import find_spec

    ray = find_spec("ray")
    assert ray is not None and ray.submodule_search_locations
    script = os.path.join(ray.submodule_search_locations[0], "_private", "workers", "default_worker.py")
    return [sys.executable, script, *sys.argv[1:]]


def main() -> None:
    """End where the worker is forked, else become it."""
    run = os.environ.get(RUN)
    try:
        if run and is_forked(run):
            return
    except (OSError, ValueError):
        pass  # the parent is away or broken: the worker starts without it
    command = plain_command()
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
