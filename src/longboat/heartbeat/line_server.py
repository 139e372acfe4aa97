"""A small TCP server of lines: clients that greet it rightly stay connected, and get lines at fixed intervals."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from longboat.heartbeat.wire import MAX_LINE_BYTES
from longboat.telemetry import logger

__all__ = ("LineHost", "LineServer", "door_socket")

log = logger("lines")

Client = TypeVar("Client")
ClientCo = TypeVar("ClientCo", covariant=True)

_GREETING_S = 2.0
_MAX_CLIENTS = 4096
_AT_ONCE = 8
"""Connections that are accepted in one turn of the loop. Others wait in the kernel, without a descriptor."""
_PAUSE_S = 1.0
"""Until connections are accepted again where descriptors or memory ran out."""


def door_socket(address: str) -> socket.socket:
    """Make a listening socket on a free port. Clients that connect before ``open`` wait in the kernel's queue.

    Raise OSError where the address cannot be used.
    """
    return socket.create_server((address, 0), backlog=256)


class LineHost(Protocol[ClientCo]):
    """The owner of a server: it judges greetings, and sends lines when it is its turn."""

    def welcome(self, greeting: bytes) -> tuple[ClientCo, bytes] | None:
        """Return what to keep of a client and its first line; None, or ValueError, where it must go."""

    def turn(self) -> None:
        """Send what is due."""


class LineServer(Generic[Client]):
    """The connections of clients, each with what its host keeps of it.

    A busy server gets to connections late, when clients have given up and connected again. It closes these at once,
    so that their number does not grow.
    """

    def __init__(
        self, listening: socket.socket, host: LineHost[Client], *, every_s: float, max_behind_bytes: int
    ) -> None:
        self._listening = listening
        self._host = host
        self._every_s = every_s
        self._max_behind_bytes = max_behind_bytes  # a client with more unread bytes is cut off
        self._clients: dict[asyncio.StreamWriter, Client] = {}
        self._welcoming: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._ticker: asyncio.Task[None] | None = None

    @property
    def num_clients(self) -> int:
        """Return the number of clients that were welcomed and are connected."""
        return len(self._clients)

    async def open(self) -> None:
        """Begin to welcome clients, and to give the host its turns."""
        self._loop = loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        loop.add_reader(self._listening, self._accept, loop)
        self._ticker = loop.create_task(self._turn_always())

    def close(self) -> None:
        """Stop, and cut all clients off. Connections without a greeting end by their time-out."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._resume is not None:
            self._resume.cancel()
        if self._loop is not None and self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
        self._listening.close()
        for writer in tuple(self._clients):
            writer.transport.abort()

    def send(self, line_for: Callable[[Client], bytes]) -> None:
        """Write to each client what ``line_for`` returns for it, which may be empty."""
        for writer, client in tuple(self._clients.items()):
            if writer.transport.get_write_buffer_size() > self._max_behind_bytes:
                writer.transport.abort()
            elif line := line_for(client):
                writer.write(line)

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("a %s accepts no connection: %s", type(self._host).__name__, error)
                loop.remove_reader(self._listening)
                self._resume = loop.call_later(_PAUSE_S, loop.add_reader, self._listening, self._accept, loop)
                return
            if _is_left(connection):
                connection.close()
                continue
            task = loop.create_task(self._welcome(connection))
            self._welcoming.add(task)
            task.add_done_callback(self._welcoming.discard)

    async def _welcome(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
        try:
            async with asyncio.timeout(_GREETING_S):
                greeting = await reader.readline()
            welcomed = self._host.welcome(greeting)
            if welcomed is None or len(self._clients) >= _MAX_CLIENTS:
                return
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client, line = welcomed
            writer.write(line)
            self._clients[writer] = client
            await reader.read(1)  # the client sends nothing more: a byte or the end of the stream ends the connection
        except (OSError, ValueError, asyncio.CancelledError):
            pass
        finally:
            self._clients.pop(writer, None)
            writer.transport.abort()

    async def _turn_always(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self._every_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            try:
                self._host.turn()
            except Exception as error:  # one failed turn must not end the later ones
                log.warning("the turn of a %s failed: %r", type(self._host).__name__, error)


def _is_left(connection: socket.socket) -> bool:
    """Return whether the client has closed its end."""
    looked = select.poll()
    looked.register(connection, select.POLLRDHUP)
    return bool(looked.poll(0))
