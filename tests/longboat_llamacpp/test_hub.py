"""Files of a hub: fetched once, continued where a download stopped, and refused where the hub does not have them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from longboat_llamacpp.hub import fetched

CONTENT = bytes(range(256)) * 40


class Hub(BaseHTTPRequestHandler):
    """A hub with the files of one repository.

    It ends the first answer about ``short.gguf`` too early, and sends the rest of ``gated.gguf`` when it may.
    """

    content: ClassVar[bytes]
    tag: ClassVar[str]
    knows_if_range: ClassVar[bool]
    asked: ClassVar[list[tuple[str, str]]]
    ended_early: ClassVar[set[str]]
    may_end: ClassVar[threading.Event]

    def do_GET(self) -> None:
        name = self.path.removeprefix("/org/name-GGUF/resolve/main/")
        is_same = self.headers.get("if-range") == self.tag or not self.knows_if_range
        first = int((self.headers.get("range") or "bytes=0-")[len("bytes=") : -1]) if is_same else 0
        self.asked.append((name, self.headers.get("range") or ""))
        if not name.endswith(".gguf") or name.startswith("none"):
            self.send_error(404)
            return
        if first >= len(self.content):
            self.send_response(416)
            self.send_header("content-range", f"bytes */{len(self.content)}")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(206 if first else 200)
        self.send_header("content-length", str(len(self.content) - first))
        self.send_header("etag", self.tag)
        self.end_headers()
        is_short = name == "short.gguf" and name not in self.ended_early
        self.ended_early.add(name)
        if name == "gated.gguf":
            self.wfile.write(self.content[first : first + 1000])
            assert self.may_end.wait(30)
            first += 1000
        self.wfile.write(self.content[first : 1000 if is_short else None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class ThisHub(Hub):
        asked: ClassVar[list[tuple[str, str]]] = []
        ended_early: ClassVar[set[str]] = set()
        may_end: ClassVar[threading.Event] = threading.Event()
        content: ClassVar[bytes] = CONTENT
        tag: ClassVar[str] = '"first"'
        knows_if_range: ClassVar[bool] = True

    with ThreadingHTTPServer(("127.0.0.1", 0), ThisHub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        yield ThisHub
        ThisHub.may_end.set()
        server.shutdown()
        thread.join()


def test_a_file_is_fetched_once(hub: type[Hub]) -> None:
    path = fetched("org/name-GGUF", "q8.gguf")
    assert Path(path).read_bytes() == CONTENT
    assert fetched("org/name-GGUF", "q8.gguf") == path
    assert len(hub.asked) == 1


def test_a_file_is_on_the_disk_before_it_has_its_name(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int, bool]] = []

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size, any(tmp_path.rglob("q8.gguf"))))

    monkeypatch.setattr("os.fsync", sync)
    path = Path(fetched("org/name-GGUF", "q8.gguf"))
    assert synced == [(path.stat().st_ino, len(CONTENT), False)]


def test_a_file_lies_among_the_caches_of_the_user(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert Path(fetched("org/name-GGUF", "q8.gguf")).is_relative_to(tmp_path / "caches" / "huggingface")


def test_all_parts_are_fetched_and_the_first_is_returned(hub: type[Hub]) -> None:
    path = fetched("org/name-GGUF", "big/q8-00001-of-00003.gguf")
    assert path.endswith("big/q8-00001-of-00003.gguf")
    assert [name for name, _ in hub.asked] == [f"big/q8-0000{part}-of-00003.gguf" for part in (1, 2, 3)]


def test_an_interrupted_download_goes_on_where_it_stopped(hub: type[Hub]) -> None:
    with pytest.raises(SystemExit, match="did not arrive"):
        fetched("org/name-GGUF", "short.gguf")
    assert Path(fetched("org/name-GGUF", "short.gguf")).read_bytes() == CONTENT
    assert hub.asked[-1] == ("short.gguf", "bytes=1000-")


@pytest.mark.parametrize("knows_if_range", [True, False], ids=["If-Range", "no If-Range"])
def test_a_download_starts_again_where_the_file_is_another_since(hub: type[Hub], knows_if_range: bool) -> None:
    with pytest.raises(SystemExit, match="did not arrive"):
        fetched("org/name-GGUF", "short.gguf")
    hub.content, hub.tag, hub.knows_if_range = CONTENT[::-1], '"second"', knows_if_range
    path = Path(fetched("org/name-GGUF", "short.gguf"))
    assert path.read_bytes() == CONTENT[::-1]
    assert [file.name for file in path.parent.iterdir() if not file.name.startswith(".")] == ["short.gguf"]


@pytest.mark.parametrize("tag", ["", 'W/"first"'], ids=["none", "weak"])
def test_a_download_without_a_strong_etag_starts_again(hub: type[Hub], tag: str) -> None:
    hub.tag = tag
    with pytest.raises(SystemExit, match="did not arrive"):
        fetched("org/name-GGUF", "short.gguf")
    assert Path(fetched("org/name-GGUF", "short.gguf")).read_bytes() == CONTENT
    assert hub.asked == [("short.gguf", "")] * 2


def test_a_missing_file_is_an_error_without_a_file(hub: type[Hub], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no none\.gguf for us: HTTP 404"):
        fetched("org/name-GGUF", "none.gguf")
    assert not list(tmp_path.rglob("none.gguf*"))


def test_processes_that_need_the_same_file_download_it_once(hub: type[Hub], tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        runs = [pool.apply_async(fetched, ("org/name-GGUF", "gated.gguf")) for _ in range(3)]
        while not list(tmp_path.rglob("gated.gguf.partial")):
            runs[0].wait(0.05)
        runs[1].wait(1.0)  # the others have begun, or wait
        hub.may_end.set()
        paths = {run.get(60) for run in runs}
    assert [Path(path).read_bytes() for path in paths] == [CONTENT]
    assert hub.asked == [("gated.gguf", "")]


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"and more"], ids=["whole", "longer than the file"])
def test_a_download_that_has_nothing_left_to_ask_for_ends(hub: type[Hub], tmp_path: Path, left: bytes) -> None:
    folder = tmp_path / "longboat-gguf" / "org" / "name-GGUF"
    folder.mkdir(parents=True)
    (folder / "q8.gguf.partial").write_bytes(left)
    (folder / "q8.gguf.partial.etag").write_text(hub.tag)
    assert Path(fetched("org/name-GGUF", "q8.gguf")).read_bytes() == CONTENT
    assert ("q8.gguf", "") in hub.asked or left == CONTENT
    assert not list(folder.glob("*.partial*"))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_file_system_without_locks_takes_a_download_that_no_other_process_writes_to(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    folder = tmp_path / "longboat-gguf" / "org" / "name-GGUF"
    folder.mkdir(parents=True)
    (folder / "q8.gguf.partial").write_bytes(b"of another process")
    assert Path(fetched("org/name-GGUF", "q8.gguf")).read_bytes() == CONTENT
    with pytest.raises(SystemExit, match="did not arrive"):
        fetched("org/name-GGUF", "short.gguf")
    assert [path.name for path in folder.glob("*.partial")] == ["q8.gguf.partial"]
    assert hub.asked[0] == ("q8.gguf", "")
