"""The fields of a line in the access log, as msgspec writes them. Never compiled: msgspec reads the annotations."""

from __future__ import annotations

import msgspec

__all__ = ("AccessFields", "encode_fields")


class AccessFields(msgspec.Struct, gc=False):
    """One line, in the order of its fields. Times but the first are milliseconds; None is unknown."""

    time: float  # when the request ended, in Unix seconds
    id: str
    tenant: str
    path: str
    model: str | None  # the name that the client requested
    pool: str | None  # the model that was chosen
    replica: str  # the one that responded, or was tried last; empty: none was asked
    status: int
    outcome: str
    bytes: int
    ttft_ms: float | None
    queue_ms: float
    total_ms: float
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    retries: int
    error: str | msgspec.UnsetType = msgspec.UNSET  # the code; left out where there was none


encode_fields = msgspec.json.Encoder().encode
