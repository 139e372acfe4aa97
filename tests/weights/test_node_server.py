"""The server of a node: more nodes than it has connections at a time."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from longboat.core.errors import TransferError
from longboat.weights.pieces.manifest import FileEntry, make_manifest
from longboat.weights.pieces.tracker import StorageLimits, Tracker
from longboat.weights.pieces.turns import Inventory, Turn
from longboat.weights.store.store import Store
from longboat.weights.swarm.node_client import NodeClient
from longboat.weights.swarm.node_server import MAX_BODY_BYTES, MAX_HEAD_BYTES, NodeServer
from longboat.weights.swarm.proof import HEADER, request_proof

TOKEN = "a token of the tests"
DATA = bytes(64)
MANIFEST = make_manifest("s3://b/m", [FileEntry(path="a.safetensors", size=len(DATA), version='"1"')])
KEY = MANIFEST.key
PLACES = 4
TURN = Turn(member="10.0.0.1:1", num_pieces=1, piece_bytes=1)
Client = Callable[[], NodeClient]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NodeServer]:
    """A tracker and giver of one model, with few places for connections."""
    store = Store(tmp_path)
    folder = store.begin(MANIFEST, None)
    folder.put(folder.pieces[0], DATA, hashlib.sha256(DATA).hexdigest())
    store.publish(folder)
    server = NodeServer(store, TOKEN, "127.0.0.1", 0, Tracker(StorageLimits()), PLACES)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def client() -> Iterator[Client]:
    """Makes nodes' clients, which keep their connections as long as the server does."""
    with ExitStack() as stack:

        def make() -> NodeClient:
            made = NodeClient(TOKEN)
            stack.callback(made.close)
            return made

        yield make


def connection_to(server: NodeServer) -> socket.socket:
    host, _, port = server.at.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def wait_until(is_so: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 30
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return is_so()


def test_more_nodes_than_connections_take_turns_and_pieces(server: NodeServer, client: Client) -> None:
    clients = [client() for _ in range(PLACES * 4)]
    for _ in range(2):
        for each in clients:
            each.turn(server.at, KEY, TURN)
            assert each.piece(server.at, KEY, 0, len(DATA)) == DATA


def test_a_machine_without_a_further_thread_keeps_no_places(
    server: NodeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", refuse)
        for _ in range(PLACES):
            with pytest.raises(TransferError):
                client().turn(server.at, KEY, TURN)
    assert len(refused) >= PLACES
    client().turn(server.at, KEY, TURN)


def test_bodies_without_a_proof_take_bounded_memory(server: NodeServer, client: Client) -> None:
    server.large_bodies.most = 1
    with connection_to(server) as sock:
        sock.sendall(f"POST /swarm/{KEY} HTTP/1.1\r\nContent-Length: {MAX_BODY_BYTES}\r\n\r\n{{".encode())
        assert wait_until(lambda: server.large_bodies.is_crowded)
        client().turn(server.at, KEY, TURN)
        assert not server.large_bodies.enter(0)
    assert server.large_bodies.enter(30)
    server.large_bodies.leave()
    hashes = {piece: "0" * 64 for piece in range(2000)}
    turn = Turn(member="10.0.0.1:1", num_pieces=2000, piece_bytes=1, inventory=Inventory(hashes=hashes))
    assert client().turn(server.at, "another", turn).is_member


def test_heads_are_bounded(server: NodeServer) -> None:
    with connection_to(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * (MAX_HEAD_BYTES - 3) + b"\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 431 ")


def test_pieces_leave_places_for_turns(server: NodeServer, client: Client) -> None:
    for _ in range(PLACES // 2):
        assert server.pieces.enter(0)
    with pytest.raises(TransferError, match="503"):
        client().piece(server.at, KEY, 0, len(DATA))
    client().turn(server.at, KEY, TURN)
    server.pieces.leave()
    assert client().piece(server.at, KEY, 0, len(DATA)) == DATA


def test_a_connection_is_kept_until_the_server_is_crowded(server: NodeServer) -> None:
    host, _, port = server.at.partition(":")
    path = f"/pieces/{KEY}/0"
    connections = [http.client.HTTPConnection(host, int(port), timeout=30) for _ in range(PLACES)]
    kept = []
    for connection in connections:
        connection.request("GET", path, headers={HEADER: request_proof(TOKEN, "GET", path, b"", time.time())})
        assert connection.getresponse().read() == DATA
        kept.append(connection.sock is not None)
    for connection in connections:
        connection.close()
    assert kept == [True, True, False, False]
