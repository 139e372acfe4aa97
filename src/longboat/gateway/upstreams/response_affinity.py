"""Remembers which replica stores which response of the Responses API, and to which tenant it belongs."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ("Owner", "ResponseAffinity")

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_\-]{1,120})"')
_LOOK_BYTES = 64 * 1024
_MAX_OWNERS = 50_000


class Owner(NamedTuple):
    """The tenant to which a stored response belongs, and the replica that stores it."""

    tenant: str  # only this tenant may ask for the response
    model: str
    key: str  # of the replica, see ``Upstream.key``


class ResponseAffinity:
    """The newest responses and their replicas. A request for a response that was forgotten is refused."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str, Owner] = {}

    def learn(self, body: bytes, *, tenant: str, model: str, key: str) -> None:
        """Remember the response whose id stands in ``body``. One of another tenant stays that tenant's.

        body: the beginning of a response: a JSON document, or an event that holds the id
        """
        found = _ID.search(body[:_LOOK_BYTES])
        if found is None:
            return
        by_id, name = self._by_id, found.group(1).decode()
        if name in by_id and by_id[name].tenant != tenant:
            return
        by_id[name] = Owner(tenant, model, key)
        if len(by_id) > _MAX_OWNERS:
            del by_id[next(iter(by_id))]

    def of(self, response_id: str, tenant: str) -> Owner | None:
        """Return the owner of a response; None where it is unknown here, or belongs to another tenant."""
        owner = self._by_id.get(response_id)
        return owner if owner is not None and owner.tenant == tenant else None

    def find(self, response_id: str) -> Owner | None:
        """Return the owner for another worker of this node, which checks the tenant itself."""
        return self._by_id.get(response_id)
