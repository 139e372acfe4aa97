"""Answers that other workers, or shared counters, must be asked for first."""

from __future__ import annotations

from longboat.gateway.admin.admin_api import answer
from longboat.gateway.admin.node_query import OwnerQuery
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.console.console_api import Asked, ChatAs, ConsoleAnswer, answer_console, is_console_path
from longboat.gateway.console.static_files import SECURITY_HEADERS
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal, bytes_answer, json_answer, status_line
from longboat.gateway.requests.admit import chat_as

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


async def admin_bytes(state: GatewayState, request: Request, *, peer: str, close: bool) -> Call | bytes | Refusal:
    """Return the answer of the admin API or of the console; a chat of its playground goes to an engine."""
    path, _, query = request.url.partition(b"?")
    if is_console_path(path.decode("latin-1")):
        return await _console(state, request, path, query, peer=peer, close=close)
    asked = path.decode("latin-1"), query.decode("latin-1")
    found = await answer(state, request.method, *asked, request.noted, peer, request.body())
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


_BROWSER = frozenset(("x-csrf-token", "sec-fetch-site", "if-none-match"))


async def _console(
    state: GatewayState, request: Request, path: bytes, query: bytes, *, peer: str, close: bool
) -> Call | bytes | Refusal:
    browser = request.headers_named(_BROWSER)
    asked = Asked(
        request.method, path.decode("latin-1"), query.decode("latin-1"), request.noted, browser, request.body(), peer
    )
    found = await answer_console(state, asked)
    if isinstance(found, ChatAs):
        return chat_as(state, request, found.tenant)
    if isinstance(found, Refusal):
        request.extra_lines = _security_lines()
        return found
    return _console_bytes(found, request, close=close)


def _console_bytes(answer: ConsoleAnswer, request: Request, *, close: bool) -> bytes:
    lines = [
        status_line(answer.status),
        b"content-type: %b\r\n" % answer.content_type.encode(),
        b"" if answer.status == 304 else b"content-length: %d\r\n" % len(answer.body),
        b"x-request-id: %b\r\n" % request.request_id.encode(),
        *(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in answer.headers),
        _security_lines(),
        b"connection: close\r\n\r\n" if close else b"\r\n",
    ]
    return b"".join(lines if request.method == "HEAD" else [*lines, answer.body])


def _security_lines() -> bytes:
    return b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in SECURITY_HEADERS)
