"""The admin API, ``/metrics`` and ``/load``: whose requests are allowed, and the responses."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs, unquote

from longboat.core.errors import ClusterError
from longboat.gateway.admin.node_query import USAGE_DAYS, MetricsQuery, RecentQuery, TimelineQuery, UsageQuery
from longboat.gateway.admin.node_view import Node
from longboat.gateway.admin.routing_queries import RoutesQuery, TraceQuery
from longboat.gateway.api.paths import unknown_path
from longboat.gateway.http.error_responses import method_not_allowed, unknown_model
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.keys import presented_key
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.records.metrics_text import CONTENT_TYPE, render
from longboat.gateway.upstreams.table import LiveTable

__all__ = ("AdminAnswer", "AdminState", "answer", "is_admin_path")

_MAX_LIMIT = 1000
_REQUEST_PATH = re.compile(r"requests/[^/]{1,400}")
_ROLES = {"viewer": 1, "operator": 2}


class AdminAnswer(NamedTuple):
    """A response of the admin API."""

    status: int
    # a JSON document, or whole bytes
    body: dict[str, Any] | bytes
    content_type: str = "application/json"


class AdminState(Protocol):
    """The parts of the gateway that the admin API needs: policy, keys, endpoints, and the view of the node."""

    @property
    def live(self) -> LivePolicy: ...
    @property
    def node(self) -> Node: ...
    @property
    def table(self) -> LiveTable: ...


class _Caller(NamedTuple):
    """The rights of a client."""

    # the role by its number in _ROLES; 0: without a role
    rank: int = 0
    # without a role: the tenant whose records may be read
    tenant: str | None = None
    # whether a key was presented and found
    known: bool = False
    # whether the metrics may be read without a role
    scrapes: bool = False


class _Call(NamedTuple):
    """A call with the rights of its client."""

    state: AdminState
    caller: _Caller
    query: Mapping[str, str]

    @property
    def node(self) -> Node:
        return self.state.node

    @property
    def only(self) -> str | None:
        """The tenant whose records may be read; None reads all."""
        return self.caller.tenant if not self.caller.rank else None


def is_admin_path(path: str) -> bool:
    """Return whether :func:`answer` handles this path."""
    return path in ("/metrics", "/load", "/admin") or path.startswith("/admin/")


async def answer(
    state: AdminState, method: str, path: str, query: str, noted: Mapping[bytes, bytes], peer: str
) -> Refusal | AdminAnswer:
    """Serve one request. Raises nothing, and ends within about three seconds.

    noted: the request's headers by lower-case name; those with a key, ``x-forwarded-for`` and
        ``forwarded`` are read
    query: as sent, without ``?``; peer: the client's IP address
    """
    caller = _caller(state.live, noted, peer)
    given = {name: values[-1] for name, values in parse_qs(query[:2000]).items()}
    call = _Call(state, caller, given)
    try:
        if path == "/metrics":
            return await _metrics(call, method)
        if path == "/load":
            return await _load(call, method)
        return await _admin(call, method, path)
    except ClusterError as error:
        message = f"The gateway's parent process does not respond: {error.message}. Try again in a moment."
        return Refusal(status=503, message=message, code="gateway_parent", retry_after_s=1)


async def _metrics(call: _Call, method: str) -> Refusal | AdminAnswer:
    if method not in ("GET", "HEAD"):
        return method_not_allowed(method, "GET, HEAD")
    if not (call.caller.scrapes or call.caller.rank):
        return _not_allowed(call.caller, "the metrics", "viewer")
    return AdminAnswer(200, render(await call.node.ask(MetricsQuery())), CONTENT_TYPE)


async def _load(call: _Call, method: str) -> Refusal | AdminAnswer:
    """Answer as vLLM does: the number of requests in progress, here of all processes of this node."""
    if method not in ("GET", "HEAD"):
        return method_not_allowed(method, "GET, HEAD")
    if not (call.caller.scrapes or call.caller.known):
        return _not_allowed(call.caller, "the load", "viewer")
    return AdminAnswer(200, {"server_load": (await call.node.report())["in_flight"]})


async def _admin(call: _Call, method: str, path: str) -> Refusal | AdminAnswer:
    if not (call.caller.rank or call.caller.tenant is not None):
        return _not_allowed(call.caller, "the admin API", "viewer")
    name = path.removeprefix("/admin/v1/")
    if name in ("drain", "undrain"):
        return await _steer(call, method, name)
    if name not in ("state", "usage", "requests", "adapters", "routes", "trace") and not _REQUEST_PATH.fullmatch(name):
        return unknown_path(path)
    if method not in ("GET", "HEAD"):
        return method_not_allowed(method, "GET, HEAD")
    return await _read(call, name)


async def _read(call: _Call, name: str) -> Refusal | AdminAnswer:
    match name:
        case "state":
            if not call.caller.rank:
                return _not_allowed(call.caller, "the gateway's state", "viewer")
            return AdminAnswer(200, await call.node.report())
        case "adapters":
            if not call.caller.rank:
                return _not_allowed(call.caller, "the list of adapters", "viewer")
            return AdminAnswer(200, {"adapters": _adapters(call.state)})
        case "routes" | "trace":
            return await _routing(call, name)
        case "usage":
            return await _usage(call)
        case "requests":
            return await _requests(call)
    return await _request(call, unquote(name.removeprefix("requests/")))


def _adapters(state: AdminState) -> list[dict[str, Any]]:
    """Return each adapter with the replicas that serve it, by the revision of what they serve."""
    rows = []
    for adapter in state.live.policy.adapters:
        served: dict[str, list[str]] = {}
        for upstream in state.table.endpoints(adapter.name) or ():
            served.setdefault(upstream.adapters[adapter.name], []).append(upstream.key)
        rows.append({"name": adapter.name, "model": adapter.model, "tenants": adapter.tenants, "served_by": served})
    return rows


async def _request(call: _Call, request_id: str) -> Refusal | AdminAnswer:
    document = await call.node.ask(TimelineQuery(request_id, call.only))
    if document["request"] is None:
        return _no_request(request_id, document["missing"])
    request = document["request"]
    if call.only is not None and request["routing"]["choice"] is not None:  # the load of replicas is of all tenants
        request["routing"]["choice"] = {**request["routing"]["choice"], "candidates": []}
    return AdminAnswer(200, {**request, "missing": document["missing"]})


async def _routing(call: _Call, name: str) -> Refusal | AdminAnswer:
    if not call.caller.rank:
        return _not_allowed(call.caller, "what concerns all tenants", "viewer")
    if name == "trace":
        return AdminAnswer(200, await call.node.ask(TraceQuery(call.query.get("reader", "")[:64])))
    model = call.query.get("model", "")
    document = await call.node.ask(RoutesQuery(model))
    if model and not document["models"]:
        return unknown_model(model, call.state.table.models)
    return AdminAnswer(200, document)


async def _requests(call: _Call) -> Refusal | AdminAnswer:
    limit = _whole_number(call.query.get("limit", "50"), _MAX_LIMIT)
    if limit is None:
        return _bad_query("limit", _MAX_LIMIT)
    tenant = call.query.get("tenant", call.only)
    if call.only is not None and tenant != call.only:
        return Refusal(status=404, message="There is no such tenant for this key.", code="tenant_not_found")
    return AdminAnswer(200, await call.node.ask(RecentQuery(tenant, limit)))


async def _usage(call: _Call) -> Refusal | AdminAnswer:
    days = _whole_number(call.query.get("days", str(USAGE_DAYS)), 366)
    if days is None:
        return _bad_query("days", 366)
    document = await call.node.ask(UsageQuery(days))
    rows = [row for row in document["days"] if call.only in (None, row["tenant"])]
    return AdminAnswer(200, {"days": rows, "missing": document["missing"]})


async def _steer(call: _Call, method: str, verb: str) -> Refusal | AdminAnswer:
    if call.caller.rank < _ROLES["operator"]:
        return _not_allowed(call.caller, verb, "operator")
    if method != "POST":
        return method_not_allowed(method, "POST")
    await (call.node.drain() if verb == "drain" else call.node.undrain())
    return AdminAnswer(200, {"draining": verb == "drain"})


# the client's rights


def _caller(live: LivePolicy, noted: Mapping[bytes, bytes], peer: str) -> _Caller:
    """Find the rights: an admin's key has its role, a tenant's key reads that tenant's records.

    Without a key, a client on this machine may read the metrics. Where the policy has no keys at all, it may read
    everything else too, and the metrics are open to every client.
    """
    here = _is_here(noted, peer)
    keyless = not live.keys.asks and not live.policy.admins
    presented = presented_key(noted)
    if presented:
        if (admin := live.keys.admin_of(presented)) is not None:
            return _Caller(rank=_ROLES.get(admin.role, 0), known=True)
        if live.keys.asks and (tenant := live.keys.tenant_of(presented, time.time())) is not None:
            return _Caller(tenant=tenant.name, known=True)
        if not keyless:
            return _Caller()  # a wrong key is refused, wherever it comes from
    return _Caller(rank=_ROLES["viewer"] if keyless and here else 0, scrapes=keyless or here)


def _is_here(noted: Mapping[bytes, bytes], peer: str) -> bool:
    """Whether the client itself is on this machine, rather than a proxy for it."""
    if b"x-forwarded-for" in noted or b"forwarded" in noted:
        return False
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _not_allowed(caller: _Caller, what: str, role: str) -> Refusal:
    if caller.known:
        message = f"This key does not give access to {what}. Use an admin key with the role {role!r}."
        return Refusal(status=403, message=message, code="not_allowed")
    message = f"To use {what}, send 'Authorization: Bearer KEY' with an admin key (gateway.admin in the fleet file)."
    return Refusal(status=401, message=message, code="admin_key_required")


# error responses


def _no_request(request_id: str, missing: list[str]) -> Refusal:
    silent = f" These processes did not respond: {', '.join(missing)}." if missing else ""
    message = f"No recent request has the id {request_id[:128]!r}. Each node keeps only its last requests.{silent}"
    return Refusal(status=404, message=message, code="request_not_found")


def _bad_query(name: str, most: int) -> Refusal:
    return Refusal(status=400, message=f"{name!r} must be a number from 1 to {most}.", code="bad_query", param=name)


def _whole_number(text: str, most: int) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 and 1 <= int(text) <= most else None
