"""What each tenant used of each model on each UTC day, kept in one SQLite file by all gateway processes of a node."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from longboat.core.errors import UserInputError
from longboat.gateway.records.usage_file import Counts, Key, UsageFile
from longboat.telemetry import Guard, logger

__all__ = ("UsagePage", "UsageRow", "UsageStore", "day_of")

log = logger("gateway")

FLUSH_S = 1.0
MAX_ROWS = 20_000
"""Rows of one report, where each of its days has fewer."""
Response = tuple[str, str, float, int, int, int, int, str]
"""Tenant, model, Unix seconds of the start, tokens of prompt, completion and cache, cost in billionths, currency."""
_DAY_S = 86_400
_LAST = "9999-12-31"


class UsageRow(NamedTuple):
    """What one tenant used of one model on one day, while the model's price had one currency."""

    # such as ``2026-11-21`` (UTC)
    day: str
    tenant: str
    model: str
    # of the model's price then; empty where it had none, and where an earlier version wrote the row
    currency: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    sent: int = 0  # requests that an external address got
    cost_nanos: int = 0  # what the requests cost, in billionths of the currency


class UsagePage(NamedTuple):
    """Rows of whole days."""

    rows: list[UsageRow]
    is_cut: bool  # earlier days may have been left out


def day_of(now_s: float) -> str:
    """Return the UTC day of Unix seconds."""
    return time.strftime("%Y-%m-%d", time.gmtime(now_s))


class UsageStore:
    """Counts in memory, written once a second in a thread. A file that fails stops the writing, never the counting.

    ``add`` and ``add_responses`` are for one thread, the other methods for any.
    """

    def __init__(self, path: Path | None) -> None:
        """path: None keeps everything in memory."""
        self._file = None if path is None else UsageFile(path)
        self._file_lock = threading.Lock()
        self._added_lock = threading.Lock()
        # what is not written yet
        self._added: dict[Key, Counts] = {}
        # the day of the last count
        self._day = ""
        self._day_ends_s = self._day_starts_s = 0.0
        # why nothing can be written at the moment; None while all is well
        self.problem: str | None = None

    def open(self) -> None:
        """Make or open the file. Raise UserInputError where it is not a usage file, or cannot be written."""
        if self._file is None:
            return
        try:
            with self._file_lock:
                self._file.open()
        except (sqlite3.Error, OSError) as error:
            hint = "check its owner and the room on its disk, or move it away: a new one is then begun"
            raise UserInputError(f"the usage file {self._file.path} cannot be used: {error}", hint=hint) from error

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
        sent: int = 0,
        cost_nanos: int = 0,
        currency: str = "",
    ) -> None:
        """Count one response. now_s: Unix seconds of its start, whose day it counts for

        sent, cost_nanos, currency: as in ``UsageRow``
        What an external model costs is counted apart from the response, with ``requests=0``; what a model of the fleet
        costs is counted with it.
        """
        with self._added_lock:
            counts = self._counts_of(tenant, model, currency, now_s)
            counts[0] += requests
            counts[1] += prompt_tokens
            counts[2] += completion_tokens
            counts[3] += cached_tokens
            counts[4] += sent
            counts[5] += cost_nanos

    def add_responses(self, responses: list[Response]) -> None:
        """Count responses of the fleet's own models, as ``add`` does with one, under one lock for all of them."""
        with self._added_lock:
            for (
                tenant,
                model,
                now_s,
                prompt_tokens,
                completion_tokens,
                cached_tokens,
                cost_nanos,
                currency,
            ) in responses:
                counts = self._counts_of(tenant, model, currency, now_s)
                counts[0] = counts[0] + 1  # compiled code adds so without a call, unlike with +=
                counts[1] = counts[1] + prompt_tokens
                counts[2] = counts[2] + completion_tokens
                if cached_tokens:
                    counts[3] += cached_tokens
                if cost_nanos:
                    counts[5] += cost_nanos

    def _counts_of(self, tenant: str, model: str, currency: str, now_s: float) -> Counts:
        if not self._day_starts_s <= now_s < self._day_ends_s:
            self._set_day(now_s)
        key = (self._day, tenant, model, currency)
        counts = self._added.get(key)
        if counts is None:
            counts = self._added[key] = [0, 0, 0, 0, 0, 0]
        return counts

    def flush(self) -> None:
        """Write what was added. Blocks: call it in a thread. A file that fails sets ``problem``, and loses nothing."""
        if self._file is None:
            return
        with self._file_lock:
            with self._added_lock:
                taken, self._added = self._added, {}
            if not taken:
                return
            try:
                self._file.add(taken)
            except (sqlite3.Error, OSError) as error:
                with self._added_lock:
                    _merge(self._added, taken.items())
                self._failed(self._file, error)
            else:
                self._worked(self._file)

    async def run(self) -> None:
        """Flush every second until cancelled, and once more then."""
        guard = Guard(log, "writing down usage")
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                with guard:
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

    def report(self, days: int, now_s: float, tenant: str | None = None) -> list[UsageRow]:
        """Return all rows of the last ``days`` UTC days, today included, by day, tenant, model and currency.

        tenant: None: of all. Many rows take long: call it in a thread.

        Counts that are not written yet are included. Where the file cannot be read, ``problem`` says so, and the
        rows are those of this process.
        """
        return self.page(days, now_s, tenant, most=sys.maxsize).rows

    def page(
        self, days: int, now_s: float, tenant: str | None = None, *, until: str = "", most: int = MAX_ROWS
    ) -> UsagePage:
        """Return the rows of a report of the newest whole days: at most ``most``, and one day at least.

        until: the last day, such as ``2026-11-21``; empty: today
        """
        first, last = day_of(now_s - (days - 1) * _DAY_S), until or _LAST
        with self._file_lock:
            written = self._written(first, last, tenant, most)
            if len(written) > most:
                first = written[0][0]
            with self._added_lock:
                added = {
                    key: counts[:]
                    for key, counts in self._added.items()
                    if first <= key[0] <= last and tenant in (None, key[1])
                }
        return _newest_days([UsageRow._make(row) for row in _with_added(written, added)], most)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._file is not None:
            with self._file_lock:
                self._file.close()

    def _set_day(self, now_s: float) -> None:
        self._day = day_of(now_s)
        self._day_starts_s = now_s // _DAY_S * _DAY_S
        self._day_ends_s = self._day_starts_s + _DAY_S

    def _written(self, first_day: str, last_day: str, tenant: str | None, most: int) -> list[tuple[Any, ...]]:
        if self._file is None:
            return []
        try:
            return self._file.rows(first_day, last_day, tenant, most)
        except (sqlite3.Error, OSError) as error:
            self._failed(self._file, error)
            return []

    def _failed(self, file: UsageFile, error: Exception) -> None:
        file.close()
        if not self.problem:
            log.warning("the usage file %s cannot be used: %s; usage is kept in memory until it can", file.path, error)
        self.problem = str(error)

    def _worked(self, file: UsageFile) -> None:
        if self.problem:
            log.warning("the usage file %s is written again", file.path)
        self.problem = None


def _newest_days(rows: list[UsageRow], most: int) -> UsagePage:
    if len(rows) <= most:
        return UsagePage(rows, False)
    at = len(rows) - most
    cut_day = rows[at - 1].day
    while at < len(rows) and rows[at].day == cut_day:
        at += 1
    if at == len(rows):  # one day has more
        at = next(index for index, row in enumerate(rows) if row.day == cut_day)
    return UsagePage(rows[at:], True)


def _with_added(written: list[tuple[Any, ...]], added: dict[Key, Counts]) -> list[tuple[Any, ...]]:
    """Add to the rows of a file, which may be many: those before the first day of what is added stay as they are."""
    if not added:
        return written
    first = min(added)[0]
    _merge(added, ((row[:4], list(row[4:])) for row in written if row[0] >= first))
    return [*(row for row in written if row[0] < first), *((*key, *counts) for key, counts in sorted(added.items()))]


def _merge(into: dict[Key, Counts], more: Iterable[tuple[Key, Counts]]) -> None:
    for key, counts in more:
        into[key] = [a + b for a, b in zip(into.get(key, (0, 0, 0, 0, 0, 0)), counts, strict=True)]
