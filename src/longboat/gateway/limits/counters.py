"""Counters of what tenants use, against their limits, in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from longboat.core.policy import TenantPolicy
from longboat.routing.capacity.quota import DAY_S, MINUTE_S, Counts, Denied, Limits, check, limits_of

__all__ = ("LocalCounters", "correct")


def correct(counts: Counts, change: int, reserved_s: float) -> None:
    """Add to the windows in which ``reserved_s`` lies. ``counts`` were rolled to now.

    Where that minute is out of the windows, use beyond the reservation counts now: a long response is not free. So it
    is where the clock went back since.
    """
    began_s = counts.minute * MINUTE_S
    if began_s <= reserved_s < began_s + MINUTE_S:
        counts.tokens += change
    elif began_s - MINUTE_S <= reserved_s < began_s:
        counts.previous_tokens += change
    elif change > 0:
        counts.tokens += change
    if reserved_s >= counts.day * DAY_S:
        counts.tokens_today += change


class _Account:
    """One tenant's counts, and its limits as its policy gave them when it was last seen."""

    __slots__ = (
        "counts", "limits", "most_requests", "most_running", "most_today", "most_tokens", "num_gateways", "tenant",
    )  # fmt: skip

    def __init__(self) -> None:
        self.counts = Counts()
        self.limits: Limits | None = None
        self.tenant: TenantPolicy | None = None
        self.num_gateways = 0
        self.most_running = self.most_requests = self.most_tokens = self.most_today = math.inf


class LocalCounters:
    """Exact counts. Every request that ``reserve`` admits gets one ``settle`` and one ``release``, in any order.

    A request counts for the minute and the UTC day in which it was reserved, whenever it ends.
    """

    def __init__(self, *, num_gateways: int = 1) -> None:
        # whether other processes of the node may have room for the request that ``reserve`` denied last
        self.lacks_lease = False
        # nodes that share each limit without a common counter: each keeps to its part; may be set at any time
        self.num_gateways = num_gateways
        self._accounts: dict[str, _Account] = {}

    def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        """Count one request in, if no limit of its tenant forbids it. A denied request is not counted.

        tokens: estimate of prompt and completion; now_s: Unix seconds
        """
        account = self._accounts.get(tenant.name) or self._account(tenant.name)
        if account.tenant is not tenant or account.num_gateways != self.num_gateways:
            self._learn(account, tenant)
        counts = account.counts
        counts.roll(now_s)
        limits = account.limits
        if limits is not None and not (
            counts.running < account.most_running
            and counts.requests + counts.previous_requests < account.most_requests
            and counts.tokens + counts.previous_tokens + tokens <= account.most_tokens
            and counts.tokens_today + tokens <= account.most_today
        ):  # the request may still fit: the previous window counts only in part
            denied = check(limits, counts, tokens=tokens, now_s=now_s)
            if denied is not None:
                return denied
        counts.requests += 1
        counts.tokens += tokens
        counts.tokens_today += tokens
        counts.running += 1
        return None

    async def reserve_after_division(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        """Reserve once more where ``lacks_lease``, after the node's limits were divided by what its processes need."""
        return self.reserve(tenant, tokens=tokens, now_s=now_s)

    def charge(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> None:
        """Count one request in, whatever the limits say."""
        counts = self._account(tenant.name).counts
        counts.roll(now_s)
        counts.requests += 1
        counts.tokens += tokens
        counts.tokens_today += tokens
        counts.running += 1

    def settle(
        self, tenant: TenantPolicy, *, reserved_tokens: int, used_tokens: int, reserved_s: float, now_s: float
    ) -> None:
        """Put what was used in the place of what was reserved at ``reserved_s`` (the ``now_s`` of ``reserve``)."""
        if used_tokens != reserved_tokens:
            counts = self._account(tenant.name).counts
            counts.roll(now_s)
            correct(counts, used_tokens - reserved_tokens, reserved_s)

    def release(self, tenant: TenantPolicy) -> None:
        """Count the request no more among those that run or wait."""
        (self._accounts.get(tenant.name) or self._account(tenant.name)).counts.running -= 1

    def counts_of(self, tenant: str, now_s: float) -> Counts:
        """Return what is counted, as far as this process knows over all that share the limits."""
        counts = self._account(tenant).counts
        counts.roll(now_s)
        return replace(counts)

    def restore_today(self, tokens: Mapping[str, int], *, now_s: float) -> None:
        """Count at least these tokens by tenant for this UTC day: what was used before a restart."""
        for name, used in tokens.items():
            counts = self._account(name).counts
            counts.roll(now_s)
            counts.tokens_today = max(counts.tokens_today, used)

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account()
        return account

    def _learn(self, account: _Account, tenant: TenantPolicy) -> None:
        limits = self._limits_of(tenant)
        account.tenant, account.num_gateways = tenant, self.num_gateways
        account.limits = None if limits == NO_LIMITS else limits
        account.most_running = _or_infinity(limits.concurrent_requests)
        account.most_requests = _or_infinity(limits.requests_per_minute)
        account.most_tokens = _or_infinity(limits.tokens_per_minute)
        account.most_today = _or_infinity(limits.tokens_per_day)

    def _limits_of(self, tenant: TenantPolicy) -> Limits:
        return limits_of(tenant, self.num_gateways)


def _or_infinity(limit: int | None) -> float:
    return math.inf if limit is None else limit


NO_LIMITS = Limits()
