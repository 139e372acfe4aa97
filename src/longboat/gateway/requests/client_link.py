"""The sending side of a client's connection, and what its parts share."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from longboat.gateway.calls.state import GatewayState
from longboat.gateway.exchange.exchange import ClientSide, Exchange
from longboat.gateway.http.request import Request
from longboat.gateway.requests.pending_reply import PendingReply

__all__ = ("ClientLink", "progress_of")

_LINGER_S = 1.0
_ACKED = slice(120, 128)  # tcpi_bytes_acked in Linux's tcp_info


class ClientLink(ClientSide):
    """A client's connection as the reader of requests and the giver of answers see it."""

    __slots__ = (
        "exchange", "idle_since_s", "is_deaf", "owes_word", "queue", "reads_later", "state", "transport", "word_s",
    )  # fmt: skip

    def __init__(self, state: GatewayState) -> None:
        super().__init__()
        self.state = state
        self.transport: Any = None
        self.queue: deque[Request] = deque()  # requests that were read and not answered
        self.exchange: Exchange | PendingReply[Any] | None = None  # gives the present answer
        self.idle_since_s = 0.0  # once it is deaf, since when it closes; 0.0: the next sweep sets it
        self.is_deaf = False  # nothing more is read
        self.reads_later = False  # reading is paused until the requests that wait were answered
        self.owes_word = False  # the client waits for ``100 Continue`` before it sends a body
        self.word_s = 0.0  # when it got that last (monotonic)

    @property
    def is_busy(self) -> bool:
        """Whether an answer is owed."""
        return self.exchange is not None or bool(self.queue)

    # requests

    def accept(self, request: Request) -> None:
        """Queue a request, and answer it when its turn comes."""
        raise NotImplementedError

    def answer_next(self) -> None:
        """Answer the requests that wait, as far as nothing else is being answered."""
        raise NotImplementedError

    def answered(self, *, keep: bool) -> None:
        """Note that an answer was given, and close where nothing may follow it."""
        self.idle_since_s = time.monotonic()
        if self.closes_after or not keep:
            while self.queue:
                self.release(self.queue.popleft())
            self.linger()

    # writing

    def give_word(self) -> None:
        """Let the client send the body for which it waits, once no answer is owed before."""
        if self.owes_word and not self.is_busy:
            self.owes_word = False
            self.word_s = time.monotonic()
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def chunk_writer(self) -> Callable[[bytes], object] | None:
        return None if self.transport is None else self.transport.write

    # closing

    def release(self, request: Request) -> None:
        """Forget a request's body."""
        self.state.held_bytes -= request.held_bytes
        request.held_bytes = 0
        request.pieces.clear()

    def cut(self) -> None:
        """Close now, whatever is owed, as if the client had gone."""
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close once all that was written has been sent."""
        self.is_deaf = True
        self.idle_since_s = time.monotonic()
        if self.transport is not None:
            self.transport.close()

    def linger(self) -> None:
        """Close so that the answer arrives: read and drop for a moment what the client still sends."""
        transport = self.transport
        self.is_deaf = True
        if transport is None or transport.is_closing():
            return
        transport.resume_reading()
        transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.close)

    def pause_reading(self) -> None:
        """Read no further until the requests that wait were answered."""
        if not self.transport.is_closing():
            self.reads_later = True
            self.transport.pause_reading()

    def has_left(self) -> bool:
        """Ask the system whether the client has gone: the event loop does not tell while reading is paused."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        asked = select.poll()
        asked.register(sock.fileno(), select.POLLRDHUP)
        return bool(asked.poll(0))


def progress_of(transport: asyncio.Transport) -> int:
    """Return a number that grows as a client takes what was written to it.

    It is the bytes that its host acknowledged, less those that wait here. TLS hides some of the bytes that wait.
    """
    waiting: int = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0 or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return -waiting
    try:
        known = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
    except OSError:  # it has just closed
        return -waiting
    return int.from_bytes(known[_ACKED], sys.byteorder) - waiting
