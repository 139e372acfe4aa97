"""``longboat simulate --record``: writes the requests of live gateways as a trace, without their words."""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import IO

from longboat.cli.shared.gateway_replies import Asked, asked_gateways
from longboat.core.errors import ClusterError, LongboatError, UserInputError, unwritable
from longboat.disk_sync import write_whole
from longboat.gateway.admin.routing_queries import TraceQuery

__all__ = ("run_record",)

_EVERY_S = 1.0


def run_record(path: Path, *, url: str | None, seconds: float | None) -> None:
    """Write one line for each request that ends, until ``seconds`` have passed or Ctrl-C.

    Raises UserInputError where the file cannot be written, ClusterError where no gateway replies.
    """
    with asked_gateways(url) as gateways, _created(path) as file:
        recording = _Recording(gateways, file)
        try:
            recording.take()  # what was before is not recorded
        except LongboatError:
            path.unlink()  # it would stop the next try
            raise
        print(f"recording into {path}; Ctrl-C ends it", file=sys.stderr, flush=True)
        try:
            recording.run(None if seconds is None else time.monotonic() + seconds)
        except KeyboardInterrupt:
            recording.take()
    _sort(path)
    recording.report(path)


def _created(path: Path) -> IO[str]:
    """Open a new file that only its owner can read."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        raise UserInputError(f"{path} exists", hint="name another file, or remove it") from None
    except OSError as error:
        raise unwritable(path, error, hint="name another file") from None
    path.chmod(0o600)
    return file


def _sort(path: Path) -> None:
    """Put the requests in the order in which they came: they were written as they ended."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.sort(key=lambda line: float(json.loads(line)["time_s"]))
    write_whole(path, "".join(lines), mode=0o600)


class _Recording:
    """The rows that were written so far."""

    def __init__(self, gateways: Asked, file: IO[str]) -> None:
        self._gateways = gateways
        self._file = file
        self._query = TraceQuery(secrets.token_hex(8))
        self.num_rows = 0
        self.num_dropped = 0

    def run(self, until_s: float | None) -> None:
        while until_s is None or time.monotonic() < until_s:
            time.sleep(_EVERY_S if until_s is None else max(0.0, min(_EVERY_S, until_s - time.monotonic())))
            try:
                self.take()
            except ClusterError as error:
                print(f"{error.message}; asking again", file=sys.stderr, flush=True)

    def take(self) -> None:
        """Write what has ended since the last time."""
        reply = self._query.joined(self._gateways.ask(self._query))
        self._file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in reply["rows"])
        self._file.flush()
        self.num_rows += len(reply["rows"])
        self.num_dropped += reply["dropped"]

    def report(self, path: Path) -> None:
        lost = f"; {self.num_dropped} were lost, because they came too fast" if self.num_dropped else ""
        print(f"{self.num_rows} requests in {path}{lost}", file=sys.stderr, flush=True)
        if self.num_rows:
            print(f"play them: longboat simulate --fleet FILE --trace {path}", file=sys.stderr, flush=True)
