"""Describes which clients may use the gateways, and how tenants' limits are kept, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from longboat.cluster.protocol.messages import FleetReport
from longboat.cluster.protocol.shown import ShownGateway

if TYPE_CHECKING:
    from longboat.spec.types.fleet import Fleet

__all__ = ("auth_line", "key_note", "limits_line", "tenant_rows", "tenants_document")

MONEY = "money_per_day"
LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", MONEY, "concurrent_requests")


def auth_line(gateway: ShownGateway, num_keys: int) -> str:
    """Say who may use the models."""
    if gateway.auth == "keys":
        is_clear = not gateway.has_tls and not gateway.is_local
        warning = "; without gateway.tls, keys cross the network in clear text" if is_clear else ""
        return f"auth: keys, {num_keys} known{warning}"
    if gateway.is_local:
        return f"auth: none; {gateway.host} is open to this node's own users only"
    return "auth: none; every client that reaches the address may use the models"


def key_note(fleet: Fleet, report: FleetReport) -> str:
    """Say what to do next where keys are asked for; empty where there is nothing to do."""
    if fleet.gateway.auth != "keys":
        return ""
    if report.num_keys:
        return "requests need a key: longboat keys list shows them"
    from longboat.spec.policy import tenant_names

    return f"requests need a key, and there is none yet: longboat keys create --tenant {tenant_names(fleet.gateway)[0]}"


def limits_line(gateway: ShownGateway, num_gateways: int) -> str:
    """Say how many gateways share the limits; empty where there are no limits."""
    if not any(_limits(tenant) for tenant in gateway.tenants):
        return ""
    if gateway.has_redis:
        return "limits: counted by all gateways together, through Redis"
    if num_gateways < 2:
        return "limits: counted by the one gateway"
    return (
        f"limits: each of the {num_gateways} gateways allows 1/{num_gateways} of them; "
        "with gateway.redis they would count together"
    )


def tenant_rows(gateway: ShownGateway, num_gateways: int) -> Iterator[tuple[str, ...]]:
    """Cells of the table of tenants: name, weight, priority, and each limit with each gateway's part of it."""
    parts = 1 if gateway.has_redis else max(1, num_gateways)
    for tenant in gateway.tenants:
        limits = (_limit_cell(name, tenant.get(name), parts) for name in LIMITS)
        yield (tenant["name"], f"{tenant['weight']:g}", str(tenant["priority"]), *limits)
    if gateway.default_tenant:
        yield (gateway.default_tenant, "1", "1", *("-" for _ in LIMITS))


def tenants_document(gateway: ShownGateway, num_gateways: int) -> dict[str, Any]:
    """Return the tenants and their limits for machines."""
    return {
        "auth": gateway.auth,
        "counted": "redis" if gateway.has_redis else "per_gateway",
        "num_gateways": num_gateways,
        "tenants": [dict(tenant) for tenant in gateway.tenants],
    }


def _limits(tenant: Mapping[str, Any]) -> bool:
    return any(tenant.get(name) is not None for name in LIMITS)


def _limit_cell(name: str, limit: float | None, parts: int) -> str:
    if limit is None:
        return "-"
    if name == MONEY:
        return f"{limit:,.2f}" if parts == 1 else f"{limit:,.2f} ({limit / parts:,.2f} each)"
    from longboat.routing.capacity.quota import share_of

    return f"{limit:,}" if parts == 1 else f"{limit:,} ({share_of(int(limit), parts):,} each)"
