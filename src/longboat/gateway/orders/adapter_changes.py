"""Adding and removing adapters through the admin API: the node's daemon has the controller carry a change out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.fleet_orders import order_fleet, read_body

__all__ = ("MAX_WAIT_S", "add_adapter", "remove_adapter")

MAX_WAIT_S = 120
_ALONE = "its adapters come with its endpoint table"

_Name = Annotated[str, Meta(max_length=256)]


class _Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that adds an adapter; the controller checks it as the command does."""

    model: Annotated[_Name, Meta(min_length=1)]
    # the adapter's folder, as the nodes see it
    source: Annotated[str, Meta(min_length=1, max_length=4096)]
    # empty: the folder's name
    name: _Name = ""
    # None: every tenant that may use the model
    tenants: Annotated[list[_Name], Meta(min_length=1, max_length=1000)] | None = None


async def add_adapter(daemon: str | None, body: bytes, wait_s: int) -> dict[str, Any] | Refusal:
    """Add an adapter, or change its contents; return the document of the response."""
    send = 'Send {"model": NAME, "source": FOLDER}, and "name" and "tenants" where they are needed.'
    wanted = read_body(body, _Wanted, bad="bad_adapter", send=send)
    if isinstance(wanted, Refusal):
        return wanted
    return await _order(daemon, {"add": msgspec.to_builtins(wanted), "timeout_s": wait_s})


async def remove_adapter(daemon: str | None, name: str, wait_s: int) -> dict[str, Any] | Refusal:
    """Take an adapter out of use; return the document of the response."""
    found = await _order(daemon, {"remove": name, "timeout_s": wait_s})
    return found if isinstance(found, Refusal) else {"removed": name}


async def _order(daemon: str | None, order: dict[str, Any]) -> dict[str, Any] | Refusal:
    return await order_fleet(daemon, order, bad="bad_adapter", alone=_ALONE, shown_by="GET /admin/v1/adapters")
