"""A client's connection: reads requests within limits, answers them one after another in the order they came."""

from __future__ import annotations

import socket
import time
from typing import Any

from longboat.gateway.calls.head import KnownHead
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import SWEEP_S
from longboat.gateway.http.request import Request
from longboat.gateway.http.tls import TlsTransport
from longboat.gateway.requests.client_link import ClientLink, progress_of
from longboat.gateway.requests.half_closed import HalfClosed
from longboat.gateway.requests.request_reader import RequestReader
from longboat.gateway.requests.respond import answer_request, report_defect

__all__ = ("ClientConnection",)


class ClientConnection(ClientLink):
    """An asyncio protocol by its methods. Reads on while an answer runs, to notice at once that a client goes."""

    __slots__ = ("_half_closed", "_is_http_1_0", "_progress", "_reader", "_stalled_since_s")

    def __init__(self, state: GatewayState) -> None:
        super().__init__(state)
        self._reader: RequestReader | None = None  # while the connection is open
        self._stalled_since_s = 0.0  # when the client stopped reading
        self._progress = 0  # of the client at the last sweep, while bytes wait for it
        self._half_closed: HalfClosed | None = None  # once the client closed its side alone, or seems to have
        self._is_http_1_0 = False  # the present request

    # what the loop calls

    def connection_made(self, transport: Any) -> None:
        self.transport = TlsTransport(transport) if transport.get_extra_info("sslcontext") else transport
        self._reader = RequestReader(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.state.connections.add(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if self.is_deaf or reader is None:
            return
        if reader.request is not None or self.exchange is not None or self.queue or not self._take_known(data):
            reader.feed(data)

    def _take_known(self, data: bytes) -> bool:
        """Take a request whose head came before, without parsing it again. The parser never hears of it."""
        state = self.state
        known = state.heads.match(data)
        if known is None:
            return False
        head, body_at = known
        size = len(data) - body_at
        if size > state.max_body_bytes or state.held_bytes + size > state.max_held_bytes:
            return False  # the reader refuses it
        state.held_bytes += size
        request = head.request(data[body_at:])
        request.request_id = state.new_request_id()
        if self.write_paused:
            self.queue.append(request)
            self.pause_reading()
        else:
            self._answer(request, head)
        return True

    def eof_received(self) -> bool:
        """Wait on where the client is owed one answer, and it would show that the client has gone."""
        reader, answer = self._reader, self.exchange
        if answer is None:
            return False
        is_whole = not self.queue and reader is not None and reader.request is None
        if is_whole and not self._is_http_1_0 and HalfClosed.can_wait(self.transport):
            self.closes_after = True
            self._half_closed = self._half_closed or HalfClosed(self.transport)
            if not self._half_closed.has_gone(answer, time.monotonic()):
                return True
        self.transport.abort()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.state.connections.discard(self)
        self.transport = None
        self.is_deaf = True
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()
        while self.queue:
            self.release(self.queue.popleft())
        if self.exchange is not None:
            exchange, self.exchange = self.exchange, None
            exchange.abort()
        elif self.write_paused:  # the answer counted as complete when it was written, and was not sent whole
            self.state.metrics.event("answer_cut_off")
        _tell_taken(self, is_whole=False)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._stalled_since_s = time.monotonic()
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        self.write_paused = False
        _tell_taken(self, is_whole=True)
        if self.exchange is not None:
            self.exchange.resume()
        else:
            self.answer_next()

    # what the server calls

    def sweep(self, now_s: float) -> None:
        """Check every limit in seconds of this connection, five times a second."""
        limits, reader = self.state.limits, self._reader
        if self.write_paused or (self.is_deaf and self.exchange is None):
            self._note_progress(now_s)
        if self.write_paused and now_s - self._stalled_since_s > limits.client_stall_s:
            self.transport.abort()
        elif self.exchange is not None:
            half_closed = self._half_closed
            if half_closed.has_gone(self.exchange, now_s) if half_closed else self.queue and self.has_left():
                self.transport.abort()
            else:
                self.exchange.sweep(limits.engine_silence_s / SWEEP_S)
                if reader is not None and reader.request is not None and not self.reads_later:  # the next one
                    reader.sweep(reader.request, now_s)
        elif self.is_deaf and not self.queue:
            if not self.idle_since_s:
                self.idle_since_s = now_s
            elif now_s - self.idle_since_s > limits.client_stall_s:  # it does not take the end of its answer
                self.transport.abort()
        elif reader is not None and reader.request is not None:
            reader.sweep(reader.request, now_s)
        elif not self.queue:
            if not self.idle_since_s:
                self.idle_since_s = now_s
            elif now_s - self.idle_since_s > limits.keepalive_s:
                self.close()

    def _note_progress(self, now_s: float) -> None:
        """Restart the clocks of a client that does not read where it read something since the last sweep."""
        before, self._progress = self._progress, progress_of(self.transport)
        if self._progress > before:
            self._stalled_since_s = self.idle_since_s = now_s

    def stop_when_idle(self) -> None:
        """Close now, or after the answers that are owed."""
        if self.is_busy or (self._reader is not None and self._reader.request is not None):
            self.closes_after = True
        else:
            self.close()

    # answering

    def accept(self, request: Request) -> None:
        self.queue.append(request)
        if self.exchange is None:
            self.answer_next()

    def exchange_done(self, *, keep: bool) -> None:
        self.exchange = None
        if keep and not self.closes_after and not self.queue and not self.reads_later and not self.owes_word:
            self.idle_since_s = 0.0
            return
        self.answered(keep=keep)
        self.answer_next()

    def answer_next(self) -> None:
        while self.queue and self.exchange is None and not self.write_paused and self.transport is not None:
            if not self._answer(self.queue.popleft(), None):
                return
        if not self.queue and not self.is_deaf and not self.transport.is_closing():
            self.reads_later = False
            self.transport.resume_reading()
            self.give_word()

    def _answer(self, request: Request, known: KnownHead | None) -> bool:
        """Return False where a defect ended the connection: it must end this one and no other."""
        if not request.keep_alive or self.state.draining or self.state.stopping:
            self.closes_after = True
        self._is_http_1_0 = request.http_1_0
        try:
            answer_request(self, request, known)
        except Exception as error:
            report_defect(self, error)
            self.transport.abort()
            return False
        return True


def _tell_taken(link: ClientLink, *, is_whole: bool) -> None:
    """Tell whether the client took the last bytes of its answer, where that is waited for."""
    taken, link.taken = link.taken, None
    if taken is not None:
        taken(is_whole)
