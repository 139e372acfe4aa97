"""The client of other nodes: pieces of which the first bytes arrive together with the head of the response."""

from __future__ import annotations

import random
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from longboat.weights.swarm.node_client import NodeClient

PIECE = random.Random(3).randbytes(256 << 10)


class Giver(socketserver.StreamRequestHandler):
    """Sends the head and the piece at once. The piece's number is its length."""

    def handle(self) -> None:
        while request := self.rfile.readline():
            while self.rfile.readline() != b"\r\n":
                pass
            length = int(request.split()[1].rpartition(b"/")[2])
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + PIECE[:length])


@pytest.fixture
def giver() -> Iterator[str]:
    """HOST:PORT of a node that gives pieces."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Giver) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield "{}:{}".format(*server.server_address)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("length", [1, 8_000, 10_000, 16_000, 20_000, 64_000, 100_000, 200_000, 256 << 10])
def test_a_piece_that_arrives_with_its_head_is_read_without_a_stall(giver: str, length: int) -> None:
    with closing(NodeClient("a token of the tests", stall_s=10.0)) as client:
        for _ in range(3):  # on one connection
            assert client.piece(giver, "key", length, length) == PIECE[:length]
