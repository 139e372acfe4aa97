"""The server of a node: gives the pieces that the node has, and may carry the tracker.

    GET  /pieces/KEY/NUMBER   one piece
    POST /swarm/KEY           one turn with the tracker

It reads the store's record for each request, so any process of the node may be the one that fetches.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Final

import msgspec

from longboat.core.errors import UserInputError
from longboat.weights.pieces.manifest import Piece
from longboat.weights.pieces.tracker import Tracker
from longboat.weights.pieces.turns import Turn
from longboat.weights.store.piece_folder import PieceFolder
from longboat.weights.store.store import KEY, Store
from longboat.weights.swarm.connection_limit import ConnectionLimit, most_connections
from longboat.weights.swarm.proof import HEADER, answer_proof, is_proven

__all__ = ("NodeServer",)

MAX_BODY_BYTES: Final = 16 << 20
SMALL_BODY_BYTES: Final = 64 << 10
"""Turns are smaller, but for the inventory of a large model. A larger body is read in one of few places."""
LARGE_BODIES: Final = 8
LARGE_S: Final = 8.0
"""A large body waits this long for a place, and comes within this time then. A node gives a turn up after 10 s."""
MAX_HEAD_BYTES: Final = 16 << 10
ENTER_S: Final = 1.0
"""A connection waits this long for another one to end where there are too many."""
IDLE_S: Final = 5.0
"""A connection without a request for this long is closed. Nodes take a turn every two seconds."""
STALL_S: Final = 30.0
"""A request or response of which nothing moves for this long is cut."""
OPEN_FOLDERS: Final = 8
POLL_S: Final = 0.1
_PIECE = re.compile(r"/pieces/([^/]+)/(\d{1,7})")
_SWARM = re.compile(r"/swarm/([^/]+)")


class NodeServer:
    """The server, in a thread of its own from ``start`` to ``stop``.

    address: of the node's card in the cluster; port 0 takes a free one. tracker: None where another node carries it.
    connections: at a time; None takes what the process may have. At most half of them give pieces
    """

    def __init__(
        self,
        store: Store,
        token: str,
        address: str,
        port: int = 0,
        tracker: Tracker | None = None,
        connections: int | None = None,
    ) -> None:
        if not token:
            raise UserInputError("nodes share weights only with a token", hint="give it in LONGBOAT_WEIGHTS_TOKEN")
        self.store = store
        self.token = token
        self.tracker = tracker
        self._turns = threading.Lock()
        self._folders: OrderedDict[str, PieceFolder] = OrderedDict()
        self._opening = threading.Lock()
        self.limit = ConnectionLimit(connections or most_connections())
        self.pieces = ConnectionLimit(self.limit.most // 2)
        self.large_bodies = ConnectionLimit(LARGE_BODIES)
        self._server = _Server((address, port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="weights", daemon=True)

    @property
    def at(self) -> str:
        """HOST:PORT at which other nodes reach it."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End the server; requests under way are cut."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take_turn(self, key: str, body: bytes) -> bytes:
        """Answer one turn. Raises msgspec.DecodeError or ValidationError for anything else."""
        assert self.tracker is not None
        turn = msgspec.json.decode(body, type=Turn)
        if not 0 < turn.num_pieces < 10_000_000:
            raise msgspec.ValidationError("num_pieces")
        with self._turns:
            return msgspec.json.encode(self.tracker.turn(key, turn, time.monotonic()))

    def piece(self, key: str, index: int) -> tuple[PieceFolder, Piece] | None:
        """Return a piece that this node has; None where it has not."""
        folder = self._folder(key)
        if folder is None or index >= len(folder.pieces) or not folder.record.is_on_disk(index):
            return None
        return folder, folder.pieces[index]

    def _folder(self, key: str) -> PieceFolder | None:
        with self._opening:
            known = self._folders.get(key)
            if known is None or not known.folder.exists():  # published or evicted meanwhile
                known = self.store.opened(key) if KEY.fullmatch(key) else None
                if known is None:
                    self._folders.pop(key, None)
                    return None
                self._folders[key] = known
            self._folders.move_to_end(key)
            while len(self._folders) > OPEN_FOLDERS:
                self._folders.popitem(last=False)
            return known


class _Server(ThreadingHTTPServer):
    """One thread for each connection, and a limit of connections."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024  # the kernel allows fewer where net.core.somaxconn is lower

    def __init__(self, address: tuple[str, int], node: NodeServer) -> None:
        self.node = node
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread. Others wait in the kernel's queue meanwhile where there are too many."""
        if not self.node.limit.enter(ENTER_S):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the machine has no further thread
            self.node.limit.leave()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.node.limit.leave()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that broke: the other node reports it."""


class _Head:
    """The head of a request, of which no more than the limit is read."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._room = MAX_HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        """Return the next line. Raises LineTooLong where the head is too long."""
        line = self._file.readline(min(limit, self._room + 1))
        self._room -= len(line)
        if self._room < 0:
            raise http.client.LineTooLong("head")
        return line


class _Handler(BaseHTTPRequestHandler):
    """Requests of one connection."""

    protocol_version = "HTTP/1.1"
    server_version = "longboat"
    sys_version = ""
    timeout = STALL_S
    disable_nagle_algorithm = True
    server: _Server

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self.connection.settimeout(IDLE_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the rest of a request that began."""
        self.connection.settimeout(STALL_S)
        file = self.rfile
        self.rfile = _Head(file)  # type: ignore[assignment]
        try:
            return super().parse_request()
        finally:
            self.rfile = file

    def do_GET(self) -> None:
        """Give a piece."""
        found = _PIECE.fullmatch(self.path)
        if found is None or not self._is_proven(b""):
            self._refuse(404 if found is None else 401)
            return
        held = self.server.node.piece(found[1], int(found[2]))
        if held is None:
            self._refuse(404)
            return
        if not self.server.node.pieces.enter(0):
            self._refuse(503)
            return
        try:
            self._give(*held)
        finally:
            self.server.node.pieces.leave()

    def do_POST(self) -> None:
        """Take a turn with the tracker."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self._refuse(413)
            return
        found = _SWARM.fullmatch(self.path)
        if found is None:
            self.close_connection = True
            self._refuse(404)
            return
        is_large = int(length) > SMALL_BODY_BYTES
        if is_large and not self.server.node.large_bodies.enter(LARGE_S):
            self.close_connection = True
            self._refuse(503)
            return
        try:
            body = self._body(int(length))
            if not self._is_proven(body):
                self._refuse(401)
                return
        finally:
            if is_large:
                self.server.node.large_bodies.leave()
        if self.server.node.tracker is None or not KEY.fullmatch(found[1]):
            self._refuse(404)
            return
        try:
            answer = self.server.node.take_turn(found[1], body)
        except (msgspec.DecodeError, msgspec.ValidationError):
            self._refuse(400)
            return
        self._begin(200, len(answer), {HEADER: answer_proof(self.server.node.token, self.headers[HEADER], answer)})
        self.wfile.write(answer)

    def _give(self, folder: PieceFolder, piece: Piece) -> None:
        try:
            file = folder.path(piece.path).open("rb")
        except OSError:
            self._refuse(404)
            return
        with file:
            self._begin(200, piece.length, {})
            self.wfile.flush()
            sent = self.connection.sendfile(file, piece.offset, piece.length)
            self.close_connection = self.close_connection or sent < piece.length

    def _body(self, length: int) -> bytes:
        """Read a body. Raises TimeoutError where it does not come in time."""
        deadline_s, body = time.monotonic() + LARGE_S, bytearray()
        while len(body) < length:
            self.connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            more = self.rfile.read1(length - len(body))
            if not more:
                raise TimeoutError("the body ended early")
            body += more
        self.connection.settimeout(STALL_S)
        return bytes(body)

    def _is_proven(self, body: bytes) -> bool:
        value = self.headers.get(HEADER, "")
        return is_proven(self.server.node.token, self.command, self.path, body, value, time.time())

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(length))
        if self.server.node.limit.is_crowded:
            self.send_header("Connection", "close")  # sets close_connection, too
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: int) -> None:
        with contextlib.suppress(OSError):
            self._begin(status, 0, {})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing: a fetch of a model is thousands of requests."""
