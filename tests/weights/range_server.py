"""A storage with plain HTTP and ranges, in this process: it counts what it sends, and fails as it is told to."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ("RangeServer", "main", "serving")

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class RangeServer(ThreadingHTTPServer):
    """Files by name, below /model/."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(address, _Handler)
        self.files: dict[str, bytes] = {}
        self.sent_bytes = 0  # of bodies of weights
        self.requests: list[str] = []
        self.before: Callable[[str], int | None] = lambda name: None
        """Called before each answer: a status in place of the answer, -1 to cut the body in its middle."""
        self.knows_ranges = True  # or it sends whole files only, as Python's http.server
        self.lock = threading.Lock()

    @property
    def source(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/model"

    def put(self, name: str, data: bytes) -> None:
        """Write a file and name its hash."""
        self.files[name] = data
        others = (other for other in self.files if other != "SHA256SUMS")
        lines = [f"{hashlib.sha256(self.files[other]).hexdigest()}  {other}" for other in sorted(others)]
        self.files["SHA256SUMS"] = "\n".join(lines).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that are cut are no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        if self.path == "/sent":
            self.server.files["sent"] = str(self.server.sent_bytes).encode()
            self.path = "/model/sent"
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        name = self.path.removeprefix("/model/")
        data = self.server.files.get(name)
        asked = _RANGE.fullmatch(self.headers.get("Range", "")) if self.server.knows_ranges else None
        with self.server.lock:
            self.server.requests.append(name)
        status = self.server.before(name) if with_body else None
        etag = f'"{hashlib.md5(data).hexdigest()}"' if data is not None else ""  # noqa: S324 - a name, no proof
        if data is None or (status or 0) > 0:
            self.close(404 if data is None else status or 0)
            return
        if self.headers.get("If-Match") not in (None, etag):
            self.close(412)
            return
        start, end = (int(asked[1]), min(int(asked[2]) + 1, len(data))) if asked else (0, len(data))
        self.send_response_only(206 if asked else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 06:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        if not with_body:
            return
        body = data[start:end] if status is None else data[start : (start + end) // 2]
        self.wfile.write(body)
        if name != "SHA256SUMS":
            with self.server.lock:
                self.server.sent_bytes += len(body)
        self.close_connection = self.close_connection or status is not None

    def close(self, status: int) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


def main(address: str, port: int, what: str) -> None:
    """Serve a model until killed: for hosts of the lab. what: its folder, or the bytes of its one file."""
    server = RangeServer((address, port))
    if what.isdigit():
        server.put("model.safetensors", random.Random(1).randbytes(int(what)))
    for path in () if what.isdigit() else Path(what).iterdir():
        server.put(path.name, path.read_bytes())
    server.serve_forever()


@contextmanager
def serving() -> Iterator[RangeServer]:
    """A server in a thread, gone when the block is left."""
    server = RangeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
