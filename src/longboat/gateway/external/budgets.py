"""What may be spent in a day, on external models and by tenants: each limit is counted like a tenant's daily tokens.

So that the counters, the leases between processes and Redis hold them to the request, each limit is a tenant with a
name that no tenant of the file can have, and its ``tokens_per_day`` are requests, tokens or billionths of a currency.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from longboat.core.external import NANOS, ExternalModel, Price
from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.records.usage_store import UsageStore, day_of

if TYPE_CHECKING:
    from longboat.gateway.limits.counters import LocalCounters
    from longboat.gateway.limits.redis_counters import RedisCounters

__all__ = (
    "KINDS",
    "Amounts",
    "Reserved",
    "budgets_of",
    "cost_of",
    "limits_by_name",
    "spent_on_new_limits",
    "spent_today",
    "wallet_of",
)

KINDS = ("requests_per_day", "tokens_per_day", "money_per_day")


class Reserved(NamedTuple):
    """A part of a tenant's money that a request holds."""

    wallet: TenantPolicy
    nanos: int
    reserved_s: float  # Unix seconds
    counters: LocalCounters | RedisCounters


@dataclass(frozen=True, slots=True)
class Amounts:
    """A number for each of ``KINDS``."""

    requests: int = 0
    tokens: int = 0
    nanos: int = 0

    def of(self, kind: str) -> int:
        """Return the number of one kind."""
        return {"requests_per_day": self.requests, "tokens_per_day": self.tokens}.get(kind, self.nanos)


def cost_of(price: Price | None, prompt_tokens: int, completion_tokens: int) -> int:
    """Return what these tokens cost in billionths; 0 without a price."""
    return 0 if price is None else price.nanos(prompt_tokens, completion_tokens)


def budgets_of(model: ExternalModel) -> tuple[tuple[str, TenantPolicy], ...]:
    """Return the model's limits: the kind, and the tenant by which it is counted."""
    return tuple(_budgets(model))


def _budgets(model: ExternalModel) -> Iterator[tuple[str, TenantPolicy]]:
    for kind in KINDS:
        limit = getattr(model.limits, kind)
        if limit is not None:
            whole = math.floor(limit * NANOS) if kind == "money_per_day" else limit
            yield kind, TenantPolicy(name=_name(model.name, kind), tokens_per_day=whole)


def wallet_of(tenant: TenantPolicy) -> TenantPolicy | None:
    """Return the tenant by which a tenant's money is counted; None where it has no limit of money."""
    if tenant.money_per_day is None:
        return None
    return TenantPolicy(name=_wallet_name(tenant.name), tokens_per_day=math.floor(tenant.money_per_day * NANOS))


def limits_by_name(policy: Policy) -> tuple[TenantPolicy, ...]:
    """Return the tenants by which all limits of a policy's external models, and its tenants' money, are counted."""
    wallets = (wallet for tenant in policy.tenants if (wallet := wallet_of(tenant)) is not None)
    return (*(tenant for model in policy.external for _, tenant in budgets_of(model)), *wallets)


def spent_on_new_limits(usage: UsageStore, before: Policy, after: Policy, now_s: float) -> dict[str, int]:
    """Return what of this UTC day counts against limits that only ``after`` has: nothing was counted for them yet."""
    old = {limit.name for limit in limits_by_name(before)}
    new = {limit.name for limit in limits_by_name(after)} - old
    return {name: used for name, used in spent_today(usage, now_s).items() if name in new} if new else {}


def spent_today(usage: UsageStore, now_s: float) -> dict[str, int]:
    """Return what tenants, and each limit, have used of this UTC day, for counters that begin again within it."""
    spent = usage.all_totals_today(now_s)
    for row in usage.report(1, now_s):
        if row.day != day_of(now_s):
            continue
        if row.cost_nanos:
            wallet = _wallet_name(row.tenant)
            spent[wallet] = spent.get(wallet, 0) + row.cost_nanos
        if row.sent:
            amounts = Amounts(row.sent, row.prompt_tokens + row.completion_tokens, row.cost_nanos)
            for kind in KINDS:
                name = _name(row.model, kind)
                spent[name] = spent.get(name, 0) + amounts.of(kind)
    return spent


def _name(model: str, kind: str) -> str:
    return f"external:{model}:{kind}"


def _wallet_name(tenant: str) -> str:
    return f"tenant:{tenant}:money_per_day"
