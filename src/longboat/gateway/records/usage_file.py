"""The SQLite file in which all gateway processes of a node add up what tenants used."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

__all__ = ("Counts", "Key", "UsageFile")

SCHEMA_VERSION = 3
_BUSY_S = 5.0

_SCHEMA = """
CREATE TABLE usage (
    day TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL, currency TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    sent INTEGER NOT NULL, cost_nanos INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model, currency)
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, tenant, model, currency) DO UPDATE SET
    requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    sent = sent + excluded.sent, cost_nanos = cost_nanos + excluded.cost_nanos
"""
_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("day", "tenant", "model"), ""),
    "currency": "''",
    **dict.fromkeys(("requests", "prompt_tokens", "completion_tokens", "cached_tokens"), ""),
    **dict.fromkeys(("sent", "cost_nanos"), "0"),
}
"""Column → what older files, which lack it, have in its place: 1 and 2 lack the currency, 1 also the last two."""
_RANGE = "FROM usage WHERE day >= ?1 AND day <= ?2 AND (?3 IS NULL OR tenant = ?3)"
_ROWS = f"SELECT * {_RANGE} ORDER BY day, tenant, model, currency"
_DAY_OF_ROW = f"SELECT day {_RANGE} ORDER BY day DESC, tenant DESC, model DESC, currency DESC LIMIT 1 OFFSET ?4"

Key = tuple[str, str, str, str]  # day, tenant, model, currency of its price
Counts = list[int]  # requests, prompt, completion, cached tokens; sent outside, cost in billionths


class UsageFile:
    """A file that is opened when it is needed, and again after it failed. Methods raise sqlite3.Error or OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # which file the connection has

    def open(self) -> None:
        """Make or open the file.

        SQLite waits for other processes, but not while one of them turns the file to WAL, so this tries again.
        """
        deadline_s = time.monotonic() + _BUSY_S
        while True:
            try:
                self._connected()
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)

    def add(self, counts: Mapping[Key, Counts]) -> None:
        """Add to the rows, all of them or none."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(_ADD, [(*key, *numbers) for key, numbers in counts.items()])
            connection.execute("COMMIT")
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def rows(self, first_day: str, last_day: str, tenant: str | None, most: int) -> list[tuple[Any, ...]]:
        """Read the rows of the newest days, in their order: those of whole days, and more than ``most``.

        Fewer are all that there are. tenant: None: of all
        """
        first_day = self._day_of_row(most, (first_day, last_day, tenant)) or first_day
        with closing(self._connected().execute(_ROWS, (first_day, last_day, tenant))) as cursor:
            return cursor.fetchall()

    def _day_of_row(self, number: int, among: tuple[str, str, str | None]) -> str | None:
        """Return the day of a row, of which the newest has number 0; None where there are not as many."""
        with closing(self._connected().execute(_DAY_OF_ROW, (*among, number))) as cursor:
            row = cursor.fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        """Return the connection to the file that the path names now: what a removed file gets would be lost."""
        if self._connection is not None and self._opened != _identity(self.path):
            self.close()
        if self._connection is None:
            self._connection = _connect(self.path)
            self._opened = _identity(self.path)
        return self._connection


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _prepare(connection)
        path.chmod(0o600)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(file: sqlite3.Connection) -> None:
    """Make the table in a new file, or turn an older one's into it, all or nothing. Other processes wait.

    Raise sqlite3.Error where another program or a newer version made the file.
    """
    if _version(file) == SCHEMA_VERSION:
        return
    file.execute("BEGIN IMMEDIATE")
    try:
        _renew(file)
        file.execute("COMMIT")
    except sqlite3.Error:
        with suppress(sqlite3.Error):
            file.execute("ROLLBACK")
        raise


def _renew(file: sqlite3.Connection) -> None:
    version = _version(file)  # another process may have made the table meanwhile
    tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if version > SCHEMA_VERSION or (version == 0 and tables not in ([], ["usage"])):
        raise sqlite3.DatabaseError("it was made by another program, or by a newer version")
    if version == SCHEMA_VERSION:
        return
    if "usage" in tables:
        file.execute("ALTER TABLE usage RENAME TO older_usage")
    file.execute(_SCHEMA)
    if "usage" in tables:
        present = {row[1] for row in file.execute("PRAGMA table_info(older_usage)")}
        values = ", ".join(name if name in present else instead for name, instead in _COLUMNS.items())
        file.execute(f"INSERT INTO usage SELECT {values} FROM older_usage")  # noqa: S608 - names of this module
        file.execute("DROP TABLE older_usage")
    file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(file: sqlite3.Connection) -> int:
    return int(file.execute("PRAGMA user_version").fetchone()[0])
