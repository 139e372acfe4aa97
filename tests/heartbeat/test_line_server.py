"""The server of lines when clients come faster than it welcomes them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator

import pytest
from relay_lab import eventually

from longboat.heartbeat import line_server
from longboat.heartbeat.line_server import LineServer, door_socket

WORD = b"let me in\n"


class Host:
    """Welcomes those that know the word, and sends them nothing."""

    def __init__(self) -> None:
        self.num_greetings = 0

    def welcome(self, greeting: bytes) -> tuple[int, bytes] | None:
        """Count the greeting."""
        self.num_greetings += 1
        return (self.num_greetings, b"welcome\n") if greeting == WORD else None

    def turn(self) -> None:
        """Send nothing."""


@contextlib.asynccontextmanager
async def serving(listening: socket.socket) -> AsyncIterator[tuple[LineServer[int], Host]]:
    host = Host()
    server = LineServer(listening, host, every_s=60.0, max_behind_bytes=1000)
    await server.open()
    try:
        yield server, host
    finally:
        server.close()


def connected(listening: socket.socket) -> socket.socket:
    made = socket.create_connection(listening.getsockname(), timeout=10.0)
    made.sendall(WORD)
    return made


async def test_clients_that_left_before_they_were_accepted_are_let_go_unheard() -> None:
    listening = door_socket("127.0.0.1")
    for _ in range(100):
        connected(listening).close()
    staying = connected(listening)
    async with serving(listening) as (server, host):
        await eventually(lambda: server.num_clients == 1, "the client that stays is welcome")
        assert host.num_greetings == 1
        staying.close()
        await eventually(lambda: server.num_clients == 0, "it left")


async def test_all_who_wait_are_welcomed_and_hold_few_descriptors_meanwhile() -> None:
    listening = door_socket("127.0.0.1")
    waiting = [connected(listening) for _ in range(5 * line_server._AT_ONCE)]
    async with serving(listening) as (server, _):
        await asyncio.sleep(0)  # one turn of the loop
        assert len(server._welcoming) <= line_server._AT_ONCE
        await eventually(lambda: server.num_clients == len(waiting), "all are welcome")
        for one in waiting:
            assert one.recv(100) == b"welcome\n"
            one.close()
        await eventually(lambda: not server._welcoming, "nothing is kept of those that left")


async def test_server_without_descriptors_accepts_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(socket.socket):
        """A listening socket whose process has no descriptor left, twice."""

        num_failures = 0

        def accept(self) -> tuple[socket.socket, object]:
            if self.num_failures < 2:
                self.num_failures += 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    monkeypatch.setattr(line_server, "_PAUSE_S", 0.01)
    with door_socket("127.0.0.1") as made:
        listening = Short(fileno=made.detach())
    client = connected(listening)
    async with serving(listening) as (server, _):
        await eventually(lambda: server.num_clients == 1, "the client is welcome")
        assert listening.num_failures == 2
        client.close()


async def test_closed_server_lets_all_go_also_those_that_did_not_greet() -> None:
    listening = door_socket("127.0.0.1")
    greeted, silent = connected(listening), socket.create_connection(listening.getsockname(), timeout=10.0)
    async with serving(listening) as (server, _):
        await eventually(lambda: server.num_clients == 1 and len(server._welcoming) == 2, "both are accepted")
    await eventually(lambda: not server._welcoming and not server.num_clients, "none is kept")
    for one in (greeted, silent):
        with one, contextlib.suppress(ConnectionResetError):
            assert one.recv(100) in (b"", b"welcome\n")
