"""Answers one request of a client's connection: decides, then sends it to an engine, asks others first, or refuses."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from longboat.gateway.api.apis import style_of
from longboat.gateway.calls.head import KnownHead
from longboat.gateway.calls.model_request import Call
from longboat.gateway.exchange.exchange import Exchange
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.cors import answer_to_origin
from longboat.gateway.requests.admit import Deferred, admit
from longboat.gateway.requests.client_link import ClientLink
from longboat.gateway.requests.deferred import account_remotely, admin_bytes, with_owner
from longboat.gateway.requests.pending_reply import PendingReply

__all__ = ("answer_request", "report_defect")

T = TypeVar("T")


def answer_request(link: ClientLink, request: Request, known: KnownHead | None) -> None:
    """Decide what becomes of a request, and begin it. known: the request's head, where it came before"""
    state = link.state
    if request.url.startswith(b"/v1/"):
        state.requests_total += 1
    if request.refusal is None and b"origin" in request.noted:
        preflight = answer_to_origin(state.live, request, close=link.closes_after)
        if preflight is not None:
            link.release(request)
            link.write(preflight)
            link.answered(keep=True)
            return
    try:
        decision = admit(state, request, known, close=link.closes_after)
    except Exception as error:  # a defect: nothing is written yet, so the client can get an error response
        report_defect(link, error)
        decision = error_responses.internal()
    _carry_out(link, request, decision)


def _carry_out(link: ClientLink, request: Request, decision: Call | Deferred | Refusal | bytes) -> None:
    if isinstance(decision, Call):
        _begin(link, decision)
    elif isinstance(decision, Deferred):
        _ask_others(link, request, decision)
    else:
        _give(link, request, decision)


def _begin(link: ClientLink, call: Call) -> None:
    """Open the call's account, and send it to an engine."""
    state = link.state
    if state.accounting.remote_counters is None:
        refusal = state.accounting.open(call)
        if refusal is None or not state.accounting.counters.lacks_lease:
            _opened(link, call, refusal)
            return
    opened = functools.partial(_opened_remotely, link, call)
    _wait_for(link, account_remotely(state, call), opened, call.request, call)


def _opened(link: ClientLink, call: Call, refusal: Refusal | None) -> None:
    link.exchange = None
    if refusal is not None:
        _give(link, call.request, refusal, tenant=call.tenant.name, model=call.pool)
        return
    exchange = Exchange(link.state, link, call)
    link.exchange = exchange
    exchange.start()


def _opened_remotely(link: ClientLink, call: Call, refusal: Refusal | None) -> None:
    _opened(link, call, refusal)
    link.answer_next()


def _ask_others(link: ClientLink, request: Request, deferred: Deferred) -> None:
    state = link.state
    if deferred.call is not None:
        owned = with_owner(state, deferred.call, deferred.response_id)
        _wait_for(link, owned, functools.partial(_asked, link, request), request)
    else:
        peer = link.transport.get_extra_info("peername")
        answer = admin_bytes(state, request, peer=peer[0] if peer else "", close=link.closes_after)
        _wait_for(link, answer, functools.partial(_asked, link, request), request)


def _wait_for(
    link: ClientLink,
    work: Coroutine[Any, Any, T],
    done: Callable[[T], None],
    request: Request,
    call: Call | None = None,
) -> None:
    """Wait for this work before the answer. call: the work opens the account of this one."""
    link.exchange = PendingReply(
        work,
        functools.partial(_carry_on, link, done),
        failed=functools.partial(_reply_failed, link, request),
        left=functools.partial(_left, link, request, call),
    )


def _carry_on(link: ClientLink, done: Callable[[T], None], result: T) -> None:
    try:
        done(result)
    except Exception as error:  # no caller would end the connection
        report_defect(link, error)
        link.cut()


def _left(link: ClientLink, request: Request, call: Call | None) -> None:
    link.release(request)
    if call is not None:
        link.state.accounting.close(call, time.monotonic(), status=499, outcome="client_left")


def _reply_failed(link: ClientLink, request: Request) -> None:
    link.exchange = None
    _give(link, request, error_responses.internal())
    link.answer_next()


def _asked(link: ClientLink, request: Request, decision: Call | Refusal | bytes) -> None:
    link.exchange = None
    _carry_out(link, request, decision)
    link.answer_next()


def _give(
    link: ClientLink, request: Request, answer: Refusal | bytes, *, tenant: str = "", model: str | None = None
) -> None:
    """Give an answer that no engine makes."""
    link.release(request)
    if isinstance(answer, Refusal):
        link.closes_after = link.closes_after or answer.close
        bare = request.method == "HEAD"
        link.write(
            answer.encode(
                request_id=request.request_id,
                close=link.closes_after,
                without_body=bare,
                style=style_of(request),
                extra=request.extra_lines,
            )
        )
        link.state.accounting.refused(request, answer, tenant=tenant, model=model)
    else:
        link.write(answer)
    link.answered(keep=True)


def report_defect(link: ClientLink, error: Exception) -> None:
    """Tell the event loop's handler of exceptions."""
    report = {"message": "the gateway failed on a request", "exception": error, "protocol": link}
    asyncio.get_running_loop().call_exception_handler(report)
