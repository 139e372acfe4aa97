"""The changes of the admin API, which need an operator: adapters, models, numbers of replicas, drains, kills."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import unquote

from longboat.gateway.admin.admin_call import AdminAnswer, AdminCall, bad_query, whole_number
from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.adapter_changes import MAX_WAIT_S, add_adapter, remove_adapter
from longboat.gateway.orders.count_changes import VERBS, change_count
from longboat.gateway.orders.engine_kills import kill_engine

__all__ = ("Change", "change_of")

Document = dict[str, Any] | Refusal


class Change(NamedTuple):
    """What a request would change."""

    what: str  # in words
    method: str  # the one that changes it
    order: Callable[..., Awaitable[Document]]
    named: tuple[str, ...] = ()  # the names in the path

    async def carry_out(self, call: AdminCall) -> Refusal | AdminAnswer:
        """Carry the change out. The caller has checked method and role."""
        found = await self.order(call, *self.named)
        return found if isinstance(found, Refusal) else AdminAnswer(200, found)


def change_of(method: str, path: str) -> Change | None:
    """Return what a request would change; None where it only reads. path: behind ``/admin/v1/``"""
    if path == "adapters" and method != "POST":
        return None
    for pattern, change in _CHANGES:
        if found := pattern.fullmatch(path):
            return change._replace(named=tuple(map(unquote, found.groups())))
    return None


async def _add_adapter(call: AdminCall) -> Document:
    wait_s = _wait_s(call)
    return wait_s if isinstance(wait_s, Refusal) else await add_adapter(_daemon(call), call.body, wait_s)


async def _remove_adapter(call: AdminCall, name: str) -> Document:
    wait_s = _wait_s(call)
    return wait_s if isinstance(wait_s, Refusal) else await remove_adapter(_daemon(call), name, wait_s)


async def _start_model(call: AdminCall) -> Document:
    return await call.state.model_orders.start(call.body, _by(call))


async def _end_model(call: AdminCall, model: str) -> Document:
    return await call.state.model_orders.end(model)


async def _count(call: AdminCall, model: str, verb: str) -> Document:
    return await change_count(_daemon(call), model, verb, call.body, _by(call))


async def _kill(call: AdminCall) -> Document:
    return await kill_engine(call.state, call.body)


async def _drain(call: AdminCall) -> Document:
    await call.node.drain()
    return {"draining": True}


async def _undrain(call: AdminCall) -> Document:
    await call.node.undrain()
    return {"draining": False}


def _by(call: AdminCall) -> str:
    """Return whom the fleet names as the operator."""
    return f"{call.caller.name}, admin API"


def _daemon(call: AdminCall) -> str | None:
    return call.state.config.daemon_socket


def _wait_s(call: AdminCall) -> int | Refusal:
    wait_s = whole_number(call.query.get("timeout_s", "60"), MAX_WAIT_S)
    return bad_query("timeout_s", MAX_WAIT_S) if wait_s is None else wait_s


_NAME = "([^/]{1,400})"
_CHANGES = tuple(
    (re.compile(path), change)
    for path, change in {
        "drain": Change("drain", "POST", _drain),
        "undrain": Change("undrain", "POST", _undrain),
        "adapters": Change("changes of adapters", "POST", _add_adapter),
        f"adapters/{_NAME}": Change("changes of adapters", "DELETE", _remove_adapter),
        "models": Change("starts of models", "POST", _start_model),
        f"models/{_NAME}": Change("ends of models", "DELETE", _end_model),
        f"models/{_NAME}/({'|'.join(VERBS)})": Change("numbers of replicas", "POST", _count),
        "kill-engine": Change("ends of engines", "POST", _kill),
    }.items()
)
