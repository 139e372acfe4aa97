"""What gateways know of their requests: all of the fleet's, through their nodes, or one by its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from longboat.cli.shared.cluster_at_hand import connect_quickly, report_of
from longboat.cli.shared.gateway_client import gateway_client
from longboat.cli.shared.node_replies import replies_of
from longboat.core.errors import ClusterError, UserInputError
from longboat.gateway.admin.node_query import NodeQuery, RecentQuery, TimelineQuery, UsageQuery
from longboat.gateway.admin.routing_queries import RoutesQuery, TraceQuery

if TYPE_CHECKING:
    from longboat.cli.shared.quick_session import QuickSession
    from longboat.cluster.ray.session import Session

__all__ = ("Asked", "asked_gateways", "base_of")

_TIMEOUT_S = 10.0
_UNKNOWN = ("model_not_found", "request_not_found", "tenant_not_found")
"""Codes of replies 404 that a gateway gives."""
_KEY_HINT = "put an admin key (gateway.admin in the fleet file) into the environment variable LONGBOAT_API_KEY"
Reply = dict[str, Any]


class Asked(Protocol):
    """Gateways that can be asked."""

    def ask(self, query: NodeQuery) -> list[Reply]:
        """Return one reply for each gateway that answers. Raises ClusterError where none does."""


@contextmanager
def asked_gateways(url: str | None) -> Iterator[Asked]:
    """Give the gateway at ``url``, or those of the fleet where there is none."""
    if url is not None:
        base = base_of(url)
        with gateway_client([base], _TIMEOUT_S) as client:
            yield _Addressed(client, base)
    else:
        with connect_quickly() as session:
            yield _OfFleet(session)


class _OfFleet:
    """The gateways of the running fleet."""

    def __init__(self, session: Session | QuickSession) -> None:
        self._session = session

    def ask(self, query: NodeQuery) -> list[Reply]:
        gateways = report_of(self._session).gateways
        return replies_of(self._session, gateways, msgspec.json.encode(query))[0]


class _Addressed:
    """One gateway, through its admin API."""

    def __init__(self, client: httpx.Client, base: str) -> None:
        self._client = client
        self._base = base

    def ask(self, query: NodeQuery) -> list[Reply]:
        path, values, part = _place_of(query)
        try:
            response = self._client.get(f"{self._base}/admin/v1/{path}", params=values)
        except httpx.HTTPError as error:
            what = f"the gateway at {self._base} does not reply: {error}"
            raise ClusterError(what, hint="check the address after --url") from None
        if response.status_code == httpx.codes.NOT_FOUND and _error_of(response).get("code") in _UNKNOWN:
            return []
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise UserInputError(f"the gateway refuses: {_message(response)}", hint=_KEY_HINT)
        reply = _object_of(response)
        if response.status_code == httpx.codes.NOT_FOUND or (response.is_success and part not in reply):
            what = f"{self._base} is not the address of a Longboat gateway: it knows no /admin/v1/{path}"
            raise ClusterError(what, hint="check the address after --url")
        if not response.is_success:
            raise ClusterError(f"the gateway replied {response.status_code}: {_message(response)}", hint="try again")
        return [{"request": reply} if isinstance(query, TimelineQuery) else reply]


def _place_of(query: NodeQuery) -> tuple[str, dict[str, str], str]:
    """Return the path of the admin API and its parameters for a question, and a part that each reply has."""
    if isinstance(query, TimelineQuery):
        # Clients choose ids. As a whole segment, "." and ".." would be steps in the path.
        return f"requests/{quote(query.request_id, safe='').replace('.', '%2E')}", {}, "received"
    if isinstance(query, RoutesQuery):
        return "routes", {"model": query.model}, "models"
    if isinstance(query, TraceQuery):
        return "trace", {"reader": query.reader}, "rows"
    if isinstance(query, RecentQuery):
        values = {"limit": str(query.limit)} | ({"tenant": query.tenant} if query.tenant else {})
        return "requests", values, "requests"
    if isinstance(query, UsageQuery):
        return "usage", {"days": str(query.days)} | ({"until": query.until} if query.until else {}), "days"
    raise TypeError(f"{type(query).__name__} has no path in the admin API")


def base_of(url: str) -> str:
    """Return a gateway's address without what clients append. Raise UserInputError where it is none."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(base)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port, or of an address in brackets
        is_one = False
    if not is_one or any(map(str.isspace, base)):
        raise UserInputError(f"--url {url!r} is not an address", hint="write it like http://127.0.0.1:8000")
    return base


def _message(response: httpx.Response) -> str:
    return str(_error_of(response).get("message") or response.text[:300])


def _error_of(response: httpx.Response) -> Reply:
    error = _object_of(response).get("error")
    return error if isinstance(error, dict) else {}


def _object_of(response: httpx.Response) -> Reply:
    """Return the response's JSON object; an empty one where it has none."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
