"""Answers that other workers, or shared counters, must be asked for first."""

from __future__ import annotations

from longboat.gateway.admin.admin_api import answer
from longboat.gateway.admin.node_query import OwnerQuery
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal, bytes_answer, json_answer

__all__ = ("account_remotely", "admin_bytes", "with_owner")


async def account_remotely(state: GatewayState, call: Call) -> Refusal | None:
    """Open the call's account where other processes, or Redis, must be asked for room first."""
    return await state.accounting.open_remotely(call)


async def with_owner(state: GatewayState, call: Call, response_id: str) -> Call | Refusal:
    """Return the call, pinned to the replica that keeps this response, if any worker of this node knows it."""
    found = (await state.node.ask(OwnerQuery(response_id))).get("owner")
    if not found or found["tenant"] != call.tenant.name:
        return error_responses.unknown_response(response_id)
    call.pin(model=found["model"], key=found["key"])
    return call


async def admin_bytes(state: GatewayState, request: Request, *, peer: str, close: bool) -> bytes | Refusal:
    """Return the admin API's answer."""
    path, _, query = request.url.partition(b"?")
    found = await answer(state, request.method, path.decode("latin-1"), query.decode("latin-1"), request.noted, peer)
    if isinstance(found, Refusal):
        return found
    if isinstance(found.body, bytes):
        return bytes_answer(
            found.status,
            found.body,
            found.content_type,
            request_id=request.request_id,
            close=close,
            without_body=request.method == "HEAD",
        )
    return json_answer(
        found.status,
        found.body,
        request_id=request.request_id,
        close=close,
        without_body=request.method == "HEAD",
    )
