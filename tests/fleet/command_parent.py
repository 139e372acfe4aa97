"""Runs Longboat's commands in forks of a process that has imported what they import: a CPU second less for each.

    python command_parent.py SOCKET_FD

Ray itself is not imported: it reads its variables meanwhile, and they differ from fleet to fleet. Tests of the command
line, and commands that stay, start an interpreter for each command.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ("run_command",)

IMPORTED = (
    "longboat.cli.app",
    "longboat.cli.fleet.down",
    "longboat.cli.fleet.up",
    "longboat.cluster.preflight.surroundings",
    "fastapi",
    "grpc",
    "jsonschema",
    "psutil",
    "requests",
    "rich.live",
    "rich.progress",
    "starlette.requests",
)
OF_BEGINNING = "longboat.cli.look.answer_limit"
"""The module that measures from the beginning of a command; a fork imports it."""
REQUEST_BYTES = 256 * 1024
NUM_STREAMS = 3
ENTER = Path(__file__).resolve().parents[1] / "netlab" / "enter.py"
_PR_SET_PDEATHSIG = 1
_parents: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
"""This process's parent of commands, once there is one, and the connection to it. It ends when that is closed."""


def run_command(
    words: Sequence[str], *, env: Mapping[str, str], cwd: Path, inside: int | None, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run ``longboat WORDS`` to its end, as ``subprocess.run`` does. inside: a process whose namespaces it enters

    Raises subprocess.TimeoutExpired; the command is killed.
    """
    pipes = [os.pipe() for _ in range(NUM_STREAMS)]
    request = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd), "inside": inside}).encode()
    assert len(request) < REQUEST_BYTES
    socket.send_fds(_parent(), [request], [write for _, write in pipes])
    for _, write in pipes:
        os.close(write)
    told, out, err = _read_all([read for read, _ in pipes], words, timeout_s)
    return subprocess.CompletedProcess(list(words), int(told.split()[1]), out, err)


def _parent() -> socket.socket:
    if not _parents:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, __file__, str(theirs.fileno())]
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        process = subprocess.Popen(
            argv, pass_fds=(theirs.fileno(),), env={**env, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL
        )
        theirs.close()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
        _parents.append((process, ours))
    return _parents[0][1]


def _read_all(streams: Sequence[int], words: Sequence[str], timeout_s: float) -> list[str]:
    """Return all that comes from these streams, until each has ended."""
    found = {stream: b"" for stream in streams}
    end_s = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(end_s - time.monotonic())
            if not ready:
                os.kill(int(found[streams[0]].split()[0]), signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), timeout_s, *(found[stream] for stream in streams[1:]))
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                found[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return [text.decode() for text in found.values()]


# --- the parent ------------------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> list[str]:
    """Fork a process for each request until the connection ends; in the fork, return its command's words."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, streams, _flags, _address = socket.recv_fds(connection, REQUEST_BYTES, NUM_STREAMS)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            return _become_command(json.loads(data), *streams)
        for stream in streams:
            os.close(stream)


def _become_command(request: Mapping[str, Any], told: int, out: int, err: int) -> list[str]:
    """Become the command of this request; a process around it tells its own number, and how the command ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.write(told, f"{os.getpid()} ".encode())
    os.chdir(str(request["cwd"]))
    if request["inside"] is not None:
        sys.path.insert(0, str(ENTER.parent))
        importlib.import_module("enter").enter(request["inside"])
        del sys.path[0]
    child = os.fork()
    if child:
        for stream in (out, err):
            os.close(stream)
        os.write(told, str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for stream in (told, out, err):
        os.close(stream)
    # Those of this process know where they stood in other files.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    return [str(word) for word in request["words"]]


if __name__ == "__main__":
    del sys.path[0]  # this folder; a command has its own there
    for module in IMPORTED:
        importlib.import_module(module)
    assert not sys.modules.keys() & {"ray", OF_BEGINNING}
    gc.collect()
    gc.freeze()
    sys.argv = ["-c", *serve(socket.socket(fileno=int(sys.argv[1])))]
    sys.path.insert(0, "")
    importlib.reload(sys.modules["longboat.cli"])  # it notes when a command began
    sys.modules["longboat.cli.app"].main()
