"""The client of other nodes: pieces of which the first bytes arrive together with the head of the response."""

from __future__ import annotations

import random
import select
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import ClassVar

import msgspec
import pytest

from longboat.core.errors import TransferError
from longboat.weights.pieces.turns import Answer, Turn
from longboat.weights.swarm.node_client import NodeClient
from longboat.weights.swarm.proof import HEADER, answer_proof

TOKEN = "a token of the tests"
PIECE = random.Random(3).randbytes(256 << 10)


class Giver(socketserver.StreamRequestHandler):
    """Sends the head and the piece at once. The piece's number is its length."""

    def handle(self) -> None:
        while request := self.rfile.readline():
            while self.rfile.readline() != b"\r\n":
                pass
            length = int(request.split()[1].rpartition(b"/")[2])
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + PIECE[:length])


class Tracker(socketserver.StreamRequestHandler):
    """Answers the first turn of a connection, and ends the connection in the place of a second answer."""

    turns: ClassVar[list[Turn]]

    def handle(self) -> None:
        self._take(answered=True)
        self._take(answered=False)

    def _take(self, *, answered: bool) -> None:
        if not (request := self.rfile.readline()):
            return
        headers = dict(line.rstrip().split(b": ", 1) for line in iter(self.rfile.readline, b"\r\n"))
        body = self.rfile.read(int(headers[b"Content-Length"]))
        self.turns.append(msgspec.json.decode(body, type=Turn))
        if answered:
            data = msgspec.json.encode(Answer())
            proof = answer_proof(TOKEN, headers[HEADER.encode()].decode(), data)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n{HEADER}: {proof}\r\n\r\n"
            self.request.sendall(head.encode() + data)
        assert request.startswith(b"POST /swarm/key ")


class Closing(Tracker):
    """Ends every connection after its first answer."""

    def handle(self) -> None:
        self._take(answered=True)


@pytest.fixture
def giver() -> Iterator[str]:
    """HOST:PORT of a node that gives pieces."""
    with served(Giver) as at:
        yield at


@contextmanager
def served(handler: type[socketserver.StreamRequestHandler]) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield "{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("length", [1, 8_000, 10_000, 16_000, 20_000, 64_000, 100_000, 200_000, 256 << 10])
def test_a_piece_that_arrives_with_its_head_is_read_without_a_stall(giver: str, length: int) -> None:
    with closing(NodeClient("a token of the tests", stall_s=10.0)) as client:
        for _ in range(3):  # on one connection
            assert client.piece(giver, "key", length, length) == PIECE[:length]


def test_a_turn_whose_answer_is_lost_is_not_sent_again() -> None:
    class Counted(Tracker):
        turns: ClassVar[list[Turn]] = []

    with served(Counted) as at, closing(NodeClient(TOKEN)) as client:
        client.turn(at, "key", Turn(member="a", num_pieces=4, piece_bytes=1, want=1))
        with pytest.raises(TransferError, match="cannot be reached"):
            client.turn(at, "key", Turn(member="a", num_pieces=4, piece_bytes=1, want=2))
        assert [turn.want for turn in Counted.turns] == [1, 2]


def test_a_turn_takes_no_connection_that_the_tracker_has_closed() -> None:
    class Counted(Closing):
        turns: ClassVar[list[Turn]] = []

    with served(Counted) as at, closing(NodeClient(TOKEN)) as client:
        for want in range(3):
            client.turn(at, "key", Turn(member="a", num_pieces=4, piece_bytes=1, want=want))
            [(_, idle)] = client._idle
            assert select.select([idle.sock], [], [], 30)[0]  # the end has arrived
        assert [turn.want for turn in Counted.turns] == [0, 1, 2]
