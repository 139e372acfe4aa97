"""A client that closed its sending side while it is owed an answer: it waits for the answer, or has gone."""

from __future__ import annotations

import select
import socket
from typing import Any, Protocol

from longboat.gateway.http.tls import TlsTransport

__all__ = ("HalfClosed",)

_ASK_AGAIN_S = 5.0  # a proxy that passes bytes on learns that its client has gone by the first, and refuses the second
_SELDOMER = 2.0  # each further wait is longer: some clients, as Go's, bear five interim responses
_SILENT_MS = 30_000  # the client has gone if its host confirms nothing meanwhile


class _Answer(Protocol):
    def ask_client(self) -> None: ...


class HalfClosed:
    """What shows whether the client still waits: its host refuses bytes for a program that has closed its socket."""

    __slots__ = ("_ask_s", "_sock", "_transport", "_wait_s")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._sock = transport.get_extra_info("socket")
        self._ask_s = 0.0  # monotonic: when the client is asked next
        self._wait_s = _ASK_AGAIN_S
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)

    @staticmethod
    def can_wait(transport: Any) -> bool:
        """Return whether this connection can show that its client has gone. Python's TLS closes both sides together."""
        sock = transport.get_extra_info("socket")
        is_plain = not isinstance(transport, TlsTransport) and sock is not None and sock.fileno() >= 0
        return is_plain and sock.family in (socket.AF_INET, socket.AF_INET6)

    def has_gone(self, answer: _Answer, now_s: float) -> bool:
        """Return whether the client has gone; ask it from time to time. now_s: monotonic"""
        if self._transport.is_closing():
            return False  # the loop tells of its end
        asked = select.poll()
        asked.register(self._sock.fileno(), 0)  # an error, or both sides closed
        if asked.poll(0):
            return True
        if now_s >= self._ask_s:
            self._ask_s = now_s + self._wait_s
            self._wait_s *= _SELDOMER
            answer.ask_client()
        return False
