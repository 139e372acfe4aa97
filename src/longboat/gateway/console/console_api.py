"""Everything under ``/console``: the page and its files, signing in and out, the documents, chats of the playground."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from longboat import __version__
from longboat.core.errors import ClusterError
from longboat.gateway.admin.admin_api import adapter_rows
from longboat.gateway.admin.node_query import MetricsQuery, RecentQuery, TimelineQuery, UsageQuery
from longboat.gateway.admin.routing_queries import RoutesQuery
from longboat.gateway.api.paths import unknown_path
from longboat.gateway.console.asked import Asked, ChatAs, ConsoleAnswer, ConsoleState, is_encrypted, source_of
from longboat.gateway.console.documents import models_document, tenants_document, traffic_document, usage_document
from longboat.gateway.console.node_reads import read_log, stored_weights
from longboat.gateway.console.orders import KILL, ORDERS, Order, carry_out
from longboat.gateway.console.provider_sign_in import answer_provider, provider_of, silent
from longboat.gateway.console.sections import Section
from longboat.gateway.console.sessions import cookie_line, cookie_value
from longboat.gateway.console.static_files import StaticFile, asset, page
from longboat.gateway.console.visitors import Visitor, credential_of, leaving, playing_tenant, visitor_of
from longboat.gateway.http.error_responses import method_not_allowed
from longboat.gateway.http.responses import Refusal
from longboat.gateway.records.usage_store import day_of
from longboat.gateway.sign_in.problems import ProviderSilentError
from longboat.telemetry import logger

__all__ = ("Asked", "ChatAs", "ConsoleAnswer", "ConsoleState", "answer_console", "is_console_path")

log = logger("gateway")

_API = "/console/api/"
_SECTIONS = ("adapters", "fleet", "models", "requests", "tenants", "traffic", "usage", "weights")
_OF_ROLES = ("adapters", "fleet", "weights")
"""Sections that a tenant's key does not open."""

_WATCHING = ("fleet", "weights")
"""Sections that are made from the controller's view of the fleet."""

_AGES_S = {"traffic": 1.9, "usage": 10.0, "weights": 10.0}
"""Seconds for which a document is given again; other sections: one second."""

_RECENT = 200
_USAGE_DAYS = 31
_MAX_SIGN_IN_BYTES = 4096
_REQUEST_ID = re.compile(r"request/([^/]{1,400})")


def is_console_path(path: str) -> bool:
    """Return whether :func:`answer_console` handles this path."""
    return path == "/console" or path.startswith("/console/")


async def answer_console(state: ConsoleState, asked: Asked) -> Refusal | ConsoleAnswer | ChatAs:
    """Serve one request. Raises nothing, and ends within about three seconds."""
    if not asked.path.startswith(_API):
        return _static(asked)
    name = asked.path.removeprefix(_API)
    now_s = state.clock.unix_s()
    if name == "sign-in":
        return _sign_in(state, asked, now_s)
    if name.startswith("oidc/"):
        return await answer_provider(state, asked, name.removeprefix("oidc/"), now_s)
    cookie = cookie_value(state.console.cookie, asked.noted)
    try:
        visitor = await visitor_of(state, state.console.sessions, cookie, asked.noted, asked.peer, now_s)
    except ProviderSilentError as error:
        if name != "sign-out":
            return silent(error)
        visitor = leaving(state, state.console.sessions, cookie, now_s)
    if name == "session":
        return _session(state, asked, visitor)
    if visitor is None:
        return Refusal(status=401, message="Sign in first: the session has ended, or never began.", code="sign_in")
    try:
        return await _for_visitor(state, asked, visitor, name)
    except ClusterError as error:
        message = f"The gateway's parent process does not respond: {error.message}. Try again in a moment."
        return Refusal(status=503, message=message, code="gateway_parent", retry_after_s=1)


async def _for_visitor(
    state: ConsoleState, asked: Asked, visitor: Visitor, name: str
) -> Refusal | ConsoleAnswer | ChatAs:
    if name in ("sign-out", "chat", *ORDERS):
        if asked.method != "POST":
            return method_not_allowed(asked.method, "POST")
        return _forged(state, asked, visitor) or await _change(state, asked, visitor, name)
    if asked.method not in ("GET", "HEAD"):
        return method_not_allowed(asked.method, "GET, HEAD")
    if found := _REQUEST_ID.fullmatch(name):
        return await _timeline(state, visitor, unquote(found[1]))
    if name == "log":
        return await _log(state, asked, visitor)
    section = name.removeprefix("live/")
    if section not in _SECTIONS:
        return unknown_path(asked.path)
    if section in _OF_ROLES and not visitor.rank:
        return _not_allowed(f"the {section}", "viewer")
    return await _live(state, asked, visitor, section)


# the page and its files


def _static(asked: Asked) -> Refusal | ConsoleAnswer:
    if asked.method not in ("GET", "HEAD"):
        return method_not_allowed(asked.method, "GET, HEAD")
    name = asked.path.removeprefix("/console/")
    found: StaticFile | None = asset(name.removeprefix("assets/")) if name.startswith("assets/") else page()
    if found is None:
        return unknown_path(asked.path)
    headers = (("cache-control", "no-cache"), ("etag", found.etag))
    if asked.browser.get("if-none-match") == found.etag:
        return ConsoleAnswer(304, b"", found.content_type, headers)
    return ConsoleAnswer(200, found.body, found.content_type, headers)


# signing in and out


def _sign_in(state: ConsoleState, asked: Asked, now_s: float) -> Refusal | ConsoleAnswer:
    if asked.method != "POST":
        return method_not_allowed(asked.method, "POST")
    if refusal := _from_elsewhere(asked):
        return refusal
    console, source = state.console, source_of(state, asked)
    if pause_s := console.failures.pause_s(source, now_s):
        message = f"Too many wrong keys came from your address. Try again in {pause_s} s."
        return Refusal(status=429, message=message, code="too_many_failures", retry_after_s=pause_s)
    presented = _presented(asked)
    found = credential_of(state, presented, now_s) if presented else None
    if found is None:
        console.failures.note(source, now_s)
        message = "This key is wrong, revoked or expired. Use an admin's secret (gateway.admin) or a tenant's key."
        return Refusal(status=401, message=message, code="invalid_key")
    value = console.sessions.begin(*found, now_s)
    return _json({"signed_in": True}, (cookie_line(console.cookie, value, secure=is_encrypted(state, asked)),))


async def _sign_out(state: ConsoleState, asked: Asked, visitor: Visitor) -> ConsoleAnswer:
    """End the session. Where that cannot be written down, the browser forgets its cookie at least."""
    session, sign_in = visitor.session, state.live.policy.sign_in
    if session is not None:
        if session.kind == "oidc" and sign_in is not None:
            try:
                await state.sign_in.end(sign_in, session.id)
            except (OSError, ProviderSilentError) as error:
                log.warning("the tokens of a console's session cannot be forgotten: %s", error)
        try:
            state.console.sessions.end(session, state.clock.unix_s())
        except OSError as error:
            log.warning("the end of a console's session cannot be stored: %s", error)
    return _json({"signed_in": False}, (cookie_line(state.console.cookie, "", secure=is_encrypted(state, asked)),))


def _presented(asked: Asked) -> bytes:
    """Return the key in the body; empty where there is none. Nothing of it is ever quoted."""
    try:
        key = orjson.loads(asked.body)["key"] if len(asked.body) <= _MAX_SIGN_IN_BYTES else ""
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return b""
    return key.strip().encode("utf-8", "replace") if isinstance(key, str) else b""


def _session(state: ConsoleState, asked: Asked, visitor: Visitor | None) -> ConsoleAnswer:
    """Return the name and rights of the person, and the token that changing requests must carry."""
    config = state.config
    about = {"version": __version__, "fleet": config.fleet, "node": config.node, "keyless": state.live.is_keyless}
    about["provider"] = provider_of(state, asked)
    if visitor is None:
        return _json({"signed_in": False, **about})
    sessions = state.console.sessions
    return _json(
        {
            "signed_in": True,
            "name": visitor.name,
            "role": visitor.role,
            "has_session": visitor.session is not None,
            "csrf": sessions.csrf_of(visitor.session.id if visitor.session else ""),
            "chooses_tenant": visitor.may_steer and state.live.keys.asks,
            "may_chat": visitor.tenant is not None or not state.live.keys.asks or visitor.may_steer,
            "may_steer": visitor.may_steer,
            "may_kill": _may_kill(state, visitor),
            **about,
        }
    )


def _may_kill(state: ConsoleState, visitor: Visitor) -> bool:
    """Return whether the person may kill an engine of a demo fleet: an operator, or without keys its owner.

    A visitor without a session sits at the gateway's own machine (``visitor_of``).
    """
    return state.live.policy.demo and (visitor.may_steer or visitor.session is None)


def _forged(state: ConsoleState, asked: Asked, visitor: Visitor) -> Refusal | None:
    """Refuse a changing request that the console's own page did not send."""
    expected = state.console.sessions.csrf_of(visitor.session.id if visitor.session else "")
    if not state.console.sessions.is_equal(asked.browser.get("x-csrf-token", ""), expected):
        message = "The request lacks the page's token (x-csrf-token). Load the console again."
        return Refusal(status=403, message=message, code="csrf")
    return _from_elsewhere(asked)


def _from_elsewhere(asked: Asked) -> Refusal | None:
    """Refuse what a page of another origin sent."""
    site, origin = asked.browser.get("sec-fetch-site", "same-origin"), asked.noted.get(b"origin", b"")
    host = asked.noted.get(b"host", b"")
    if site in ("same-origin", "none") and (not origin or origin in (b"http://" + host, b"https://" + host)):
        return None
    message = "The request came from another site. A proxy in front of the gateway must leave Host as it is."
    return Refusal(status=403, message=message, code="other_origin")


# changes


async def _change(state: ConsoleState, asked: Asked, visitor: Visitor, name: str) -> Refusal | ConsoleAnswer | ChatAs:
    if name == "chat":
        wanted = parse_qs(asked.query[:500]).get("tenant", [""])[-1]
        tenant = playing_tenant(state, visitor, wanted)
        return tenant if isinstance(tenant, Refusal) else ChatAs(tenant)
    if name == "sign-out":
        return await _sign_out(state, asked, visitor)
    if not (visitor.may_steer or (name == KILL and _may_kill(state, visitor))):
        return _not_allowed(name, "operator")
    given = {key: values[-1] for key, values in parse_qs(asked.query[:2000]).items()}
    found = await carry_out(state, Order(name, given, asked.body, visitor.name))
    return found if isinstance(found, Refusal) else _json(found)


# documents


async def _live(state: ConsoleState, asked: Asked, visitor: Visitor, section: str) -> ConsoleAnswer:
    """Return ``{"tag", "data"}``, or ``{"tag", "same": true}`` where the page has this document already."""
    name = (section, visitor.only or "", str(bool(visitor.rank)))
    if section in _WATCHING:
        state.console.note_viewer(state.clock.monotonic_s())
    found: Section = await state.console.sections.get(
        name, lambda: _document(state, visitor, section), state.clock.monotonic_s(), _AGES_S.get(section, 1.0)
    )
    have = parse_qs(asked.query[:200]).get("have", [""])[-1]
    if have == found.tag:
        return ConsoleAnswer(200, b'{"tag":"%b","same":true}' % found.tag.encode())
    return ConsoleAnswer(200, b'{"tag":"%b","data":%b}' % (found.tag.encode(), found.body))


async def _document(state: ConsoleState, visitor: Visitor, section: str) -> dict[str, Any]:
    only = visitor.only
    match section:
        case "fleet":
            age_s = state.console.view_age_s(state.clock.monotonic_s())
            return {"view": state.console.view, "view_age_s": age_s, "gateway": await state.node.report()}
        case "adapters":
            return {"adapters": adapter_rows(state)}
        case "weights":
            return await stored_weights(state.config.daemon_socket, state.console.view)
        case "models":
            metrics, routes = await _metrics(state), await state.node.ask(RoutesQuery())
            return models_document(routes, metrics, state.table, state.live, visitor.tenant if only else None)
        case "requests":
            return await state.node.ask(RecentQuery(only, _RECENT))
        case "tenants":
            return tenants_document(state.live.policy, await _metrics(state), only)
        case "traffic":
            return traffic_document(await _metrics(state), only, state.clock.unix_s())
    usage = await state.node.ask(UsageQuery(_USAGE_DAYS, only))
    return usage_document(state.live.policy, usage, only, day_of(state.clock.unix_s()))


async def _metrics(state: ConsoleState) -> dict[str, Any]:
    """Return the counters of all processes of this node, read about every two seconds."""
    found: dict[str, Any] = await state.console.sections.raw(
        ("metrics",), lambda: state.node.ask(MetricsQuery()), state.clock.monotonic_s(), _AGES_S["traffic"]
    )
    return found


async def _timeline(state: ConsoleState, visitor: Visitor, request_id: str) -> Refusal | ConsoleAnswer:
    found = (await state.node.ask(TimelineQuery(request_id, visitor.only)))["request"]
    if found is None:
        message = f"No recent request has the id {request_id[:128]!r}. Each gateway keeps only its last requests."
        return Refusal(status=404, message=message, code="request_not_found")
    choice = found["routing"]["choice"]
    if visitor.only is not None and choice is not None:  # the load of replicas is of all tenants
        found = {**found, "routing": {**found["routing"], "choice": {**choice, "candidates": []}}}
    return _json(found)


async def _log(state: ConsoleState, asked: Asked, visitor: Visitor) -> Refusal | ConsoleAnswer:
    """Return the end of a replica's log. Engines may write prompts to it, so that only operators read it."""
    if not visitor.may_steer:
        return _not_allowed("logs", "operator")
    state.console.note_viewer(state.clock.monotonic_s())
    wanted = {key: values[-1] for key, values in parse_qs(asked.query[:2000]).items()}
    found = await read_log(state.config.daemon_socket, state.console.view, wanted)
    return found if isinstance(found, Refusal) else _json(found)


def _json(document: Any, headers: Sequence[tuple[str, str]] = ()) -> ConsoleAnswer:
    return ConsoleAnswer(200, orjson.dumps(document), headers=(("cache-control", "no-store"), *headers))


def _not_allowed(what: str, role: str) -> Refusal:
    message = f"Your key does not give access to {what}. Sign in with an admin key with the role {role!r}."
    return Refusal(status=403, message=message, code="not_allowed")
