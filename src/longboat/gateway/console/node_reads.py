"""What the console reads on nodes through this node's daemon: the end of a replica's log, and the stored weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.fleet_orders import ask_daemon

__all__ = ("read_log", "stored_weights")

_NODE_S = 8.0
_ALL_S = 10.0
"""Time for all nodes together; a node that was not asked in it counts as silent."""

_AT_ONCE = 8
_LINES = 200
_MAX_CHARS = 64 * 1024
_MAX_NODES = 256

View = Mapping[str, Any]
"""The fleet as the controller sees it (``cluster.protocol.console_view``)."""


async def read_log(daemon: str | None, view: View | None, wanted: Mapping[str, str]) -> dict[str, Any] | Refusal:
    """Return a model's replicas, and the end of one rank's log, or what was added since ``offset``.

    wanted: ``model``, and ``replica``, ``rank`` and ``offset`` where they are known
    """
    if daemon is None:
        return Refusal(status=409, message="This gateway belongs to no fleet that Longboat runs.", code="no_fleet")
    if view is None:
        message = "The controller has not sent its view of the fleet yet. Wait for a moment."
        return Refusal(status=503, message=message, code="no_view", retry_after_s=2)
    rows = [row for row in view["replicas"] if row["model"] == wanted.get("model")]
    replicas = [{"replica": row["replica"], "phase": row["phase"], "ranks": _ranks(row)} for row in rows]
    asked = wanted.get("replica", "")
    chosen = next((row for row in rows if asked in ("", row["replica"]) and row["ranks"]), None)
    empty = {"replicas": replicas, "replica": "", "rank": 0, "offset": 0, "text": "", "cut": False}
    if chosen is None:
        return empty
    rank = next((r for r in chosen["ranks"] if str(r["rank"]) == wanted.get("rank", "")), chosen["ranks"][0])
    offset = wanted.get("offset", "")
    start = int(offset) if offset.isascii() and offset.isdecimal() and len(offset) < 16 else None
    args = (wanted.get("model"), chosen["replica"], rank["rank"], start, _LINES)
    found = await _ask_node(daemon, rank["node"], "read_log", *args)
    if isinstance(found, str):
        return Refusal(status=503, message=f"The log cannot be read: {found}.", code="log_away", retry_after_s=2)
    end, text = int(found[0]), str(found[1])
    told = {"replica": chosen["replica"], "rank": rank["rank"], "offset": end}
    return empty | told | {"text": text[-_MAX_CHARS:], "cut": len(text) > _MAX_CHARS}


async def stored_weights(daemon: str | None, view: View | None) -> dict[str, Any]:
    """Return the weights on each node that the controller knows, and the nodes that did not answer."""
    if daemon is None or view is None:
        return {"nodes": [], "known": False, "silent": []}
    nodes = [node for node in view["nodes"] if node["alive"]][:_MAX_NODES]
    room = asyncio.Semaphore(_AT_ONCE)

    end_s = asyncio.get_running_loop().time() + _ALL_S

    async def ask(node: Mapping[str, Any]) -> Any:
        try:
            async with asyncio.timeout_at(end_s), room:
                return await _ask_node(daemon, node["id"], "list_weights")
        except TimeoutError:
            return "the time for all nodes is over"

    found = await asyncio.gather(*(ask(node) for node in nodes))
    rows = [
        {"node": node["hostname"] or node["id"][:8], "weights": weights}
        for node, weights in zip(nodes, found, strict=True)
        if not isinstance(weights, str)
    ]
    silent = [n["hostname"] or n["id"][:8] for n, w in zip(nodes, found, strict=True) if isinstance(w, str)]
    return {"nodes": rows, "known": True, "silent": silent}


def _ranks(row: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    return [{"rank": rank["rank"], "hostname": rank["hostname"]} for rank in row["ranks"]]


async def _ask_node(daemon: str, node_id: str, method: str, *args: Any) -> Any:
    """Return a node's answer; a text says why there is none."""
    try:
        async with asyncio.timeout(_NODE_S):
            reply = await ask_daemon(daemon, "node", node_id, method, *args)
    except (OSError, ValueError, TimeoutError, msgspec.DecodeError) as error:
        return f"this node's daemon does not answer ({type(error).__name__})"
    return reply["value"] if "value" in reply else str(reply.get("error"))
