"""What may be spent on external models: each daily limit is counted like the daily tokens of a tenant.

So that the counters, the leases between processes and Redis hold them to the request, each limit is a tenant with a
name that no tenant of the file can have, and its ``tokens_per_day`` are requests, tokens or billionths of a currency.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from longboat.core.external import NANOS, ExternalModel, Price
from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.records.usage_store import UsageStore, day_of

__all__ = ("KINDS", "Amounts", "budgets_of", "cost_of", "limits_by_name", "spent_today")

KINDS = ("requests_per_day", "tokens_per_day", "money_per_day")


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


def limits_by_name(policy: Policy) -> tuple[TenantPolicy, ...]:
    """Return the tenants by which all limits of a policy's external models are counted."""
    return tuple(tenant for model in policy.external for _, tenant in budgets_of(model))


def spent_today(usage: UsageStore, now_s: float) -> dict[str, int]:
    """Return what tenants, and each limit, have used of this UTC day, for counters that begin again within it."""
    spent = usage.all_totals_today(now_s)
    for row in usage.report(1, now_s):
        if row.sent and row.day == day_of(now_s):
            amounts = Amounts(row.sent, row.prompt_tokens + row.completion_tokens, row.cost_nanos)
            for kind in KINDS:
                name = _name(row.model, kind)
                spent[name] = spent.get(name, 0) + amounts.of(kind)
    return spent


def _name(model: str, kind: str) -> str:
    return f"external:{model}:{kind}"
