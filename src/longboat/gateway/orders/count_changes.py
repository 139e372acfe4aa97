"""Changing the number of a model's replicas through the admin API or the console."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.fleet_orders import order_fleet, read_body

__all__ = ("VERBS", "change_count")

VERBS = ("scale", "pause", "resume")
_TIMEOUT_S = 10
_ALONE = "its replicas come with its endpoint table"


class _Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that scales a model."""

    # ``auto``: the fleet file decides
    replicas: Annotated[int, Meta(ge=1, le=100_000)] | Literal["auto"]


async def change_count(daemon: str | None, model: str, verb: str, body: bytes, by: str) -> dict[str, Any] | Refusal:
    """Scale, pause or resume a model; return the document of the response as soon as the fleet has the order.

    by: whom ``longboat status`` names as the operator
    """
    replicas: int | None = None
    if verb == "scale":
        send = 'Send {"replicas": N}, or "auto": the fleet file decides.'
        wanted = read_body(body, _Wanted, bad="bad_count", send=send)
        if isinstance(wanted, Refusal):
            return wanted
        replicas = wanted.replicas if isinstance(wanted.replicas, int) else None
    order = {"model": model, "verb": verb, "replicas": replicas, "by": by}
    return await order_fleet(
        daemon, {"count": order, "timeout_s": _TIMEOUT_S}, bad="bad_count", alone=_ALONE, shown_by="longboat status"
    )
