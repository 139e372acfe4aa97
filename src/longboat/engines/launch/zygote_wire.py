"""Talks to a zygote: a Unix socket, a length and JSON each way, file descriptors with the request."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

__all__ = ("connected", "receive", "send")


@contextlib.contextmanager
def connected(path: Path, deadline_s: float) -> Iterator[socket.socket]:
    """Connect to the socket at ``path``. The path may be of any length: the folder's descriptor shortens it."""
    folder_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(deadline_s)
            connection.connect(f"/proc/self/fd/{folder_fd}/{path.name}")
            yield connection
    finally:
        os.close(folder_fd)


def send(connection: socket.socket, data: bytes, fds: tuple[int, ...]) -> None:
    """Send one request, with copies of the file descriptors ``fds``."""
    sent = socket.send_fds(connection, [data], list(fds)) if fds else connection.send(data)
    if sent < len(data):  # an empty send fails when the zygote has answered and closed already
        connection.sendall(data[sent:])


def receive(connection: socket.socket) -> bytes:
    """Receive one answer, without its length. Raises OSError where the connection ends early."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = connection.recv(65536)
        if not more:
            raise OSError("it closed the connection")
        data += more
    return data[4:]
