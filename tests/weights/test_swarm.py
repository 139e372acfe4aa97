"""Nodes that give each other pieces: what the storage sends, wrong bytes, nodes that die, and who may ask."""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from longboat.core.errors import TransferError
from longboat.weights.pieces.rate import Progress
from longboat.weights.pieces.tracker import StorageLimits
from longboat.weights.pieces.turns import Turn
from longboat.weights.sources.open_store import StorageOptions
from longboat.weights.sources.storage import Storage
from longboat.weights.store.store import Store
from longboat.weights.swarm.node_client import NodeClient
from longboat.weights.swarm.proof import HEADER, request_proof
from longboat.weights.swarm.swarm_link import SwarmLink
from longboat.weights.swarm.swarm_member import SwarmMember
from weights.conftest import MIB, MakeNode
from weights.range_server import RangeServer

TOKEN = "a token of the tests"
SIZE = 20 * MIB + 2
Join = Callable[..., SwarmMember]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Makes members: ``join("a")`` is a tracker too, ``join("b", a)`` asks a's."""
    with ExitStack() as stack:

        def make(name: str, tracker: SwarmMember | None = None) -> SwarmMember:
            trackers = (tracker.address.member,) if tracker else ()
            member = SwarmMember(Store(tmp_path / name), TOKEN, "127.0.0.1", trackers=trackers)
            return stack.enter_context(member)

        yield make


def test_the_second_node_asks_the_storage_for_nothing(storage: RangeServer, node: MakeNode, join: Join) -> None:
    a = join("a")
    node("a", a.address).hold(storage.source).release()
    a.seeder.take_turns()
    storage.sent_bytes = 0
    seen: list[Progress] = []
    b = join("b", a)
    held = node("b", b.address).hold(storage.source, seen.append)
    assert (held.path / "model.safetensors").read_bytes() == storage.files["model.safetensors"]
    assert storage.sent_bytes == 0
    assert (seen[-1].from_storage_bytes, seen[-1].from_nodes_bytes) == (0, SIZE)
    held.release()


def test_nodes_that_fetch_at_once_read_each_byte_once(storage: RangeServer, node: MakeNode, join: Join) -> None:
    first = join("0")
    members = [first, *(join(str(number), first) for number in range(1, 4))]
    nodes = [node(str(number), member.address) for number, member in enumerate(members)]
    threads = [threading.Thread(target=lambda n=n: n.hold(storage.source).release()) for n in nodes]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(stored.is_whole for n in nodes for stored in n.store.list())
    assert storage.sent_bytes == SIZE


def test_wrong_bytes_of_a_node_are_not_taken(storage: RangeServer, node: MakeNode, join: Join) -> None:
    a = join("a")
    bad = node("a", a.address).hold(storage.source)
    path = bad.path / "model.safetensors"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"wrong")
    a.seeder.take_turns()
    storage.sent_bytes = 0
    b = join("b", a)
    held = node("b", b.address, patience_s=20.0).hold(storage.source)
    assert (held.path / "model.safetensors").read_bytes() == storage.files["model.safetensors"]
    assert 4 * MIB <= storage.sent_bytes < 20 * MIB
    held.release()
    bad.release()


def test_wrong_bytes_that_the_storage_gave_once_are_not_handed_round(
    storage: RangeServer, node: MakeNode, join: Join
) -> None:
    data = storage.files["model.safetensors"]
    a = join("a")
    b = join("b", a)
    weights = node("b", b.address)
    manifest = Storage(storage.source, StorageOptions(), env={}).manifest()
    folder = weights.store.begin(manifest, None)
    for piece in folder.pieces:  # b is about to check what the storage gave it
        wrong = bytes(piece.length)
        folder.put(piece, wrong, hashlib.sha256(wrong).hexdigest())
    turn = Turn(member=b.address.member, num_pieces=len(folder.pieces), piece_bytes=manifest.piece_bytes)
    client = NodeClient(TOKEN)
    SwarmLink(folder, StorageLimits(), client, b.address).turn(turn)
    client.close()
    with pytest.raises(TransferError, match="another hash"):
        node("a", a.address).hold(storage.source)
    held = node("a", a.address).hold(storage.source)
    assert (held.path / "model.safetensors").read_bytes() == data
    held.release()


def test_a_node_that_dies_is_replaced_by_the_storage(storage: RangeServer, node: MakeNode, join: Join) -> None:
    tracker = join("tracker")
    a = SwarmMember(Store(tmp_home(join, "a")), TOKEN, "127.0.0.1", trackers=(tracker.address.member,))
    a.start()
    source = storage.source
    node("a", a.address).hold(source).release()
    a.seeder.take_turns()
    a.stop()
    b = join("b", tracker)
    held = node("b", b.address, patience_s=20.0).hold(source)
    assert (held.path / "model.safetensors").read_bytes() == storage.files["model.safetensors"]
    held.release()


def test_a_lost_tracker_does_not_stop_a_fetch(storage: RangeServer, node: MakeNode, join: Join) -> None:
    dead = SwarmMember(Store(tmp_home(join, "dead")), TOKEN, "127.0.0.1")
    dead.start()
    dead.stop()
    spare = join("spare")
    addresses = (dead.address.member, spare.address.member)
    a = SwarmMember(Store(tmp_home(join, "a")), TOKEN, "127.0.0.1", trackers=addresses)
    with a:
        node("a", a.address, patience_s=20.0).hold(storage.source).release()
    assert spare.server.tracker is not None
    (key,) = (stored.key for stored in node("a").store.list())
    assert spare.server.tracker.holders(key) == {a.address.member: 6}


def test_a_fetch_follows_its_node_to_another_tracker(storage: RangeServer, node: MakeNode, join: Join) -> None:
    a, b = join("a"), join("b")
    folder = node("a").store.published(node("a", a.address).hold(storage.source).key)
    assert folder is not None
    lost = replace(a.address, trackers=("127.0.0.1:1",), token="an older token")
    client = NodeClient(lost.token)
    link = SwarmLink(folder, StorageLimits(), client, lost, lambda: b.address)
    assert b.server.tracker is not None
    end_s = time.monotonic() + 30
    while not b.server.tracker.holders(folder.manifest.key) and time.monotonic() < end_s:
        link.turn(Turn(member=link.member, num_pieces=6, piece_bytes=4 * MIB))
        time.sleep(0.1)
    client.close()
    assert b.server.tracker.holders(folder.manifest.key) == {b.address.member: 6}


def test_a_model_that_cannot_be_read_keeps_no_other_from_being_offered(
    storage: RangeServer, node: MakeNode, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    a = join("a")
    first = node("a", a.address).hold(storage.source)
    storage.put("config.json", b"{ }")  # another version is another model
    second = node("a", a.address).hold(storage.source)
    broken, sound = sorted((first, second), key=lambda held: held.key)  # turns are taken in this order
    weights = broken.path / "model.safetensors"
    weights.unlink()
    weights.symlink_to(weights)
    other = SwarmMember(Store(tmp_home(join, "b")), TOKEN, "127.0.0.1")
    with other:
        a.seeder.follow(other.address)
        a.seeder.take_turns()
        assert other.server.tracker is not None
        assert list(other.server.tracker.holders(sound.key).values()) == [6]
    assert f"the weights {broken.key} cannot be offered" in caplog.text


def test_a_piece_that_another_process_forgot_is_not_given(storage: RangeServer, node: MakeNode, join: Join) -> None:
    a = join("a")
    key = node("a").hold(storage.source).key
    assert a.server.piece(key, 1) is not None
    folder = node("a").store.published(key)
    assert folder is not None
    path = folder.path("model.safetensors")
    path.chmod(0o644)
    path.write_bytes(bytes(20 * MIB))
    assert folder.recheck() == ("model.safetensors",)
    assert a.server.piece(key, 1) is None
    assert a.server.piece(key, 0) is not None


def test_a_node_that_the_storage_refuses_is_fed_by_others(storage: RangeServer, node: MakeNode, join: Join) -> None:
    a = join("a")
    node("a", a.address).hold(storage.source).release()
    a.seeder.take_turns()
    storage.before = lambda name: 403 if name == "model.safetensors" else None
    b = join("b", a)
    node("b", b.address).hold(storage.source).release()


def test_a_node_that_the_storage_refuses_once_tries_again(storage: RangeServer, node: MakeNode, join: Join) -> None:
    before: list[str] = []

    def refuse(name: str) -> int | None:
        if name != "model.safetensors":
            return None
        before.append(name)
        return 403 if len(before) == 1 else None

    storage.before = refuse
    node("a", join("a").address, parallel=1).hold(storage.source).release()
    assert len(before) == 6


def test_pieces_are_given_only_for_a_proof(storage: RangeServer, node: MakeNode, join: Join) -> None:
    a = join("a")
    key = node("a", a.address).hold(storage.source).key
    host, _, port = a.address.member.partition(":")
    path, now_s = f"/pieces/{key}/0", time.time()
    proofs = {
        "none": "",
        "of another token": request_proof("another", "GET", path, b"", now_s),
        "of another path": request_proof(TOKEN, "GET", f"/pieces/{key}/1", b"", now_s),
        "of another hour": request_proof(TOKEN, "GET", path, b"", now_s - 3600),
        "not one": "x:y",
    }
    for name, proof in proofs.items():
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        connection.request("GET", path, headers={HEADER: proof})
        assert connection.getresponse().status == 401, name
        connection.close()
    with pytest.raises(TransferError, match="401"):
        NodeClient("another").turn(a.address.member, key, Turn(member="x:1", num_pieces=1, piece_bytes=1))


@pytest.mark.parametrize("key", ["..", "../../etc", "a/../..", "%2e%2e", "unknown-key"])
def test_only_pieces_of_the_store_can_be_named(storage: RangeServer, join: Join, key: str) -> None:
    a = join("a")
    with pytest.raises(TransferError, match="404"):
        NodeClient(TOKEN).piece(a.address.member, key, 0, 10)


def tmp_home(join: Join, name: str) -> Path:
    """Folder beside those of the members."""
    member = join("somewhere")
    return member.server.store.folder.parent.parent / name
