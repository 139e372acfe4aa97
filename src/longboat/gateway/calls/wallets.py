"""What tenants may spend: the cost of a request is reserved before it runs, and put right when it has ended."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from longboat.gateway.external.budgets import Reserved, cost_of, wallet_of

if TYPE_CHECKING:
    from longboat.core.policy import Policy, TenantPolicy
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.limits.counters import LocalCounters
    from longboat.gateway.limits.redis_counters import RedisCounters
    from longboat.routing.capacity.quota import Denied

__all__ = ("MONEY", "Wallets")

MONEY: Final = "money_per_day"


class Wallets:
    """The money of one policy's tenants, and what models cost them."""

    __slots__ = ("_by_tenant", "_prices", "currencies", "currency", "own")

    def __init__(self, policy: Policy) -> None:
        self.own = policy.prices  # of the fleet's own models
        self._prices = policy.all_prices
        self.currencies = {name: price.currency for name, price in self._prices.items()}
        self._by_tenant = {tenant.name: found for tenant in policy.tenants if (found := wallet_of(tenant)) is not None}
        self.currency = policy.currency

    @property
    def are_limited(self) -> bool:
        """Whether any tenant has a limit of money."""
        return bool(self._by_tenant)

    def reserve(self, call: Call, counters: LocalCounters) -> Denied | None:
        """Reserve what the call may cost its tenant; return the limit where that is too much."""
        wanted = self._wanted(call)
        if wanted is None:
            return None
        wallet, nanos = wanted
        denied = counters.reserve(wallet, tokens=nanos, now_s=call.reserved_unix_s)
        return self._reserved(call, wallet, nanos, denied, counters)

    async def reserve_remotely(
        self, call: Call, counters: LocalCounters, remote: RedisCounters | None
    ) -> Denied | None:
        """Reserve where other processes, or Redis, must be asked."""
        wanted = self._wanted(call)
        if wanted is None:
            return None
        wallet, nanos = wanted
        reserve = counters.reserve_after_division if remote is None else remote.reserve
        denied = await reserve(wallet, tokens=nanos, now_s=call.reserved_unix_s)
        return self._reserved(call, wallet, nanos, denied, remote or counters)

    def settle(self, call: Call, nanos: int) -> None:
        """Put what the call cost in the place of what was reserved for it."""
        reserved = call.money
        if reserved is None:
            return
        call.money = None
        wallet, held, reserved_s, counters = reserved
        counters.settle(wallet, reserved_tokens=held, used_tokens=nanos, reserved_s=reserved_s, now_s=time.time())
        counters.release(wallet)

    def _wanted(self, call: Call) -> tuple[TenantPolicy, int] | None:
        """Return the wallet, and what the call costs at its most expensive model; None where it costs nothing."""
        wallet, facts = self._by_tenant.get(call.tenant.name), call.facts
        if wallet is None or facts is None:
            return None
        prompt = facts.num_prompt_tokens_estimate
        completion = max(0, call.cost_tokens - prompt)
        nanos = max(cost_of(self._prices.get(model), prompt, completion) for model in call.pools)
        return (wallet, nanos) if nanos else None

    def _reserved(
        self, call: Call, wallet: TenantPolicy, nanos: int, denied: Denied | None, by: LocalCounters | RedisCounters
    ) -> Denied | None:
        if denied is not None:
            return replace(denied, limit=MONEY)
        call.money = Reserved(wallet, nanos, call.reserved_unix_s, by)
        return None
