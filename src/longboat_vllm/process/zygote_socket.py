"""The zygote's socket: listens at a private place, and reads and writes messages of length and JSON."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any

__all__ = ("RefusedError", "check_user", "listen", "receive", "send")

_MAX_REQUEST_BYTES = 1 << 20
_MAX_FDS = 8
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class RefusedError(Exception):
    """A request that the zygote does not serve."""


def listen(path: str) -> socket.socket:
    """Listen at ``path``, whose folder becomes private; replace the socket file of a dead zygote."""
    folder, name = os.path.split(path)
    os.chmod(folder, 0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    old_mask = os.umask(0o177)
    try:
        # Socket paths are limited to 107 bytes; the folder's descriptor shortens any path. The name appears only once
        # a listener is behind it, so a client never meets a socket that refuses.
        near = f"/proc/self/fd/{folder_fd}/"
        listener.bind(f"{near}{name}.{os.getpid()}")
        listener.listen(64)
        os.replace(f"{near}{name}.{os.getpid()}", f"{near}{name}")
    finally:
        os.umask(old_mask)
        os.close(folder_fd)
    return listener


def check_user(connection: socket.socket) -> None:
    """Raise RefusedError where the kernel says that the caller is another user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid = _CREDENTIALS.unpack(raw)[1]
    if uid != os.getuid():
        raise RefusedError(f"user {uid} may not use this socket")


def receive(connection: socket.socket, fds: list[int]) -> dict[str, Any]:
    """Receive one request. Received descriptors go into ``fds`` immediately, so that they are always closed."""
    data, ancillary, _flags, _address = connection.recvmsg(
        65536, socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    )
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            fds.extend(numbers)
    for fd in fds:
        os.set_inheritable(fd, False)
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 or size > _MAX_REQUEST_BYTES:
        raise RefusedError("not a request")
    while len(data) < 4 + size:
        more = connection.recv(65536)
        if not more:
            raise RefusedError("the request ended early")
        data += more
    request = json.loads(data[4 : 4 + size])
    if not isinstance(request, dict):
        raise RefusedError("a request must be a JSON object")
    return request


def send(connection: socket.socket, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    connection.sendall(len(data).to_bytes(4, "big") + data)
