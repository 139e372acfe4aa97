"""Counters of one worker, which admits requests within its lease: the part of each limit that its parent gave it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from longboat.core.errors import ClusterError
from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.counters import LocalCounters
from longboat.routing.capacity.quota import LIMIT_NAMES, Counts, Denied, Limits, added, check, limits_of
from longboat.routing.capacity.quota_leases import NOTHING, Claim, Share, used_of

__all__ = ("LeasedCounters",)

Claims = dict[str, Claim]
Shares = dict[str, Share]

_FRESH_S = 0.1
"""How long other workers' counts are taken to be as they were at the last division."""


class LeasedCounters(LocalCounters):
    """Counters whose limits are leases. Where only a lease has no room for a request, the parent is asked for more."""

    def __init__(self, ask_parent: Callable[[], Awaitable[object]], *, num_gateways: int = 1) -> None:
        """ask_parent: has the parent divide the limits now, or raises ClusterError"""
        super().__init__(num_gateways=num_gateways)
        self._ask_parent = ask_parent
        self._shares: Shares = {}
        self._waiting: dict[str, list[int]] = {}  # by tenant: the tokens of each request that waits for a division
        self._told: dict[str, tuple[int, ...]] = {}
        self._number = 0
        self._divided_s = 0.0

    def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        denied = super().reserve(tenant, tokens=tokens, now_s=now_s)
        self.lacks_lease = False
        if denied is None:
            return None
        whole = limits_of(tenant, self.num_gateways)
        total = self.counts_of(tenant.name, now_s)
        really = check(whole, total, tokens=tokens, now_s=now_s)
        fresh_s = 0.0 if really is not None and really.limit == "concurrent_requests" else _FRESH_S
        if really is None or now_s - self._divided_s > fresh_s:
            self.lacks_lease = True
        if really is not None:
            return really
        at = LIMIT_NAMES.index(denied.limit)
        value, limit_value = used_of(total, now_s)[at], whole.values[at] or 0
        return Denied(limit=denied.limit, value=value, limit_value=limit_value, retry_after_s=1)

    async def reserve_after_division(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        """Reserve once more, after the parent divided the limits."""
        waiting = self._waiting.setdefault(tenant.name, [])
        waiting.append(tokens)
        try:
            await self._ask_parent()
        except ClusterError:
            pass  # the lease stays as it is while the parent is away
        finally:
            waiting.remove(tokens)
            if not waiting:
                del self._waiting[tenant.name]
        return self.reserve(tenant, tokens=tokens, now_s=now_s)

    def counts_of(self, tenant: str, now_s: float) -> Counts:
        own = self._account(tenant).counts
        share = self._shares.get(tenant)
        return added((own,) if share is None else (own, share.others), now_s)

    def take(self, number: int, shares: Shares, now_s: float) -> Claims:
        """Take new shares, then report their tenants, and those whose counts changed since the last report.

        number: of the message; the shares of an outdated message are ignored
        """
        if number <= self._number:
            shares = {}
        self._number, self._divided_s = max(self._number, number), now_s
        self._shares.update(shares)
        for name in shares.keys() & self._accounts.keys():
            self._accounts[name].tenant = None  # so that its limits are made from the new lease
        return self._news(shares, now_s)

    def _news(self, shares: Shares, now_s: float) -> Claims:
        claims = {}
        for name, account in self._accounts.items():
            counts = account.counts
            told = (
                *(counts.minute, counts.requests, counts.previous_requests, counts.tokens, counts.previous_tokens),
                *(counts.tokens_today, counts.running),
            )
            if told != self._told.get(name) or name in self._waiting or name in shares:
                self._told[name] = told
                tokens = self._waiting.get(name, ())
                wanted = (len(tokens), sum(tokens), sum(tokens), len(tokens)) if tokens else NOTHING
                claims[name] = Claim(counts=added((counts,), now_s), wanted=wanted)
        return claims

    def _limits_of(self, tenant: TenantPolicy) -> Limits:
        whole = limits_of(tenant, self.num_gateways)
        share = self._shares.get(tenant.name)
        lease = NOTHING if share is None else share.lease
        parts = (None if most is None else min(most, part) for most, part in zip(whole.values, lease, strict=True))
        return Limits.of(parts)
