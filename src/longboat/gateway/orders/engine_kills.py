"""Killing the engine of a response in a demo fleet, through the admin API or the console."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from longboat.gateway.config import GatewayConfig
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.orders.fleet_orders import order_fleet, read_body

__all__ = ("kill_engine",)

_TIMEOUT_S = 10
_ALONE = "it starts and ends no engines"


class _Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that kills an engine."""

    # as ``X-Longboat-Replica`` of a response names it
    replica: Annotated[str, Meta(min_length=1, max_length=256)]


class _Live(Protocol):
    """The parts of the gateway that say whether an engine may be killed."""

    @property
    def config(self) -> GatewayConfig: ...
    @property
    def live(self) -> LivePolicy: ...


async def kill_engine(state: _Live, body: bytes) -> dict[str, Any] | Refusal:
    """Kill the processes of a replica's first rank; return the document of the response.

    The caller has checked the role. The controller checks once more that the fleet is a demo fleet.
    """
    if not state.live.policy.demo:
        message = "Engines are killed only in a demo fleet: gateway.demo in the fleet file."
        return Refusal(status=403, message=message, code="no_demo")
    wanted = read_body(body, _Wanted, bad="bad_kill", send='Send {"replica": ID}.')
    if isinstance(wanted, Refusal):
        return wanted
    order = {"kill": wanted.replica, "timeout_s": _TIMEOUT_S}
    return await order_fleet(
        state.config.daemon_socket, order, bad="bad_kill", alone=_ALONE, shown_by="longboat status"
    )
