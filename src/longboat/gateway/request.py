"""One request as it came off a client's connection."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from longboat.gateway.answers import Refusal

__all__ = ("Request",)


@dataclass(slots=True, eq=False)
class Request:
    """Filled while it is read; complete when the client's connection hands it on.

    url: as sent, with the query; forwarded: header lines that the engine gets, each with its line end
    noted: headers that the gateway reads, lower-case name → value (repeated ones joined by a comma)
    refusal: set where reading itself found the request bad; nothing after it is read
    held_bytes: what its body counts for in the process's budget
    """

    url: bytes = b""
    method: str = ""
    http_1_0: bool = False
    keep_alive: bool = True
    request_id: str = ""
    noted: dict[bytes, bytes] = field(default_factory=dict)
    forwarded: list[bytes] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    held_bytes: int = 0
    refusal: Refusal | None = None
    received_s: float = field(default_factory=time.monotonic)

    def body(self) -> bytes:
        """The whole body; it is held once."""
        if len(self.pieces) != 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0]
