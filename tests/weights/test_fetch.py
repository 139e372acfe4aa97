"""Fetches from one storage: cut, changed, wrong, full; what is served is whole, and what came is kept."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from pathlib import Path

import pytest

from longboat.core.errors import ClusterError, TransferError, UserInputError
from longboat.file_lock import FileLock
from longboat.weights.pieces.manifest import FileEntry, make_manifest
from longboat.weights.pieces.rate import Progress
from longboat.weights.sources.storage_errors import ObjectChangedError, RefusedError
from longboat.weights.store.piece_folder import PieceFolder
from longboat.weights.store.store import Store
from weights.conftest import MIB, MakeNode
from weights.range_server import RangeServer


def served(node_home: Path) -> list[str]:
    """Files that an engine could see."""
    return [path.name for path in (node_home / "weights" / "models").rglob("files/*")]


def test_what_is_served_is_what_the_storage_has(storage: RangeServer, node: MakeNode) -> None:
    seen: list[Progress] = []
    held = node().hold(storage.source, seen.append)
    wanted = {name: data for name, data in storage.files.items() if name != "SHA256SUMS"}
    assert {path.name: path.read_bytes() for path in held.path.iterdir()} == wanted
    assert seen[-1].have_bytes == seen[-1].total_bytes == sum(map(len, wanted.values()))
    assert seen[-1].left_s == 0
    held.release()


def test_weights_are_fetched_once(storage: RangeServer, node: MakeNode) -> None:
    node().hold(storage.source).release()
    sent = storage.sent_bytes
    node().hold(storage.source).release()
    assert storage.sent_bytes == sent


def test_processes_of_a_node_share_one_fetch(storage: RangeServer, node: MakeNode) -> None:
    held = []
    threads = [threading.Thread(target=lambda: held.append(node().hold(storage.source))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.path for one in held}) == 1
    assert storage.sent_bytes == 20 * MIB + 2
    for one in held:
        one.release()


def test_what_is_no_model_is_left_out_of_the_list(
    storage: RangeServer, node: MakeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node().hold(storage.source).release()
    models = tmp_path / "a" / "weights" / "models"
    (models / "notes.txt").write_text("of a person")
    (models / "lost+found").mkdir()
    store = Store(tmp_path / "a")
    assert [stored.source for stored in (*store.list(), *store.list())] == [storage.source] * 2
    assert caplog.text.count("notes.txt is left out") == 1
    assert store.published("notes.txt") is None
    assert store.opened("notes.txt") is None


def test_a_cut_fetch_continues_where_it_was(storage: RangeServer, node: MakeNode, tmp_path: Path) -> None:
    num_asked = 0

    def cut(name: str) -> int | None:
        nonlocal num_asked
        num_asked += name == "model.safetensors"
        return -1 if num_asked > 3 and name == "model.safetensors" else None

    storage.before = cut
    with pytest.raises(TransferError, match=r"[1-5] of 6 pieces are kept") as caught:
        node(parallel=1, patience_s=3.0).hold(storage.source)
    assert "continues where it was" in caught.value.hint
    assert served(tmp_path / "a") == []
    storage.before, storage.sent_bytes = (lambda name: None), 0
    held = node().hold(storage.source)
    assert storage.sent_bytes <= 9 * MIB
    assert (
        hashlib.sha256((held.path / "model.safetensors").read_bytes()).hexdigest()
        in storage.files["SHA256SUMS"].decode()
    )
    held.release()


def test_a_slow_storage_that_goes_on_sending_is_not_given_up(storage: RangeServer, node: MakeNode) -> None:
    storage.before = lambda name: time.sleep(1.0)  # no piece comes within the fetch's patience
    held = node(patience_s=0.3).hold(storage.source)
    assert (held.path / "model.safetensors").read_bytes() == storage.files["model.safetensors"]
    held.release()


def test_a_storage_that_cuts_every_response_is_given_up(storage: RangeServer, node: MakeNode) -> None:
    def cut(name: str) -> int | None:
        if name != "model.safetensors":
            return None
        time.sleep(random.random())  # some request runs at any time
        return -1

    storage.before = cut
    with pytest.raises(TransferError, match=r"1 of 6 pieces are kept"):
        node(patience_s=1.0).hold(storage.source)


def test_a_storage_that_is_away_is_named_and_what_is_there_is_used(storage: RangeServer, node: MakeNode) -> None:
    node().hold(storage.source).release()
    storage.before = lambda name: 503
    held = node().hold(storage.source)
    assert (held.path / "config.json").read_bytes() == b"{}"
    held.release()
    with pytest.raises(TransferError, match="503"):
        node("other").hold(storage.source)


def test_an_object_that_changes_is_named_and_never_mixed(storage: RangeServer, node: MakeNode, tmp_path: Path) -> None:
    other = bytes(20 * MIB)

    def change(name: str) -> None:
        if name == "model.safetensors":
            storage.files[name] = other

    storage.before = change
    with pytest.raises(ObjectChangedError, match=r"model.safetensors of .* changed while it was fetched"):
        node().hold(storage.source)
    assert served(tmp_path / "a") == []
    storage.before = lambda name: None
    storage.put("model.safetensors", other)
    held = node().hold(storage.source)
    assert (held.path / "model.safetensors").read_bytes() == other
    assert [stored.is_whole for stored in node().store.list()] == [True]
    held.release()


def test_a_hash_that_the_source_names_must_be_right(storage: RangeServer, node: MakeNode, tmp_path: Path) -> None:
    good = storage.files["model.safetensors"]
    storage.files["model.safetensors"] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(TransferError, match=r"model.safetensors .* has another hash"):
        node().hold(storage.source)
    assert served(tmp_path / "a") == []
    storage.files["model.safetensors"] = good
    node().hold(storage.source).release()


def test_an_expired_key_is_told_clearly_and_what_came_is_kept(storage: RangeServer, node: MakeNode) -> None:
    num_asked = 0

    def expire(name: str) -> int | None:
        nonlocal num_asked
        num_asked += name == "model.safetensors"
        return 403 if num_asked > 2 else None

    storage.before = expire
    with pytest.raises(RefusedError, match=r"refuses .* 403.*pieces are kept") as caught:
        node(parallel=1, patience_s=60.0).hold(storage.source)
    assert "netrc" in caught.value.hint
    storage.before, storage.sent_bytes = (lambda name: None), 0
    node().hold(storage.source).release()
    assert storage.sent_bytes < 20 * MIB


def test_a_budget_evicts_what_was_used_least_recently(storage: RangeServer, node: MakeNode) -> None:
    first = node(disk_bytes=30 * MIB).hold(storage.source)
    storage.put("model.safetensors", bytes(12 * MIB))
    with pytest.raises(ClusterError, match=r"budget is 30MiB.*weights in use take 20MiB") as caught:
        node(disk_bytes=30 * MIB).hold(storage.source)
    assert "weights.disk" in caught.value.hint
    assert (first.path / "config.json").exists()
    first.release()
    second = node(disk_bytes=30 * MIB).hold(storage.source)
    assert not first.path.exists()
    second.release()


def test_a_model_that_came_into_use_after_its_choice_is_kept_and_another_goes(
    storage: RangeServer, node: MakeNode, tmp_path: Path
) -> None:
    class Late(Store):
        """A process begins to use the first model that was chosen to go."""

        def evict(self, key: str) -> None:
            if not pins:
                pins.append(self.pin(key))
            super().evict(key)

    pins = list[FileLock | None]()
    found = []
    for number in range(2):
        storage.put("model.safetensors", bytes([number]) * (8 * MIB))
        found.append(node(disk_bytes=24 * MIB).hold(storage.source))
        found[-1].release()
    storage.put("model.safetensors", bytes(9 * MIB))
    weights = node(disk_bytes=24 * MIB)
    weights.store = Late(tmp_path / "a")
    weights.hold(storage.source).release()
    assert [held.path.exists() for held in found] == [True, False]
    assert pins[0] is not None
    pins[0].release()


def test_files_that_were_changed_on_the_disk_are_mended(storage: RangeServer, node: MakeNode) -> None:
    held = node().hold(storage.source)
    held.release()
    path = held.path / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[: 6 * MIB])
    storage.sent_bytes = 0
    again = node().hold(storage.source)
    assert (again.path / "model.safetensors").read_bytes() == storage.files["model.safetensors"]
    assert storage.sent_bytes <= 16 * MIB
    again.release()


def test_a_folder_is_copied_through_the_same_means(node: MakeNode, tmp_path: Path) -> None:
    shared = tmp_path / "nfs" / "qwen"
    (shared / "sub").mkdir(parents=True)
    (shared / "config.json").write_text("{}")
    (shared / "sub" / "a.txt").write_text("")
    (shared / "model.safetensors").write_bytes(bytes(5 * MIB))
    (shared / "pytorch_model.bin").write_bytes(bytes(MIB))
    held = node().hold(f"file://{shared}")
    found = sorted(str(path.relative_to(held.path)) for path in held.path.rglob("*") if path.is_file())
    assert found == ["config.json", "model.safetensors", "sub/a.txt"]
    held.release()


@pytest.mark.parametrize("target", [".", "link"])
def test_a_folder_whose_links_lead_in_a_circle_is_refused_by_the_name_of_the_link(
    node: MakeNode, tmp_path: Path, target: str
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "config.json").write_text("{}")
    (tmp_path / "shared" / "link").symlink_to(target)
    with pytest.raises(TransferError, match=r"the link /.*/shared/link leads back to itself") as caught:
        node().hold(f"file://{tmp_path}/shared")
    assert "remove the link" in caught.value.hint


def test_weights_whose_disk_fails_do_not_stay_pinned(storage: RangeServer, node: MakeNode, tmp_path: Path) -> None:
    class Failing(Store):
        """Its disk fails once a model is pinned."""

        has_pinned = False

        def pin(self, key: str) -> FileLock | None:
            self.has_pinned = True
            return super().pin(key)

        def published(self, key: str) -> PieceFolder | None:
            if self.has_pinned:
                raise ClusterError("the disk fails")
            return super().published(key)

    reader = node()
    reader.hold(storage.source).release()
    (key,) = Store(tmp_path / "a").whole(storage.source)
    reader.store = Failing(tmp_path / "a")
    with pytest.raises(ClusterError, match="the disk fails"):
        reader.hold(storage.source)
    Store(tmp_path / "a").evict(key)
    assert not Store(tmp_path / "a").whole(storage.source)


def test_weights_that_are_removed_before_they_are_pinned_are_fetched_again(
    storage: RangeServer, node: MakeNode, tmp_path: Path
) -> None:
    class Removing(Store):
        """Another process removes a model at the worst moment."""

        is_removing = True

        def pin(self, key: str) -> FileLock | None:
            if self.is_removing:
                self.evict(key)
            return super().pin(key)

    reader = node()
    reader.hold(storage.source).release()
    reader.store = store = Removing(tmp_path / "a")
    storage.before = lambda name: 503
    with pytest.raises(TransferError, match="503"):
        reader.hold(storage.source)
    storage.before = lambda name: None
    store.is_removing = False
    reader.hold(storage.source).release()
    store.is_removing = True
    fetched = storage.sent_bytes

    def stop_removing(name: str) -> None:
        store.is_removing = store.is_removing and name == "SHA256SUMS"

    storage.before = stop_removing
    held = reader.hold(storage.source)
    assert (held.path / "config.json").read_bytes() == b"{}"
    assert storage.sent_bytes > fetched
    held.release()


def test_room_that_a_fetch_under_way_needs_is_not_given_away(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = (
        make_manifest(f"s3://b/{name}", [FileEntry(path="x", size=20 * MIB, version="1")]) for name in "ab"
    )
    lock = store.fetch_lock(first.key)
    assert lock is not None
    with lock:
        store.begin(first, 30 * MIB)
        with pytest.raises(ClusterError, match="too full"):
            store.begin(second, 30 * MIB)
    store.begin(second, 30 * MIB)


def test_weights_that_another_process_only_lists_are_not_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = Store(tmp_path), make_manifest("s3://b/a", [FileEntry(path="x", size=MIB, version="1")])
    lock = store.fetch_lock(manifest.key)
    assert lock is not None
    with lock:
        store.begin(manifest, None)
    has_locks, release = threading.Event(), FileLock.release

    def release_late(lock: FileLock) -> None:
        if threading.current_thread() is not threading.main_thread():
            has_locks.set()
            time.sleep(0.3)
        release(lock)

    monkeypatch.setattr(FileLock, "release", release_late)
    for is_removed in (False, True):
        has_locks.clear()
        listing = threading.Thread(target=store.list)
        listing.start()
        assert has_locks.wait(20)
        if is_removed:
            store.evict(manifest.key)
        else:
            assert not store.list()[0].in_use
        listing.join(20)
    assert store.list() == []


def put_all(folder: PieceFolder) -> None:
    for piece in folder.pieces:
        data = bytes(piece.length)
        folder.put(piece, data, hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("left", [b"", b'{"source": "s3'])
def test_a_manifest_that_a_power_cut_emptied_is_written_again(tmp_path: Path, left: bytes) -> None:
    store, manifest = Store(tmp_path), make_manifest("s3://b/a", [FileEntry(path="x", size=MIB, version="1")])
    begun = store.begin(manifest, None)
    (begun.folder / "manifest.json").write_bytes(left)
    (begun.folder / "boot").write_text("another boot")
    folder = store.begin(manifest, None)
    put_all(folder)
    store.publish(folder)
    whole = store.published(manifest.key)
    assert whole is not None
    assert whole.manifest == manifest


def test_a_whole_model_whose_manifest_was_emptied_gets_another_one_and_keeps_its_pieces(
    storage: RangeServer, node: MakeNode
) -> None:
    held = node().hold(storage.source)
    held.release()
    (held.path.parent / "manifest.json").write_bytes(b"")
    sent = storage.sent_bytes
    again = node().hold(storage.source)
    assert (again.path / "model.safetensors").read_bytes() == storage.files["model.safetensors"]
    assert storage.sent_bytes == sent
    again.release()


@pytest.mark.parametrize("name", ["manifest.json", "files/model.safetensors"])
def test_a_disk_that_fails_is_told_and_its_whole_model_stays(storage: RangeServer, node: MakeNode, name: str) -> None:
    held = node().hold(storage.source)
    held.release()
    path = held.path.parent / name
    path.unlink()
    path.symlink_to(path)  # neither there nor absent: a look at it fails, as on a failing disk
    sent = storage.sent_bytes
    with pytest.raises(ClusterError, match=f"the disk of {held.path.parent} fails: .*symbolic links"):
        node().hold(storage.source)
    assert held.path.is_dir() and storage.sent_bytes == sent


@pytest.mark.parametrize("is_moved", [False, True], ids=["whole", "moved"])
def test_a_repair_that_was_cut_is_continued(tmp_path: Path, is_moved: bool) -> None:
    """Files of a published model are too long and read-only, and its record says that all is there."""
    entries = [FileEntry(path=path, size=MIB, version="1") for path in "xy"]
    store, manifest = Store(tmp_path), make_manifest("s3://b/a", entries)
    folder = store.begin(manifest, None)
    put_all(folder)
    store.publish(folder)
    whole, partial = (tmp_path / "weights" / kind / manifest.key for kind in ("models", "partial"))
    for path, data in (("x", bytes(MIB + 5)), ("y", bytes(MIB - 5) + b"wrong and longer")):
        (whole / "files" / path).chmod(0o644)
        (whole / "files" / path).write_bytes(data)
        (whole / "files" / path).chmod(0o444)
    if is_moved:
        (whole / "boot").unlink()
        whole.rename(partial)
    again = store.begin(manifest, None)
    assert [piece.path for piece in again.pieces if not again.record.has(piece.index)] == ["y"]
    assert {again.path(path).stat().st_mode & 0o777 for path in "xy"} == {0o644}
    put_all(again)
    store.publish(again)
    assert store.published(manifest.key) is not None


def test_a_store_that_cannot_be_written_is_an_error_of_its_disk(tmp_path: Path) -> None:
    manifest = make_manifest("s3://b/a", [FileEntry(path="x", size=MIB, version="1")])
    store = Store(tmp_path)
    folder = store.begin(manifest, None)
    put_all(folder)
    (tmp_path / "weights" / "models").write_bytes(b"")  # as on a damaged disk: a file in the folder's place
    with pytest.raises(ClusterError, match=r"the disk of .* fails: File exists"):
        store.publish(folder)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "weights").write_bytes(b"")
    for write in (lambda: Store(tmp_path / "b").fetch_lock("a"), lambda: Store(tmp_path / "b").begin(manifest, None)):
        with pytest.raises(ClusterError, match=r"the disk of .*/b/weights.* fails"):
            write()


@pytest.mark.parametrize("sha256", ["", hashlib.sha256(bytes(MIB)).hexdigest()], ids=["unnamed", "named"])
def test_a_file_that_was_lost_is_fetched_again(tmp_path: Path, sha256: str) -> None:
    store = Store(tmp_path)
    entry = FileEntry(path="x", size=MIB, version="1", sha256=sha256)
    folder = store.begin(make_manifest("s3://b/a", [entry]), None)
    for _ in range(2):
        (piece,) = folder.pieces
        folder.put(piece, bytes(MIB), hashlib.sha256(bytes(MIB)).hexdigest())
        folder.path("x").unlink()
        with pytest.raises(TransferError, match="x of s3://b/a is no longer in") as caught:
            store.publish(folder)
        assert "run it again" in caught.value.hint
        assert not folder.record.has(piece.index)
    folder.put(piece, bytes(MIB), hashlib.sha256(bytes(MIB)).hexdigest())
    store.publish(folder)
    assert store.published(folder.manifest.key) is not None


def test_all_of_a_model_is_on_the_disk_before_engines_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", noted)
    files = [FileEntry(path=path, size=size, version="1") for path, size in (("a/b/x", MIB), ("empty", 0))]
    store, manifest = Store(tmp_path), make_manifest("s3://b/a", files)
    folder = store.begin(manifest, None)
    put_all(folder)
    store.publish(folder)
    names = ("manifest.json", "pieces", "", "files", "files/a", "files/a/b", "files/a/b/x", "files/empty")
    assert {folder.folder / name for name in names} <= set(synced)
    assert synced[-1] == tmp_path / "weights" / "models"
    assert (tmp_path / "weights" / "models" / manifest.key / "files/empty").stat().st_mode & 0o777 == 0o444


def test_a_process_that_makes_room_without_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longboat.weights.store.places.ROOM_S", 0.1)
    store, path = Store(tmp_path), tmp_path / "weights" / "locks" / "room.room"
    other = FileLock.taken(path)
    assert other is not None
    manifest = make_manifest("s3://b/a", [FileEntry(path="x", size=MIB, version="1")])
    with other, pytest.raises(ClusterError, match="making room") as caught:
        store.begin(manifest, None)
    assert str(path) in caught.value.hint
    store.begin(manifest, None)


def test_plain_http_without_a_list_of_files_says_how_to_make_one(storage: RangeServer, node: MakeNode) -> None:
    del storage.files["SHA256SUMS"]
    with pytest.raises(UserInputError, match="SHA256SUMS") as caught:
        node().hold(storage.source)
    assert "sha256sum" in caught.value.hint


def test_one_gguf_file_is_a_model(storage: RangeServer, node: MakeNode) -> None:
    storage.put("q-00001-of-00002.gguf", b"one")
    storage.put("q-00002-of-00002.gguf", b"two")
    held = node().hold(f"{storage.source}/q-00001-of-00002.gguf")
    assert held.path.read_bytes() == b"one"
    assert sorted(path.name for path in held.path.parent.iterdir()) == [
        "q-00001-of-00002.gguf",
        "q-00002-of-00002.gguf",
    ]
    held.release()


def test_a_server_that_sends_whole_files_only_is_named_at_once(storage: RangeServer, node: MakeNode) -> None:
    storage.put("config.json", b"{}")
    storage.knows_ranges = False
    with pytest.raises(RefusedError, match="ignores the header Range") as raised:
        node("one").hold(storage.source)
    assert "nginx" in raised.value.hint


def test_a_later_part_names_the_model_and_engines_get_the_first(node: MakeNode, tmp_path: Path) -> None:
    for name in ("q-00001-of-00002.gguf", "q-00002-of-00002.gguf", "q-00003-of-00000.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    for named, given in (("q-00002-of-00002", "q-00001-of-00002"), ("q-00003-of-00000", "q-00003-of-00000")):
        held = node().hold(f"file://{tmp_path}/{named}.gguf")
        assert held.path.read_text() == f"{given}.gguf"
        held.release()
