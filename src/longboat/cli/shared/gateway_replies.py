"""What gateways know of their requests: all of the fleet's, through their nodes, or one by its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

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
        path, values = _place_of(query)
        try:
            response = self._client.get(f"{self._base}/admin/v1/{path}", params=values)
        except httpx.HTTPError as error:
            what = f"the gateway at {self._base} does not reply: {error}"
            raise ClusterError(what, hint="check the address after --url") from None
        if response.status_code == httpx.codes.NOT_FOUND:
            return []
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise UserInputError(f"the gateway refuses: {_message(response)}", hint=_KEY_HINT)
        if response.status_code != httpx.codes.OK:
            raise ClusterError(f"the gateway replied {response.status_code}: {_message(response)}", hint="try again")
        reply: Reply = response.json()
        return [{"request": reply} if isinstance(query, TimelineQuery) else reply]


def _place_of(query: NodeQuery) -> tuple[str, dict[str, str]]:
    """Return the path of the admin API and its parameters for a question."""
    if isinstance(query, TimelineQuery):
        # Clients choose ids. As a whole segment, "." and ".." would be steps in the path.
        return f"requests/{quote(query.request_id, safe='').replace('.', '%2E')}", {}
    if isinstance(query, RoutesQuery):
        return "routes", {"model": query.model}
    if isinstance(query, TraceQuery):
        return "trace", {"reader": query.reader}
    if isinstance(query, RecentQuery):
        return "requests", {"limit": str(query.limit)} | ({"tenant": query.tenant} if query.tenant else {})
    if isinstance(query, UsageQuery):
        return "usage", {"days": str(query.days)} | ({"until": query.until} if query.until else {})
    raise TypeError(f"{type(query).__name__} has no path in the admin API")


def base_of(url: str) -> str:
    """Return a gateway's address without what clients append. Raise UserInputError where it is none."""
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise UserInputError(f"--url {url!r} is not an address", hint="write it like http://127.0.0.1:8000")
    return base


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:300]
