"""Records a trace of requests while somebody reads it: times, sizes and salted hashes, and never a word."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from longboat.gateway.records.recent import Record
from longboat.routing.prefixes.prompt import BLOCK_BYTES, masked

if TYPE_CHECKING:
    from longboat.routing.prefixes.prompt import Prompt

__all__ = ("TraceRecorder",)

_LASTS_S: Final = 30.0
_MAX_ROWS: Final = 20_000
_MAX_READERS: Final = 8


class TraceRecorder:
    """Rows of requests that ended, for each reader since its last look. Without a reader, nothing is kept."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: dict[str, _Reader] = {}

    @property
    def is_on(self) -> bool:
        """Whether there is a reader."""
        return bool(self._readers)

    def add(self, record: Record, prompt: Prompt | None, now_s: float) -> None:
        """Keep a request that ended, where it has a prompt."""
        for name, reader in tuple(self._readers.items()):
            if now_s > reader.until_s:
                del self._readers[name]
        if prompt is None or record.first_byte_s is None or record.status >= 400 or prompt.max_output_tokens == 0:
            return
        if not (record.prompt_tokens or prompt.num_tokens):
            return
        for name, reader in self._readers.items():
            reader.add(_row(record, prompt, hashlib.blake2b(name.encode(), digest_size=32).digest()))

    def take(self, name: str, now_s: float) -> dict[str, Any]:
        """Return the rows since this reader's last look, and how many were lost. The first look begins recording."""
        if name not in self._readers and len(self._readers) >= _MAX_READERS:
            del self._readers[next(iter(self._readers))]
        reader = self._readers.setdefault(name, _Reader())
        reader.until_s = now_s + _LASTS_S
        rows, reader.rows = list(reader.rows), deque()
        dropped, reader.num_dropped = reader.num_dropped, 0
        return {"rows": rows, "dropped": dropped}


class _Reader:
    """What one reader has yet to get."""

    __slots__ = ("num_dropped", "rows", "until_s")

    def __init__(self) -> None:
        self.rows: deque[dict[str, Any]] = deque()
        self.num_dropped = 0
        self.until_s = 0.0

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, in place of the oldest where there are too many."""
        if len(self.rows) >= _MAX_ROWS:
            self.rows.popleft()
            self.num_dropped += 1
        self.rows.append(row)


def _row(record: Record, prompt: Prompt, salt: bytes) -> dict[str, Any]:
    """Return a row. salt: the same in all processes that this reader asks, and unknown to those who get the trace"""
    first_byte_s, sent_s = record.first_byte_s or 0.0, record.attempts[-1].sent_s if record.attempts else 0.0
    return {
        "time_s": round(record.received_unix_s, 6),
        "model": record.pool,
        "tenant": _hashed(record.tenant, salt),
        "session": _hashed(prompt.session, salt),
        "prompt_tokens": record.prompt_tokens or prompt.num_tokens,
        "output_tokens": record.completion_tokens or 0,
        "max_tokens": prompt.max_output_tokens,
        "cached_tokens": record.cached_tokens,
        "ttft_s": round(first_byte_s - sent_s, 6),
        "total_s": round(record.ended_s, 6),
        "replica": record.replica,
        "blocks": b64encode(masked(prompt.blocks, salt[:BLOCK_BYTES])).decode(),
        "ends": list(prompt.ends),
    }


def _hashed(name: str, salt: bytes) -> str:
    return hashlib.blake2b(name.encode(), key=salt, digest_size=8).hexdigest() if name else ""
