"""Which replica keeps which response of the Responses API, and whose it is."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ("Owner", "ResponseAffinity")

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_\-]{1,120})"')
_LOOK_BYTES = 64 * 1024
_MAX_OWNERS = 50_000


class Owner(NamedTuple):
    """tenant: the only one who may ask for it; key: of the replica, see ``Upstream.key``."""

    tenant: str
    model: str
    key: str


class ResponseAffinity:
    """Remembers the newest; the oldest is forgotten, and a request for it is then refused."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str, Owner] = {}

    def learn(self, body: bytes, *, tenant: str, model: str, key: str) -> None:
        """body: the beginning of an answer, a JSON document or an event that holds the response's id."""
        found = _ID.search(body[:_LOOK_BYTES])
        if found is None:
            return
        by_id = self._by_id
        by_id[found.group(1).decode()] = Owner(tenant, model, key)
        if len(by_id) > _MAX_OWNERS:
            del by_id[next(iter(by_id))]

    def of(self, response_id: str, tenant: str) -> Owner | None:
        """None where it is unknown here, or another tenant's."""
        owner = self._by_id.get(response_id)
        return owner if owner is not None and owner.tenant == tenant else None

    def find(self, response_id: str) -> Owner | None:
        """Whoever's it is; for other workers of this node, which check the tenant."""
        return self._by_id.get(response_id)
