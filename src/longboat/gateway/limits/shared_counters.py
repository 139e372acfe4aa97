"""Counters that the gateway processes of one node share through a memory-mapped file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from struct import Struct

from longboat.core.errors import ClusterError
from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.counters import NO_LIMITS, Counters, LocalCounters, correct
from longboat.gateway.limits.shared_grid import GridFullError, SharedGrid, open_grid
from longboat.routing.capacity.quota import DAY_S, MINUTE_S, Counts, Denied, Limits, check, limits_of

__all__ = ("SharedCounters", "open_counters")

COUNTERS_FILE = "counters.bin"

# A tenant's row. Days and minutes take turns in two places each, which carry their number: a reader never takes the
# counts of one window for those of another, whenever the writer moves on.
_RUNNING = 0
_DAYS = 2  # of an even day; an odd one follows: number, tokens
_MINUTES = 6  # of an even minute; an odd one follows: number, requests, tokens
_NUM_CELLS = 12


def open_counters(state_folder: Path | None, *, num_gateways: int = 1) -> Counters:
    """Counters of this node, shared by the processes that name one folder; of this process alone where it is None.

    The folder must be on a disk of this machine.

    :raises UserInputError: the folder cannot be used
    :raises ClusterError: too many processes use it, or one of them hangs
    """
    if state_folder is None:
        return LocalCounters(num_gateways=num_gateways)
    return SharedCounters(open_grid(state_folder / COUNTERS_FILE, num_cells=_NUM_CELLS), num_gateways=num_gateways)


class _Account:
    """One tenant: where its rows are, and this process's own row, which nobody else writes."""

    __slots__ = ("base", "limits", "num_gateways", "own", "own_at", "start_byte", "tenant", "total")

    def __init__(self, base: int, own_at: int) -> None:
        self.base = base
        self.start_byte = base * 8
        self.own_at = own_at
        self.own = Counts()
        self.total = Counts()
        self.limits: Limits | None = None
        self.tenant: TenantPolicy | None = None
        self.num_gateways = 0


class SharedCounters:
    """Each process writes its own row; the sum of all rows is held against the limits.

    A request is counted first and taken back where the sum is then over a limit. So several processes never let in more
    than a limit allows; two that reach it in the same microseconds may both refuse.
    """

    remote = False

    def __init__(self, grid: SharedGrid, *, num_gateways: int = 1) -> None:
        self.num_gateways = num_gateways
        self._grid = grid
        self._cells = grid.cells
        self._accounts: dict[str, _Account] = {}
        self._beyond = LocalCounters(num_gateways=num_gateways)
        self._closed = False
        self._num_rows = 0
        self._unpack = Struct("").unpack_from
        self.num_unshared = 0
        """Tenants counted in this process alone: the file had no place for them."""

    def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        account = self._accounts.get(tenant.name) or self._account(tenant.name, now_s)
        if account is None:
            return self._beyond.reserve(tenant, tokens=tokens, now_s=now_s)
        if account.tenant is not tenant or account.num_gateways != self.num_gateways:
            self._learn(account, tenant)
        self._roll(account, now_s)
        self._count(account, 1, tokens)
        if account.limits is None:
            return None
        total = self._sum(account)
        total.requests -= 1
        total.tokens -= tokens
        total.tokens_today -= tokens
        total.running -= 1
        denied = check(account.limits, total, tokens=tokens, now_s=now_s)
        if denied is not None:
            self._count(account, -1, -tokens)
        return denied

    def charge(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> None:
        account = self._accounts.get(tenant.name) or self._account(tenant.name, now_s)
        if account is None:
            return self._beyond.charge(tenant, tokens=tokens, now_s=now_s)
        self._roll(account, now_s)
        self._count(account, 1, tokens)

    def settle(
        self, tenant: TenantPolicy, *, reserved_tokens: int, used_tokens: int, reserved_s: float, now_s: float
    ) -> None:
        if used_tokens == reserved_tokens:
            return
        account = self._accounts.get(tenant.name) or self._account(tenant.name, now_s)
        if account is None:
            return self._beyond.settle(
                tenant, reserved_tokens=reserved_tokens, used_tokens=used_tokens, reserved_s=reserved_s, now_s=now_s
            )
        self._roll(account, now_s)
        correct(account.own, used_tokens - reserved_tokens, reserved_s)
        self._write(account)

    def release(self, tenant: TenantPolicy) -> None:
        account = self._accounts.get(tenant.name)
        if account is None:
            return self._beyond.release(tenant)
        account.own.running -= 1
        self._cells[account.own_at] = account.own.running

    def counts_of(self, tenant: str, now_s: float) -> Counts:
        account = self._account(tenant, now_s)
        if account is None:
            return self._beyond.counts_of(tenant, now_s)
        self._roll(account, now_s)
        account.total = Counts()
        return self._sum(account)

    def restore_today(self, tokens: Mapping[str, int], *, now_s: float) -> None:
        accounts = {name: self._account(name, now_s) for name in tokens}
        with self._grid.locked():
            for name, account in accounts.items():
                if account is not None:
                    self._roll(account, now_s)
                    missing = tokens[name] - self._sum(account).tokens_today
                    account.own.tokens_today += max(0, missing)
                    self._write(account)
        self._beyond.restore_today({n: tokens[n] for n, account in accounts.items() if account is None}, now_s=now_s)

    def close(self) -> None:
        self._closed = True
        self._accounts.clear()
        self._grid.close()

    # one tenant's rows

    def _account(self, name: str, now_s: float) -> _Account | None:
        """None where the file has no place for the tenant, or was left."""
        account = self._accounts.get(name)
        if account is not None:
            return account
        if self._closed or name in self._beyond:
            return None
        today = int(now_s // DAY_S)
        try:
            base = self._grid.base_of(name, lambda cells: not _is_of_today(cells, today))
        except (GridFullError, ClusterError):
            self.num_unshared += 1
            self._beyond.counts_of(name, now_s)
            return None
        account = self._accounts[name] = _Account(base, base + self._grid.row * _NUM_CELLS)
        left = _read(self._cells[account.own_at : account.own_at + _NUM_CELLS].tolist())
        if left.minute <= now_s // MINUTE_S + 1:  # else it was written while the clock was wrong
            account.own = left
        return account

    def _learn(self, account: _Account, tenant: TenantPolicy) -> None:
        limits = limits_of(tenant, self.num_gateways)
        account.tenant, account.num_gateways = tenant, self.num_gateways
        account.limits = None if limits == NO_LIMITS else limits
        self._beyond.num_gateways = self.num_gateways

    def _count(self, account: _Account, requests: int, tokens: int) -> None:
        own = account.own
        own.requests += requests
        own.tokens += tokens
        own.tokens_today += tokens
        own.running += requests
        cells, at = self._cells, account.own_at
        minute_at = at + (9 if own.minute & 1 else 6)
        cells[at] = own.running
        cells[minute_at + 1] = own.requests
        cells[minute_at + 2] = own.tokens
        cells[at + (5 if own.day & 1 else 3)] = own.tokens_today

    def _write(self, account: _Account) -> None:
        own, at = account.own, account.own_at
        day_at = at + _DAYS + 2 * (own.day & 1)
        self._put(day_at, own.day, own.tokens_today)
        minute_at, previous_at = at + _MINUTES + 3 * (own.minute & 1), at + _MINUTES + 3 * (1 - (own.minute & 1))
        self._put(minute_at, own.minute, own.requests, own.tokens)
        self._put(previous_at, own.minute - 1, own.previous_requests, own.previous_tokens)

    def _put(self, at: int, number: int, *counts: int) -> None:
        """One window. Where it takes the place of another, nobody sees the other's counts under its number."""
        cells = self._cells
        if cells[at] != number:
            cells[at] = -1
        for offset, count in enumerate(counts, start=1):
            cells[at + offset] = count
        cells[at] = number

    def _roll(self, account: _Account, now_s: float) -> None:
        own = account.own
        minute = own.minute
        if now_s >= (minute + 1) * 60:  # a day begins with a minute
            own.roll(now_s)
            self._write(account)

    def _sum(self, account: _Account) -> Counts:
        self._grid.reap_when_due()
        if self._num_rows != self._grid.num_rows:
            self._num_rows = self._grid.num_rows
            self._unpack = Struct(f"@{self._num_rows * _NUM_CELLS}q").unpack_from
        own, total = account.own, account.total
        total.minute, total.day = own.minute, own.day
        _add_rows(total, self._unpack(self._grid.memory, account.start_byte))
        return total


def _add_rows(total: Counts, cells: tuple[int, ...]) -> None:
    minute, day = total.minute, total.day
    now_at, before_at = (9, 6) if minute & 1 else (6, 9)
    day_at = 4 if day & 1 else 2
    requests = tokens = previous_requests = previous_tokens = tokens_today = running = 0
    for row in range(0, len(cells), _NUM_CELLS):
        running += cells[row]
        if cells[row + now_at] == minute:
            requests += cells[row + now_at + 1]
            tokens += cells[row + now_at + 2]
        if cells[row + before_at] == minute - 1:
            previous_requests += cells[row + before_at + 1]
            previous_tokens += cells[row + before_at + 2]
        if cells[row + day_at] == day:
            tokens_today += cells[row + day_at + 1]
    total.requests, total.previous_requests = requests, previous_requests
    total.tokens, total.previous_tokens = tokens, previous_tokens
    total.tokens_today, total.running = tokens_today, running


def _read(cells: list[int]) -> Counts:
    """A row as a process that is gone left it, or an empty one."""
    minute, day = max(cells[6], cells[9]), max(cells[2], cells[4])
    counts = Counts(minute=minute, day=day)
    _add_rows(counts, tuple(cells))
    return counts


def _is_of_today(cells: tuple[int, ...], today: int) -> bool:
    return any(max(cells[row + 2], cells[row + 4]) >= today for row in range(0, len(cells), _NUM_CELLS))
