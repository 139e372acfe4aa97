"""Orders to the fleet from the admin API and the console: the node's daemon passes them to the controller."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec

from longboat.gateway.http.responses import Refusal

__all__ = ("ask_daemon", "order_fleet", "read_body")

T = TypeVar("T")

_GRACE_S = 60.0
"""Time beyond the caller's own in which the change is checked and passed on."""
_MAX_REPLY_BYTES = 1 << 20
_MAX_WHOLE_BYTES = 16 << 20


def read_body(body: bytes, wanted: type[T], *, bad: str, send: str) -> T | Refusal:
    """Read the body of an order. bad: the error code where it cannot be read; send: what works, as an imperative"""
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refusal(status=400, message=f"The body cannot be used: {error}. {send}", code=bad)


async def order_fleet(
    daemon: str | None, order: dict[str, Any], *, bad: str, alone: str, shown_by: str
) -> dict[str, Any] | Refusal:
    """Return what the controller answers to an order.

    daemon: the path of the daemon's socket; order: with ``timeout_s`` (see ``cluster/ray/fleet_orders``)
    bad: the error code of an order that the fleet cannot carry out; alone: why a gateway by itself cannot either
    shown_by: what shows whether an order without a confirmation was carried out
    """
    if daemon is None:
        return Refusal(
            status=409, message=f"This gateway belongs to no fleet that Longboat runs: {alone}.", code="no_fleet"
        )
    codes = {400: bad, 409: "another_change", 504: "change_not_confirmed"}
    try:
        async with asyncio.timeout(order["timeout_s"] + _GRACE_S):
            reply = await ask_daemon(daemon, "change_fleet", order)
    except (TimeoutError, ConnectionResetError, BrokenPipeError, ValueError, msgspec.DecodeError) as error:
        reply = {"status": 504, "error": f"This node's daemon did not confirm the change ({type(error).__name__})"}
    except OSError as error:  # nothing was sent
        message = f"This node's daemon does not answer ({type(error).__name__}). Try again in a moment."
        return Refusal(status=503, message=message, code="daemon_away", retry_after_s=1)
    found: dict[str, Any] = reply.get("value") or {"status": 503, **reply}
    if "error" not in found:
        return found
    status, hint = int(found["status"]), str(found.get("hint") or "")
    hint = f"it may still be carried out: {shown_by} shows it" if status == 504 else hint
    message = f"{found['error']}.{f' Hint: {hint}.' if hint else ''}"
    return Refusal(status=status, message=message, code=codes.get(status, "change_failed"))


async def ask_daemon(daemon: str, what: str, *args: Any) -> dict[str, Any]:
    """Return the daemon's reply to a question: ``{"value"}``, or ``{"error", "hint"}``.

    Raises OSError, ValueError and msgspec.DecodeError where the daemon does not answer, or says too much.
    """
    reader, writer = await asyncio.open_unix_connection(daemon, limit=_MAX_REPLY_BYTES)
    try:
        writer.write(msgspec.json.encode({"ask": what, "args": args}) + b"\n")
        await writer.drain()
        pieces, size = [], 0
        while piece := await reader.read(_MAX_REPLY_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_WHOLE_BYTES:
                raise ValueError(f"the daemon's reply is longer than {_MAX_WHOLE_BYTES} bytes")
        reply: dict[str, Any] = msgspec.json.decode(b"".join(pieces))
        return reply
    finally:
        writer.close()
