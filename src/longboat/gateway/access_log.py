"""The access log: one JSON line a request, never a word of what was asked or answered."""

from __future__ import annotations

import os

import orjson

__all__ = ("AccessLog",)

_FLUSH_BYTES = 64 * 1024


class AccessLog:
    """Gathers lines and appends them in whole blocks, so that several processes may share the file.

    Lines that the disk does not take are dropped and counted: a full disk must not end the serving.

    :raises OSError: the file cannot be opened for appending
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self.num_dropped = 0

    def write(self, record: dict[str, object]) -> None:
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        self._lines.append(line)
        self._num_bytes += len(line)
        if self._num_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            lines, self._lines, self._num_bytes = self._lines, [], 0
            try:
                os.write(self._file, b"".join(lines))
            except OSError:
                self.num_dropped += len(lines)

    def close(self) -> None:
        self.flush()
        os.close(self._file)
