"""One request as it arrived on a client's connection."""

from __future__ import annotations

import hashlib
import time
from typing import Final

from longboat.gateway.http.responses import Refusal

__all__ = ("Request", "path_text", "request_digest")

_monotonic_s: Final = time.monotonic  # of a module, compiled code would look it up by its name each time


class Request:
    """A request, filled while it is read; complete when the client's connection hands it on."""

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
        self.url = url  # as sent, with the query
        self.method = method
        self.request_id = request_id
        # Headers that the gateway reads: lower-case name → value (repeated ones joined by a comma).
        self.noted = {} if noted is None else noted
        # Header lines that the engine gets, each with its line end.
        self.forwarded = [] if forwarded is None else forwarded
        self.pieces: list[bytes] = []
        self.http_1_0 = False
        self.keep_alive = True
        self.held_bytes = 0  # size by which its body counts in the process's budget
        self.refusal: Refusal | None = None  # set where reading found the request bad; the rest of it is not read
        self.extra_lines = b""  # further header lines of its response (CORS, request-id), each with its line end
        self.received_s = _monotonic_s()

    def path_text(self) -> str:
        """Return the path without its query, as logs show it."""
        return path_text(self.url)

    def body(self) -> bytes:
        """Return the whole body, which is held once."""
        if len(self.pieces) != 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0]

    def headers_named(self, names: frozenset[str]) -> dict[str, str]:
        """Return the headers of these names, by lower-case name."""
        lines = (line.rstrip(b"\r\n").partition(b":") for line in self.forwarded)
        found = {name.lower().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in lines}
        found.update((name.decode(), value.decode("latin-1")) for name, value in self.noted.items())
        return {name: found[name] for name in names if name in found}


def path_text(url: bytes) -> str:
    """Return a target without its query, as logs show it."""
    return url.partition(b"?")[0][:200].decode("latin-1")


def request_digest(path: bytes, body: bytes) -> str:
    """Return what identifies a request when it comes again."""
    return hashlib.blake2b(body, digest_size=16, key=path[:64]).hexdigest()
