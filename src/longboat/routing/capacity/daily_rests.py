"""What is left of daily limits: of tenants' tokens and money, and of what may be spent on external models. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from longboat.core.external import NANOS, ExternalModel
from longboat.core.policy import Policy, TenantPolicy

__all__ = ("daily_limits", "with_rests")

_TOKENS = "tokens_per_day"
_MONEY = "money_per_day"


def daily_limits(policy: Policy) -> list[dict[str, Any]]:
    """Return each daily limit: whose it is (``tenant`` or ``model``), its kind, and the limit itself."""
    tenants = (limit for tenant in policy.tenants for limit in _of_tenant(tenant, policy.currency))
    return [*tenants, *(limit for model in policy.external for limit in _limits(model))]


def _of_tenant(tenant: TenantPolicy, currency: str) -> Iterator[dict[str, Any]]:
    if tenant.tokens_per_day is not None:
        yield {"tenant": tenant.name, "kind": _TOKENS, "limit": tenant.tokens_per_day}
    if tenant.money_per_day is not None:
        yield {"tenant": tenant.name, "kind": _MONEY, "limit": tenant.money_per_day, "currency": currency}


def _limits(model: ExternalModel) -> Iterator[dict[str, Any]]:
    for kind in ("requests_per_day", _TOKENS, _MONEY):
        limit = getattr(model.limits, kind)
        if limit is not None:
            currency = {"currency": model.price.currency} if kind == _MONEY and model.price is not None else {}
            yield {"model": model.name, "kind": kind, "limit": limit, **currency}


def with_rests(
    limits: Iterable[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], today: str
) -> list[dict[str, Any]]:
    """Return each limit with ``used`` and ``left``.

    rows: usage by day, tenant and model, over all gateways; today: the day of UTC, as rows have it
    """
    now = [row for row in rows if row["day"] == today]
    found = []
    for limit in limits:
        used = _used(limit, now)
        found.append({**limit, "used": used, "left": max(0, round(limit["limit"] - used, 9))})
    return found


def _used(limit: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> float:
    if "tenant" in limit:
        own = [row for row in rows if row["tenant"] == limit["tenant"]]
        return _money(own) if limit["kind"] == _MONEY else sum(map(_tokens, own))
    sent = [row for row in rows if row["model"] == limit["model"] and row.get("sent")]
    if limit["kind"] == _TOKENS:
        return sum(map(_tokens, sent))
    if limit["kind"] == _MONEY:
        return _money(sent)
    return sum(int(row["sent"]) for row in sent)


def _money(rows: Iterable[Mapping[str, Any]]) -> float:
    return sum(int(row.get("cost_nanos") or 0) for row in rows) / NANOS


def _tokens(row: Mapping[str, Any]) -> int:
    return int(row["prompt_tokens"]) + int(row["completion_tokens"])
