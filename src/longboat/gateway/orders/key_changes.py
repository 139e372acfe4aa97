"""Making and revoking tenants' keys through the console: the fleet gets a digest, and the key is shown once."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.keys import MAX_KEY_DAYS, new_key
from longboat.gateway.orders.fleet_orders import order_fleet, read_body

__all__ = ("make_key", "revoke_key")

_TIMEOUT_S = 25
_DAY_S = 86_400.0
_ALONE = "its keys are in its key file, which longboat keys create --file changes"


class _Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that makes a key."""

    tenant: Annotated[str, Meta(min_length=1, max_length=256)]
    note: Annotated[str, Meta(max_length=200)] = ""
    # None: never
    expires_days: Annotated[float, Meta(gt=0, le=MAX_KEY_DAYS)] | None = None


class _Gone(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that revokes a key."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]


async def make_key(daemon: str | None, body: bytes, now_s: float) -> dict[str, Any] | Refusal:
    """Make a key; return it with its id once the fleet has its digest. now_s: Unix seconds"""
    send = 'Send {"tenant": NAME}, and "note" and "expires_days" where they are needed.'
    wanted = read_body(body, _Wanted, bad="bad_key", send=send)
    if isinstance(wanted, Refusal):
        return wanted
    expires_s = None if wanted.expires_days is None else now_s + wanted.expires_days * _DAY_S
    note = " ".join(wanted.note.split())
    key, record = new_key(wanted.tenant, now_s=now_s, expires_s=expires_s, note=note)
    found = await _order(daemon, {"add_key": msgspec.to_builtins(record)})
    return found if isinstance(found, Refusal) else {**found["key"], "key": key, "tenant": wanted.tenant}


async def revoke_key(daemon: str | None, body: bytes) -> dict[str, Any] | Refusal:
    """Revoke a key by its id; return how many gateways refuse it already."""
    wanted = read_body(body, _Gone, bad="bad_key", send='Send {"id": ID}.')
    if isinstance(wanted, Refusal):
        return wanted
    found = await _order(daemon, {"remove_key": wanted.id})
    return found if isinstance(found, Refusal) else {**found["key"]}


async def _order(daemon: str | None, order: dict[str, Any]) -> dict[str, Any] | Refusal:
    order = {**order, "timeout_s": _TIMEOUT_S}
    return await order_fleet(daemon, order, bad="bad_key", alone=_ALONE, shown_by="longboat keys list")
