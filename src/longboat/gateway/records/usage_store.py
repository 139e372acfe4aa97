"""What each tenant used of each model on each UTC day, kept in one SQLite file by all gateway processes of a node."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from longboat.core.errors import UserInputError
from longboat.telemetry import logger

__all__ = ("UsageRow", "UsageStore", "day_of")

log = logger("gateway")

SCHEMA_VERSION = 1
FLUSH_S = 1.0
_BUSY_S = 5.0
_DAY_S = 86_400

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model)
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, tenant, model) DO UPDATE SET
    requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens
"""
_SINCE = "SELECT * FROM usage WHERE day >= ? ORDER BY day, tenant, model"

_Key = tuple[str, str, str]  # day, tenant, model
_Counts = list[int]  # requests, prompt, completion, cached tokens


@dataclass(frozen=True, kw_only=True)
class UsageRow:
    """day: ``2026-11-21`` (UTC)."""

    day: str
    tenant: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def day_of(now_s: float) -> str:
    """The UTC day of Unix seconds."""
    return time.strftime("%Y-%m-%d", time.gmtime(now_s))


class UsageStore:
    """Adds in memory, writes once a second in a thread. A file that fails stops the writing, never the adding.

    ``add`` is for one thread; all the others for any.
    """

    def __init__(self, path: Path | None) -> None:
        """path: None keeps everything in memory."""
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._file_lock = threading.Lock()
        self._added_lock = threading.Lock()
        self._added: dict[_Key, _Counts] = {}
        self._day_ends_s = self._day_starts_s = 0.0
        self._day = ""
        self.problem: str | None = None
        """Why nothing is written at the moment; None where all is well."""

    def open(self) -> None:
        """Make or open the file. :raises UserInputError: it is no usage file, or cannot be written."""
        try:
            with self._file_lock:
                self._file = self._connected_in_turn()
        except (sqlite3.Error, OSError) as error:
            hint = "check its owner and the room on its disk, or move it away: a new one is then begun"
            raise UserInputError(f"the usage file {self._path} cannot be used: {error}", hint=hint) from error

    def add(
        self,
        tenant: str,
        model: str,
        *,
        now_s: float,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        requests: int = 1,
    ) -> None:
        """Count one answer. now_s: Unix seconds of its start: it counts for the day whose budget it was taken from."""
        if not self._day_starts_s <= now_s < self._day_ends_s:
            self._turn_to(now_s)
        key = (self._day, tenant, model)
        with self._added_lock:
            counts = self._added.get(key)
            if counts is None:
                counts = self._added[key] = [0, 0, 0, 0]
            counts[0] += requests
            counts[1] += prompt_tokens
            counts[2] += completion_tokens
            counts[3] += cached_tokens

    def flush(self) -> None:
        """Write what was added. Blocks: call it in a thread. A file that fails sets ``problem``, and loses nothing."""
        if self._path is None:
            return
        with self._file_lock:
            with self._added_lock:
                taken, self._added = self._added, {}
            if not taken:
                return
            try:
                self._write(taken)
            except (sqlite3.Error, OSError) as error:
                self._put_back(taken)
                self._disconnect()
                self._tell(str(error))
            else:
                self._tell(None)

    async def run(self) -> None:
        """Flush every second until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                await asyncio.to_thread(self.flush)
        finally:
            self.flush()

    def all_totals_today(self, now_s: float) -> dict[str, int]:
        """Return prompt and completion tokens by tenant, of all processes as written and of this one unwritten."""
        totals: dict[str, int] = {}
        for row in self.report(1, now_s):
            if row.day == day_of(now_s):
                totals[row.tenant] = totals.get(row.tenant, 0) + row.prompt_tokens + row.completion_tokens
        return totals

    def report(self, days: int, now_s: float) -> list[UsageRow]:
        """Rows of the last ``days`` UTC days, today included; by day, tenant, model. Unwritten counts are included.

        Where the file cannot be read, ``problem`` says so, and the rows are those of this process.
        """
        first = day_of(now_s - (days - 1) * _DAY_S)
        with self._file_lock:
            rows = {row[:3]: list(row[3:]) for row in self._written(first)}
            with self._added_lock:
                _merge(rows, ((key, counts) for key, counts in self._added.items() if key[0] >= first))
        return [_row(key, counts) for key, counts in sorted(rows.items())]

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        with self._file_lock:
            self._disconnect()

    def _turn_to(self, now_s: float) -> None:
        self._day = day_of(now_s)
        self._day_starts_s = now_s // _DAY_S * _DAY_S
        self._day_ends_s = self._day_starts_s + _DAY_S

    # the file, under its lock

    def _connected_in_turn(self) -> sqlite3.Connection | None:
        """SQLite waits for others, but not while a file turns to WAL: several processes may begin at one moment."""
        deadline_s = time.monotonic() + _BUSY_S
        while True:
            try:
                return self._connected()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)

    def _connected(self) -> sqlite3.Connection | None:
        if self._path is None:
            return None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = NORMAL")
            _prepare(file)
            self._path.chmod(0o600)
        except BaseException:
            file.close()
            raise
        return file

    def _write(self, taken: dict[_Key, _Counts]) -> None:
        if self._file is None:
            self._file = self._connected()
        assert self._file is not None
        self._file.execute("BEGIN IMMEDIATE")
        try:
            self._file.executemany(_ADD, [(*key, *counts) for key, counts in taken.items()])
            self._file.execute("COMMIT")
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                self._file.execute("ROLLBACK")
            raise

    def _written(self, first_day: str) -> list[tuple[str, str, str, int, int, int, int]]:
        if self._path is None:
            return []
        try:
            if self._file is None:
                self._file = self._connected()
            assert self._file is not None
            with closing(self._file.execute(_SINCE, (first_day,))) as cursor:
                return cursor.fetchall()
        except (sqlite3.Error, OSError) as error:
            self._disconnect()
            self._tell(str(error))
            return []

    def _put_back(self, taken: dict[_Key, _Counts]) -> None:
        with self._added_lock:
            _merge(self._added, taken.items())

    def _disconnect(self) -> None:
        if self._file is not None:
            with suppress(sqlite3.Error):
                self._file.close()
            self._file = None

    def _tell(self, problem: str | None) -> None:
        if problem and not self.problem:
            log.warning(
                "the usage file %s cannot be used: %s; usage is kept in memory until it can", self._path, problem
            )
        elif self.problem and not problem:
            log.warning("the usage file %s is written again", self._path)
        self.problem = problem


def _prepare(file: sqlite3.Connection) -> None:
    """The table in a new file. :raises sqlite3.Error: it is the file of another program or version"""
    version = file.execute("PRAGMA user_version").fetchone()[0]
    tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if version > SCHEMA_VERSION or (version == 0 and tables not in ([], ["usage"])):
        raise sqlite3.DatabaseError("it was made by another program, or by a newer version")
    if version < SCHEMA_VERSION:
        file.execute(_SCHEMA)
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _merge(into: dict[_Key, _Counts], more: Iterable[tuple[_Key, _Counts]]) -> None:
    for key, counts in more:
        into[key] = [a + b for a, b in zip(into.get(key, (0, 0, 0, 0)), counts, strict=True)]


def _row(key: _Key, counts: _Counts) -> UsageRow:
    day, tenant, model = key
    requests, prompt, completion, cached = counts
    return UsageRow(
        day=day,
        tenant=tenant,
        model=model,
        requests=requests,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
    )
