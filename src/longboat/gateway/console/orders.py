"""Changes and questions that an operator sends from the console; each is what a command or the admin API does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import orjson

from longboat.gateway.console.asked import ConsoleState
from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.adapter_changes import add_adapter, remove_adapter
from longboat.gateway.orders.count_changes import VERBS, change_count
from longboat.gateway.orders.engine_kills import kill_engine
from longboat.gateway.orders.key_changes import make_key, revoke_key

__all__ = ("KILL", "ORDERS", "Order", "carry_out")

KILL = "kill-engine"
_ADAPTER_WAIT_S = 60


class Order(NamedTuple):
    """An operator's request."""

    name: str
    query: Mapping[str, str]
    body: bytes
    by: str  # the operator's name


Answer = dict[str, Any] | Refusal


async def carry_out(state: ConsoleState, order: Order) -> Answer:
    """Do what ``order.name`` of ``ORDERS`` says. The caller has checked the role and where the request came from."""
    return await ORDERS[order.name](state, order)


async def _count(state: ConsoleState, order: Order) -> Answer:
    daemon, model = state.config.daemon_socket, order.query.get("model", "")
    return await change_count(daemon, model, order.name, order.body, f"{order.by}, console")


async def _drain(state: ConsoleState, order: Order) -> Answer:
    await (state.node.drain() if order.name == "drain" else state.node.undrain())
    return {"draining": order.name == "drain"}


async def _add_adapter(state: ConsoleState, order: Order) -> Answer:
    return await add_adapter(state.config.daemon_socket, order.body, _ADAPTER_WAIT_S)


async def _remove_adapter(state: ConsoleState, order: Order) -> Answer:
    return await remove_adapter(state.config.daemon_socket, order.query.get("name", ""), _ADAPTER_WAIT_S)


async def _make_key(state: ConsoleState, order: Order) -> Answer:
    return await make_key(state.config.daemon_socket, order.body, state.clock.unix_s())


async def _revoke_key(state: ConsoleState, order: Order) -> Answer:
    return await revoke_key(state.config.daemon_socket, order.body)


async def _kill_engine(state: ConsoleState, order: Order) -> Answer:
    return await kill_engine(state, order.body)


async def _plan(state: ConsoleState, order: Order) -> Answer:
    try:
        question = orjson.loads(order.body)
    except orjson.JSONDecodeError:
        question = None
    if not isinstance(question, dict):
        message = "Send the fields of the form as one JSON object."
        return Refusal(status=400, message=message, code="bad_plan")
    return await state.console.plans.answer(question, state.clock.monotonic_s())


async def _start_model(state: ConsoleState, order: Order) -> Answer:
    return await state.model_orders.start(order.body, f"{order.by}, console")


async def _end_model(state: ConsoleState, order: Order) -> Answer:
    return await state.model_orders.end(order.query.get("model", ""))


ORDERS: Mapping[str, Callable[[ConsoleState, Order], Awaitable[Answer]]] = {
    **dict.fromkeys(VERBS, _count),
    "drain": _drain,
    "undrain": _drain,
    "add-adapter": _add_adapter,
    "remove-adapter": _remove_adapter,
    "make-key": _make_key,
    "revoke-key": _revoke_key,
    "plan": _plan,
    "start-model": _start_model,
    "end-model": _end_model,
    KILL: _kill_engine,
}
"""Name of an order in the address → what carries it out."""
