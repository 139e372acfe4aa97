"""Defines which headers cross the gateway, and how the end of a body is marked."""

from __future__ import annotations

import enum
from collections.abc import Iterable

__all__ = ("NOTED", "WITHHELD", "Framing", "connection_tokens", "end_to_end_lines", "without_named")

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade".split()
)

NOTED = frozenset(
    b"host connection content-length content-encoding transfer-encoding expect upgrade x-request-id"
    b" authorization x-api-key api-key content-type origin traceparent tracestate x-request-deadline x-request-timeout"
    b" last-event-id x-longboat-resume cookie"
    b" x-forwarded-for forwarded access-control-request-method access-control-request-headers".split()
)
"""Request headers that the gateway itself reads; it writes its own in their place."""

WITHHELD = _HOP_BY_HOP | frozenset(
    b"authorization api-key x-api-key cookie accept-encoding x-conversation-id x-data-parallel-rank".split()
)
"""Request headers that engines never see: hop-by-hop ones, the client's secrets, what would let an engine compress (the
gateway must be able to add an event to a stream), what would let llama.cpp go on when its client is gone, and what
would choose a part of a data parallel engine."""

_KEPT_FROM_CLIENT = _HOP_BY_HOP | frozenset(
    b"server x-request-id request-id access-control-allow-origin access-control-allow-credentials"
    b" access-control-expose-headers x-longboat-journal".split()
)
"""Response headers of engines that clients do not get: the gateway writes its own, or none."""


class Framing(enum.Enum):
    """How the client sees the end of a response body."""

    IDENTITY = "identity"  # content-length, or no body at all
    CHUNKED = "chunked"
    CLOSE = "close"  # the connection's end; for HTTP/1.0 clients


def connection_tokens(value: bytes) -> frozenset[bytes]:
    """Return the lower-case names in a Connection header."""
    return frozenset(token.strip().lower() for token in value.split(b","))


def without_named(lines: Iterable[bytes], names: frozenset[bytes]) -> list[bytes]:
    """Return the header lines without those that the Connection header names."""
    return [line for line in lines if line.partition(b":")[0].lower() not in names]


def end_to_end_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the lines of an engine's headers that the client gets too."""
    return b"".join(b"%b: %b\r\n" % item for item in headers if item[0].lower() not in _KEPT_FROM_CLIENT)
