"""The client of other nodes: asks for pieces, and takes turns with the tracker."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from typing import Final

import msgspec

from longboat.core.errors import TransferError
from longboat.weights.pieces.turns import Answer, Turn
from longboat.weights.swarm.proof import HEADER, answer_proof, request_proof

__all__ = ("NodeClient",)

MAX_ANSWER_BYTES: Final = 4 << 20
TURN_S: Final = 10.0
CONNECT_S: Final = 2.0
"""A node that takes no connection for this long is down, or behind a cut cable."""
MAX_IDLE: Final = 32
WAKE_BYTES: Final = 256 << 10
"""A thread that reads a piece wakes when this much has arrived: waking for each packet costs most of a slow CPU."""


class NodeClient:
    """Requests to other nodes. Several threads may use it: each connection is used by one at a time.

    stall_s: a request that brings nothing for this long is given up
    """

    def __init__(self, token: str, stall_s: float = 10.0) -> None:
        self.token = token
        self._stall_s = stall_s
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()

    def piece(self, at: str, key: str, index: int, length: int) -> bytearray:
        """Return a piece of another node, unchecked. Raises TransferError where it does not come whole."""
        response_bytes, _ = self._exchange(at, "GET", f"/pieces/{key}/{index}", b"", self._stall_s, length)
        if len(response_bytes) != length:
            raise TransferError(f"node {at} gave {len(response_bytes)} bytes of {length}")
        return response_bytes

    def turn(self, at: str, key: str, turn: Turn) -> Answer:
        """Take a turn with the tracker at a node. Raises TransferError where it does not answer."""
        path, body = f"/swarm/{key}", msgspec.json.encode(turn)
        data, proofs = self._exchange(at, "POST", path, body, TURN_S, None)
        if answer_proof(self.token, proofs[0], bytes(data)) != proofs[1]:
            raise TransferError(f"the answer of the tracker at {at} has no proof that it knows the token")
        try:
            return msgspec.json.decode(data, type=Answer)
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise TransferError(f"the tracker at {at} speaks another version") from None

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _exchange(
        self, at: str, method: str, path: str, body: bytes, timeout_s: float, length: int | None
    ) -> tuple[bytearray, tuple[str, str]]:
        """Send one request; return the body, and the proofs of request and answer.

        A turn is sent once. The tracker would take a second one for another turn, and keep the orders of the first for
        a node that never got them. A node whose turn failed reports everything that it has, which frees them.
        """
        kept = self._taken(at)
        try:
            return self._once(kept, at, method, path, body, timeout_s, length)
        except (OSError, http.client.HTTPException) as error:
            if kept is None or method != "GET":
                raise TransferError(f"node {at} cannot be reached: {type(error).__name__}") from None
        try:  # the other side may have closed a connection that was idle
            return self._once(None, at, method, path, body, timeout_s, length)
        except (OSError, http.client.HTTPException) as error:
            raise TransferError(f"node {at} cannot be reached: {type(error).__name__}") from None

    def _once(
        self,
        kept: http.client.HTTPConnection | None,
        at: str,
        method: str,
        path: str,
        body: bytes,
        timeout_s: float,
        length: int | None,
    ) -> tuple[bytearray, tuple[str, str]]:
        host, _, port = at.rpartition(":")
        connection = kept or http.client.HTTPConnection(host, int(port), timeout=min(CONNECT_S, timeout_s))
        proof = request_proof(self.token, method, path, body, time.time())
        try:
            if connection.sock is None:
                connection.connect()
            sock = connection.sock
            sock.settimeout(timeout_s)
            connection.request(method, path, body=body or None, headers={HEADER: proof})
            response = connection.getresponse()
            if response.status != 200:
                response.read(MAX_ANSWER_BYTES)
                raise TransferError(f"node {at} answers {response.status}")
            data = _read(sock, response, length)
        except BaseException:
            connection.close()
            raise
        self._keep(at, connection)
        return data, (proof, response.headers.get(HEADER, ""))

    def _taken(self, at: str) -> http.client.HTTPConnection | None:
        """Return an idle connection to the node that the other side has not closed."""
        with self._lock:
            for position, (known, connection) in reversed(list(enumerate(self._idle))):
                if known != at:
                    continue
                del self._idle[position]
                if not _is_closed(connection):
                    return connection
                connection.close()
        return None

    def _keep(self, at: str, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:  # the other side ends it with this response
            return
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append((at, connection))
                return
        with contextlib.suppress(OSError):
            connection.close()


def _is_closed(connection: http.client.HTTPConnection) -> bool:
    """Return whether an idle connection has ended: something to read on it is its end, or belongs to no request."""
    watched = select.poll()
    watched.register(connection.sock, select.POLLIN)
    return bool(watched.poll(0))


def _read(sock: socket.socket, response: http.client.HTTPResponse, length: int | None) -> bytearray:
    told = response.length or 0
    if told > (length if length is not None else MAX_ANSWER_BYTES):
        raise http.client.HTTPException("the answer is too long")
    data = bytearray(told)
    rest = memoryview(data)
    # The first read returns what arrived with the head and is in the response's buffer: the socket has it no more.
    while rest and (read := response.fp.readinto1(rest)):  # one read: readinto would wait for a full wake at the end
        rest = rest[read:]
        # The kernel wakes the reader only when this much has arrived, or when the connection ends.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(WAKE_BYTES, len(rest) or 1))
    response.close()
    if rest:
        raise http.client.IncompleteRead(b"")
    return data
