"""The admin API, ``/metrics`` and ``/load``: whose requests are allowed, and the responses."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import msgspec

from longboat.core.errors import ClusterError
from longboat.gateway.admin.admin_call import (
    ROLES,
    AdminAnswer,
    AdminCall,
    AdminCaller,
    AdminState,
    bad_query,
    may_steer,
    not_allowed,
    whole_number,
)
from longboat.gateway.admin.admin_changes import change_of
from longboat.gateway.admin.local_clients import is_here
from longboat.gateway.admin.node_query import (
    DAY_PATTERN,
    USAGE_DAYS,
    MetricsQuery,
    RecentQuery,
    TimelineQuery,
    UsageQuery,
)
from longboat.gateway.admin.routing_queries import RoutesQuery, TraceQuery
from longboat.gateway.admin.scrape_targets import KINDS, engine_targets, fleet_gateways, gateway_targets, own_target
from longboat.gateway.api.paths import unknown_path
from longboat.gateway.http.error_responses import method_not_allowed, unknown_model
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.keys import presented_key
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.records.host_gauges import host_gauges
from longboat.gateway.records.metrics_text import CONTENT_TYPE, render
from longboat.gateway.records.usage_store import day_of
from longboat.gateway.sign_in.desk import looks_like_token
from longboat.gateway.sign_in.problems import ProviderSilentError, RefusedError
from longboat.routing.capacity.daily_rests import with_rests
from longboat.telemetry import logger

log = logger("gateway")

__all__ = ("adapter_rows", "answer", "is_admin_path")

_MAX_LIMIT = 1000
_REQUEST_PATH = re.compile(r"requests/[^/]{1,400}")
_READ: Final = ("state", "usage", "requests", "adapters", "routes", "trace", "prometheus-targets")


def is_admin_path(path: str) -> bool:
    """Return whether the admin side handles this path: :func:`answer`, or the console."""
    return path in ("/metrics", "/load", "/admin", "/console") or path.startswith(("/admin/", "/console/"))


async def answer(
    state: AdminState, method: str, path: str, query: str, noted: Mapping[bytes, bytes], peer: str, body: bytes = b""
) -> Refusal | AdminAnswer:
    """Serve one request. Raises nothing, and ends within about three seconds; a change of adapters, or a token that the
    provider must be asked about, takes longer.

    noted: the request's headers by lower-case name; those with a key, ``x-forwarded-for`` and
        ``forwarded`` are read; body: of a change
    query: as sent, without ``?``; peer: the client's IP address
    """
    caller = await _bearer(state, presented_key(noted)) or _caller(state.live, noted, peer)
    if isinstance(caller, Refusal):
        return caller
    given = {name: values[-1] for name, values in parse_qs(query[:2000]).items()}
    call = AdminCall(state, caller, given, body, noted.get(b"host", b"").decode("latin-1"))
    try:
        if path == "/metrics":
            return await _metrics(call, method)
        if path == "/load":
            return await _load(call, method)
        return await _admin(call, method, path)
    except ClusterError as error:
        message = f"The gateway's parent process does not respond: {error.message}. Try again in a moment."
        return Refusal(status=503, message=message, code="gateway_parent", retry_after_s=1)


async def _metrics(call: AdminCall, method: str) -> Refusal | AdminAnswer:
    if method not in ("GET", "HEAD"):
        return method_not_allowed(method, "GET, HEAD")
    if not (call.caller.scrapes or call.caller.rank):
        return not_allowed(call.caller, "the metrics", "viewer")
    snapshot = await call.node.ask(MetricsQuery())
    node = host_gauges(call.state.config.state_folder)
    text = await asyncio.to_thread(render, {**snapshot, "node": node})  # 0.1 s with two thousand series
    return AdminAnswer(200, text, CONTENT_TYPE)


async def _load(call: AdminCall, method: str) -> Refusal | AdminAnswer:
    """Answer as vLLM does: the number of requests in progress, here of all processes of this node."""
    if method not in ("GET", "HEAD"):
        return method_not_allowed(method, "GET, HEAD")
    if not (call.caller.scrapes or call.caller.known):
        return not_allowed(call.caller, "the load", "viewer")
    return AdminAnswer(200, {"server_load": (await call.node.report())["in_flight"]})


async def _admin(call: AdminCall, method: str, path: str) -> Refusal | AdminAnswer:
    if not (call.caller.rank or call.caller.tenant is not None):
        return not_allowed(call.caller, "the admin API", "viewer")
    name = path.removeprefix("/admin/v1/")
    if change := change_of(method, name):
        if method != change.method:
            return method_not_allowed(method, change.method)
        if not may_steer(call.caller.rank):
            return not_allowed(call.caller, change.what, "operator")
        return await change.carry_out(call)
    if name not in _READ and not _REQUEST_PATH.fullmatch(name):
        return unknown_path(path)
    if method not in ("GET", "HEAD"):
        return method_not_allowed(method, "GET, HEAD, POST" if name == "adapters" else "GET, HEAD")
    return await _read(call, name)


async def _read(call: AdminCall, name: str) -> Refusal | AdminAnswer:
    match name:
        case "state":
            if not call.caller.rank:
                return not_allowed(call.caller, "the gateway's state", "viewer")
            return AdminAnswer(200, await call.node.report())
        case "adapters":
            if not call.caller.rank:
                return not_allowed(call.caller, "the list of adapters", "viewer")
            return AdminAnswer(200, {"adapters": adapter_rows(call.state)})
        case "routes" | "trace":
            return await _routing(call, name)
        case "prometheus-targets":
            return await _targets(call)
        case "usage":
            return await _usage(call)
        case "requests":
            return await _requests(call)
    return await _request(call, unquote(name.removeprefix("requests/")))


def adapter_rows(state: AdminState) -> list[dict[str, Any]]:
    """Return each adapter with the replicas that serve it, by the revision of what they serve."""
    rows = []
    for adapter in state.live.policy.adapters:
        served: dict[str, list[str]] = {}
        for upstream in state.table.endpoints(adapter.name) or ():
            served.setdefault(upstream.adapters[adapter.name], []).append(upstream.key)
        rows.append({"name": adapter.name, "model": adapter.model, "tenants": adapter.tenants, "served_by": served})
    return rows


async def _request(call: AdminCall, request_id: str) -> Refusal | AdminAnswer:
    document = await call.node.ask(TimelineQuery(request_id, call.only))
    if document["request"] is None:
        return _no_request(request_id, document["missing"])
    request = document["request"]
    if call.only is not None and request["routing"]["choice"] is not None:  # the load of replicas is of all tenants
        request["routing"]["choice"] = {**request["routing"]["choice"], "candidates": []}
    return AdminAnswer(200, {**request, "missing": document["missing"]})


async def _routing(call: AdminCall, name: str) -> Refusal | AdminAnswer:
    if not call.caller.rank:
        return not_allowed(call.caller, "what concerns all tenants", "viewer")
    if name == "trace":
        return AdminAnswer(200, await call.node.ask(TraceQuery(call.query.get("reader", "")[:64])))
    model = call.query.get("model", "")
    document = await call.node.ask(RoutesQuery(model))
    if model and not document["models"]:
        return unknown_model(model, call.state.table.models)
    return AdminAnswer(200, document)


async def _targets(call: AdminCall) -> Refusal | AdminAnswer:
    """Answer Prometheus' HTTP service discovery, which takes a list."""
    if not call.caller.rank:
        return not_allowed(call.caller, "the targets", "viewer")
    if (kind := call.query.get("of", KINDS[0])) not in KINDS:
        return Refusal(status=400, message=f"'of' must be one of {', '.join(KINDS)}.", code="bad_query", param="of")
    config = call.state.config
    groups: list[dict[str, Any]] | Refusal
    if kind == "engines":
        table = call.state.table.table
        groups = engine_targets(table.endpoints if table is not None else (), config.fleet)
    elif config.daemon_socket is None:
        groups = own_target(call.host, tls=config.tls_certificate is not None, fleet=config.fleet) if call.host else []
    else:
        found = await fleet_gateways(config.daemon_socket)
        if isinstance(found, Refusal):
            return found
        groups = gateway_targets(found, config.fleet)
    return groups if isinstance(groups, Refusal) else AdminAnswer(200, msgspec.json.encode(groups))


async def _requests(call: AdminCall) -> Refusal | AdminAnswer:
    limit = whole_number(call.query.get("limit", "50"), _MAX_LIMIT)
    if limit is None:
        return bad_query("limit", _MAX_LIMIT)
    tenant = call.query.get("tenant", call.only)
    if call.only is not None and tenant != call.only:
        return Refusal(status=404, message="There is no such tenant for this key.", code="tenant_not_found")
    return AdminAnswer(200, await call.node.ask(RecentQuery(tenant, limit)))


async def _usage(call: AdminCall) -> Refusal | AdminAnswer:
    days = whole_number(call.query.get("days", str(USAGE_DAYS)), 366)
    if days is None:
        return bad_query("days", 366)
    until = call.query.get("until", "")
    if not re.fullmatch(DAY_PATTERN, until):
        message = "'until' must be a day such as 2026-11-21."
        return Refusal(status=400, message=message, code="bad_query", param="until")
    document = await call.node.ask(UsageQuery(days, call.only, until))
    rows = document["days"]
    limits = [] if until else [limit for limit in document["limits"] if call.only in (None, limit.get("tenant"))]
    rests = with_rests(limits, rows, day_of(time.time()))
    currencies = call.state.live.policy.currencies_of(rows)
    answer = {"days": rows, "older": document.get("older"), "currencies": currencies, "limits": rests}
    return AdminAnswer(200, {**answer, "missing": document["missing"]})


# the client's rights


async def _bearer(state: AdminState, presented: bytes) -> AdminCaller | Refusal | None:
    """Return the rights of a provider's token; None where the client sent none, or a key."""
    sign_in = state.live.policy.sign_in
    if sign_in is None or not looks_like_token(presented):
        return None
    try:
        grant = await state.sign_in.bearer(sign_in, presented)
    except RefusedError as error:
        status = 403 if error.code == "not_allowed" else 401
        return Refusal(status=status, message=f"The token is refused: {error}.", code=error.code)
    except ProviderSilentError as error:
        log.warning("a token cannot be checked: %s", error)
        message = "The token cannot be checked: the sign-in provider does not answer. Try again in a moment."
        return Refusal(status=503, message=message, code="provider_silent", retry_after_s=5)
    return AdminCaller(rank=ROLES.get(grant.role, 0), tenant=grant.tenant or None, known=True, name=grant.name)


def _caller(live: LivePolicy, noted: Mapping[bytes, bytes], peer: str) -> AdminCaller:
    """Find the rights: an admin's key has its role, a tenant's key reads that tenant's records.

    Without a key, a client on this machine may read the metrics. Where the policy has no keys at all, it may read
    everything else too, and the metrics are open to every client.
    """
    here = is_here(noted, peer)
    keyless = live.is_keyless
    presented = presented_key(noted)
    if presented:
        if (admin := live.keys.admin_of(presented)) is not None:
            return AdminCaller(rank=ROLES.get(admin.role, 0), known=True, name=admin.name)
        if live.keys.asks and (tenant := live.keys.tenant_of(presented, time.time())) is not None:
            return AdminCaller(tenant=tenant.name, known=True)
        if not keyless:
            return AdminCaller()  # a wrong key is refused, wherever it comes from
    return AdminCaller(rank=ROLES["viewer"] if keyless and here else 0, scrapes=keyless or here)


# error responses


def _no_request(request_id: str, missing: list[str]) -> Refusal:
    silent = f" These processes did not respond: {', '.join(missing)}." if missing else ""
    message = f"No recent request has the id {request_id[:128]!r}. Each node keeps only its last requests.{silent}"
    return Refusal(status=404, message=message, code="request_not_found")
