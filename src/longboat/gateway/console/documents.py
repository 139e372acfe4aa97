"""The documents behind the pages: each is made from the node's own records, for one person's rights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from longboat.core.policy import KeyRecord, Policy, TenantPolicy
from longboat.core.states import EndpointTable
from longboat.core.tasks import GENERATE
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.records.metrics import ITL_BOUNDS_S, OTHER, REQUEST_BOUNDS_S, add_counts
from longboat.routing.capacity.daily_rests import with_rests

__all__ = ("TableView", "models_document", "tenants_document", "traffic_document", "usage_document", "visible_to")

Document = dict[str, Any]
_COUNTS = ("in_flight", "waiting", "retries", "prompt_tokens", "completion_tokens", "cached_tokens")
_MAX_TENANTS = 200


class TableView(Protocol):
    """The endpoint table as the gateway has it."""

    table: EndpointTable | None

    @property
    def names(self) -> tuple[str, ...]: ...
    def adapted_by(self, name: str) -> str: ...


def visible_to(only: TenantPolicy | None, table: TableView, live: LivePolicy) -> tuple[str, ...]:
    """Return the models, aliases and adapters that a tenant may use, or all of them."""
    names = (*table.names, *(name for name in live.rules.known_names() if name not in table.names))
    if only is None:
        return names
    owners = live.rules.owners
    return tuple(name for name in names if _may_use(only, name, owners.get(name), table.adapted_by(name)))


def _may_use(tenant: TenantPolicy, name: str, owners: Iterable[str] | None, base: str) -> bool:
    if owners is not None:
        return tenant.name in owners
    return tenant.models is None or name in tenant.models or base in tenant.models


def models_document(
    routes: Document, metrics: Document, table: TableView, live: LivePolicy, only: TenantPolicy | None
) -> Document:
    """Return what runs. A tenant learns which of its models answer, and nothing of the load that others cause."""
    names, endpoints = visible_to(only, table, live), table.table
    rows: dict[str, list[Document]] = {}
    for row in routes["routes"]:
        rows.setdefault(row["model"], []).append(row)
    waiting = _by(metrics["series"], "model")
    tasks = live.policy.tasks
    shown = [
        {
            "name": name,
            "task": str(tasks.get(name, GENERATE)),
            "adapts": table.adapted_by(name),
            **_state_of(endpoints, name, with_scaling=only is None),
            "ready": sum(bool(row["ready"]) for row in rows.get(name, ())),
            "replicas": [] if only else [_replica(row, endpoints) for row in rows.get(name, ())],
            "waiting": 0 if only else waiting.get(name, {}).get("waiting", 0),
            "in_flight": 0 if only else waiting.get(name, {}).get("in_flight", 0),
        }
        for name in names
    ]
    return {"models": shown, "policy": routes["policy"]}


def _state_of(table: EndpointTable | None, name: str, *, with_scaling: bool) -> Document:
    """Return how many replicas there are to be, and whether the model sleeps."""
    asleep = table.asleep.get(name) if table is not None else None
    scaling = dict(table.scaling.get(name, {})) if table is not None and with_scaling else {}
    return {
        "asleep": asleep is not None,
        "paused": asleep is not None and asleep.paused,
        "served_here": table is not None and name in table.models,
        "scaling": scaling,
    }


def _replica(row: Document, table: EndpointTable | None) -> Document:
    endpoint = next((e for e in table.endpoints if e.replica == row["replica"]), None) if table is not None else None
    facts = (
        {
            "resume": str(endpoint.resume.value),
            "capacity": endpoint.engine_capacity or endpoint.capacity,
            "moving": endpoint.moving,
            "adapters": sorted(endpoint.adapters),
        }
        if endpoint is not None
        else {"resume": "none", "capacity": None, "moving": False, "adapters": []}
    )
    kept = (
        "replica",
        "ready",
        "suspect",
        "in_flight",
        "prefilling",
        "prefill_tokens",
        "decode_tokens",
        "engine",
        "hits",
    )
    return {**{name: row[name] for name in kept}, **facts}


def traffic_document(metrics: Document, only: str | None, at_s: float) -> Document:
    """Return counters by model and by tenant; the browser makes rates and quantiles of two of them."""
    series = [item for item in metrics["series"] if only in (None, item["tenant"]) and only != OTHER]
    tenants = sorted(_by(series, "tenant").items(), key=lambda item: -item[1]["completion_tokens"])[:_MAX_TENANTS]
    return {
        "at_s": at_s,
        "bounds": {"ttft": REQUEST_BOUNDS_S, "queue": REQUEST_BOUNDS_S, "itl": ITL_BOUNDS_S},
        "models": [{"name": name, **counts} for name, counts in sorted(_by(series, "model").items())],
        "tenants": [{"name": name, **counts} for name, counts in tenants],
        "refusals": [] if only else metrics["refusals"],
        "events": {} if only else metrics["events"],
        "processes": [] if only else [_process(process) for process in metrics["processes"]],
        "missing": metrics["missing"],
    }


def _by(series: Iterable[Mapping[str, Any]], name: str) -> dict[str, Document]:
    """Add up the counters of all series with one name."""
    total: dict[str, Document] = {}
    for item in series:
        part = {key: item[key] for key in (*_COUNTS, "outcomes", "ttft", "itl", "queue")}
        add_counts(total.setdefault(item[name], {}), part)
    return total


def _process(process: Mapping[str, Any]) -> Document:
    return {name: process.get(name, 0) for name in ("process", "pid", "cpu_s", "rss_bytes", "connections", "lag_max_s")}


def usage_document(policy: Policy, usage: Document, only: str | None, today: str) -> Document:
    """Return use by day, the currency of each model's price, and what is left of daily limits. today: as days are"""
    rows = usage["days"]
    limits = [limit for limit in usage["limits"] if only in (None, limit.get("tenant"))]
    return {
        "days": rows,
        "older": usage.get("older"),
        "currencies": policy.currencies_of(rows),
        "limits": with_rests(limits, rows, today),
        "missing": usage["missing"],
    }


def tenants_document(policy: Policy, metrics: Document, only: str | None) -> Document:
    """Return tenants with their limits, and their keys without what could be used of them."""
    used = _by((item for item in metrics["series"] if item["tenant"] != OTHER), "tenant")  # OTHER: of many tenants
    keys: dict[str, list[Document]] = {}
    for record in policy.keys:
        keys.setdefault(record.tenant, []).append(_key(record))
    return {
        "auth": policy.auth,
        "currency": policy.currency,
        "tenants": [
            {**_tenant(tenant), "keys": keys.get(tenant.name, []), **_use(used.get(tenant.name, {}))}
            for tenant in policy.tenants
            if only in (None, tenant.name)
        ],
        "admins": [] if only else [{"name": admin.name, "role": admin.role} for admin in policy.admins],
        "missing": metrics["missing"],
    }


def _tenant(tenant: TenantPolicy) -> Document:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "priority": tenant.priority,
        "requests_per_minute": tenant.requests_per_minute,
        "tokens_per_minute": tenant.tokens_per_minute,
        "tokens_per_day": tenant.tokens_per_day,
        "money_per_day": tenant.money_per_day,
        "concurrent_requests": tenant.concurrent_requests,
        "max_context_tokens": tenant.max_context_tokens,
        "models": tenant.models,
        "external": tenant.external,
    }


def _key(record: KeyRecord) -> Document:
    return {
        "id": record.key_id,
        "created_s": record.created_s or None,
        "expires_s": record.expires_s,
        "note": record.note,
    }


def _use(counts: Mapping[str, Any]) -> Document:
    return {
        "in_flight": counts.get("in_flight", 0),
        "waiting": counts.get("waiting", 0),
        "completion_tokens": counts.get("completion_tokens", 0),
    }
