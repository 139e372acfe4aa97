"""Targets for Prometheus, in the JSON of its HTTP service discovery: the fleet's gateways, or its engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.fleet_orders import ask_daemon

__all__ = ("KINDS", "engine_targets", "fleet_gateways", "gateway_targets", "own_target")

KINDS = ("gateways", "engines")
"""What ``?of=`` may name. Each is a job of its own: the key of a gateway must not travel to engines."""

_DAEMON_S = 5.0
_SHOWN_CHARS = 100


class _Engine(Protocol):
    """A replica as the endpoint table has it."""

    @property
    def url(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def replica(self) -> str: ...


def gateway_targets(gateways: Iterable[Mapping[str, Any]], fleet: str) -> list[dict[str, Any]]:
    """Return one group for each gateway that runs. gateways: with ``url``, ``hostname`` and ``node_id``"""
    return [
        _group(str(gateway["url"]), {"fleet": fleet, "hostname": str(gateway["hostname"])})
        for gateway in sorted(gateways, key=lambda gateway: str(gateway["url"]))
        if gateway["url"]
    ]


def engine_targets(engines: Iterable[_Engine], fleet: str) -> list[dict[str, Any]]:
    """Return one group for each engine of the endpoint table. External addresses are not in that table."""
    return [
        _group(engine.url, {"fleet": fleet, "model": engine.model, "replica": engine.replica})
        for engine in sorted(engines, key=lambda engine: (engine.model, engine.replica, engine.url))
    ]


def own_target(host: str, *, tls: bool, fleet: str) -> list[dict[str, Any]] | Refusal:
    """Return the gateway itself, at the address by which Prometheus reached it. host: of the header ``Host``"""
    try:
        return [_group(f"{'https' if tls else 'http'}://{host}", {"fleet": fleet})]
    except ValueError:
        message = f"The header Host must be HOST or HOST:PORT, and is {host[:_SHOWN_CHARS]!r}."
        return Refusal(status=400, message=message, code="bad_query", param="Host")


async def fleet_gateways(daemon: str) -> list[dict[str, Any]] | Refusal:
    """Return the gateways of all nodes, from the controller. daemon: path of the socket of this node's daemon

    Prometheus keeps the targets that it has while the answer is an error.
    """
    try:
        async with asyncio.timeout(_DAEMON_S):
            reply = await ask_daemon(daemon, "gateways")
        gateways: list[dict[str, Any]] = reply["value"]
    except (OSError, TimeoutError, ValueError, KeyError) as error:
        message = f"The fleet's list of gateways cannot be read now ({type(error).__name__}). Try again in a moment."
        return Refusal(status=503, message=message, code="fleet_away", retry_after_s=1)
    return gateways


def _group(url: str, labels: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(url)
    address = parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"
    named = {name: value for name, value in labels.items() if value}
    return {"targets": [address], "labels": {"__scheme__": parts.scheme, "__metrics_path__": "/metrics", **named}}
