"""One request as it came off a client's connection."""

from __future__ import annotations

import hashlib
import time

from longboat.gateway.http.responses import Refusal

__all__ = ("Request", "path_text", "request_digest")


class Request:
    """Filled while it is read; complete when the client's connection hands it on.

    url: as sent, with the query; forwarded: header lines that the engine gets, each with its line end
    noted: headers that the gateway reads, lower-case name → value (repeated ones joined by a comma)
    refusal: set where reading itself found the request bad; nothing after it is read
    extra_lines: header lines that its answer gets besides (CORS), each with its line end
    held_bytes: what its body counts for in the process's budget
    """

    __slots__ = (
        "extra_lines",
        "forwarded",
        "held_bytes",
        "http_1_0",
        "keep_alive",
        "method",
        "noted",
        "pieces",
        "received_s",
        "refusal",
        "request_id",
        "url",
    )

    def __init__(
        self,
        url: bytes = b"",
        method: str = "",
        request_id: str = "",
        noted: dict[bytes, bytes] | None = None,
        forwarded: list[bytes] | None = None,
    ) -> None:
        self.url = url
        self.method = method
        self.request_id = request_id
        self.noted = {} if noted is None else noted
        self.forwarded = [] if forwarded is None else forwarded
        self.pieces: list[bytes] = []
        self.http_1_0 = False
        self.keep_alive = True
        self.held_bytes = 0
        self.refusal: Refusal | None = None
        self.extra_lines = b""
        self.received_s = time.monotonic()

    def path_text(self) -> str:
        """The path without its query, as logs show it."""
        return path_text(self.url)

    def body(self) -> bytes:
        """The whole body; it is held once."""
        if len(self.pieces) != 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0]

    def headers_named(self, names: frozenset[str]) -> dict[str, str]:
        """Those of the headers, by lower-case name."""
        lines = (line.rstrip(b"\r\n").partition(b":") for line in self.forwarded)
        found = {name.lower().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in lines}
        found.update((name.decode(), value.decode("latin-1")) for name, value in self.noted.items())
        return {name: found[name] for name in names if name in found}


def path_text(url: bytes) -> str:
    """A target without its query, as logs show it."""
    return url.partition(b"?")[0][:200].decode("latin-1")


def request_digest(path: bytes, body: bytes) -> str:
    """Return what identifies a request when it comes again."""
    return hashlib.blake2b(body, digest_size=16, key=path[:64]).hexdigest()
