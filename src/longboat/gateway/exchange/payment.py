"""What a request reserves at an external model before it is sent there, and whether there is room for overflow."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from longboat.gateway.exchange import life
from longboat.gateway.exchange.life import Action, Event, Phase
from longboat.gateway.external.bill import Bill

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.calls.state import GatewayState
    from longboat.gateway.external.outside import Outside
    from longboat.gateway.http.responses import Refusal

__all__ = ("Payer", "Payments", "close_bill")


class Payment:
    """The reservation of one sending at one external model. What can be decided at once is decided here."""

    __slots__ = ("_bill", "_call", "_outside", "_state", "is_made", "may_need_others", "refusal")

    def __init__(self, state: GatewayState, call: Call, outside: Outside | None = None) -> None:
        """outside: None: the model that is being tried"""
        self._state = state
        self._call = call
        outside = outside or call.outside
        assert outside is not None
        self._outside = outside
        self.refusal: Refusal | None = None  # why it cannot be made, as far as this process knows
        self.may_need_others = False  # other processes, or Redis, must be asked
        self.is_made = not outside.is_counted
        self._bill: Bill | None = None
        if not self.is_made:
            self._bill = _bill_of(state, call, outside)
            self._try(self._bill)

    def _try(self, bill: Bill) -> None:
        accounting = self._state.accounting
        if bill.is_paid or not self._outside.budgets:
            self.take_effect()
            return
        counters = accounting.counters
        if accounting.remote_counters is not None:
            self.may_need_others = True
            return
        denied = bill.reserve(counters)
        if denied is None:
            self.take_effect()
            return
        self.refusal = self._outside.over_budget(*denied)
        self.may_need_others = counters.lacks_lease

    def take_effect(self) -> None:
        """Open the bill, and close that of the model that is left."""
        self.is_made = True
        close_bill(self._state, self._call, keep_for=self._outside.model.name)
        self._call.bill = self._bill

    async def ask_others(self) -> Refusal | None:
        """Make the reservation with the others' agreement; return why it cannot be made.

        The payment then takes effect, or is given back.
        """
        assert self._bill is not None
        denied = await self._bill.reserve_remotely()
        return None if denied is None else self._outside.over_budget(*denied)

    def give_back(self) -> None:
        """Return what was reserved: the request goes elsewhere."""
        bill, self._bill = self._bill, None
        if bill is not None:
            bill.give_back()


class Payer(Protocol):
    """The exchange whose request is paid for."""

    @property
    def phase(self) -> Phase: ...
    def step(self, event: Event) -> Action: ...
    def guard(self, work: Callable[[], object]) -> None: ...
    def run(self, work: Coroutine[Any, Any, None]) -> None: ...
    def forget_task(self) -> None: ...
    def visit_engine(self, action: life.Send) -> None: ...


class Payments:
    """The way of one request to external models: what it may cost is reserved before it is sent there."""

    __slots__ = ("_call", "_payer", "_state")

    def __init__(self, state: GatewayState, call: Call, payer: Payer) -> None:
        self._state = state
        self._call = call
        self._payer = payer

    def pay_for(self, action: life.Send) -> bool:
        """Return whether the cost is reserved; else the request is sent, or refused, once that is known."""
        payment = Payment(self._state, self._call)
        if payment.is_made:
            return True
        if payment.may_need_others:
            self._payer.run(self._send_when_paid(payment, action))
        elif payment.refusal is not None:
            self._payer.step(life.NoRoom(payment.refusal))
        return False

    async def _send_when_paid(self, payment: Payment, action: life.Send) -> None:
        refusal = await payment.ask_others()
        payer = self._payer
        payer.forget_task()
        if refusal is not None:
            payer.guard(functools.partial(payer.step, life.NoRoom(refusal)))
        else:
            payment.take_effect()
            payer.guard(functools.partial(payer.visit_engine, action))

    def overflow(self) -> None:
        """Move the request where the model for overflow has room and budget; what it may cost is reserved first."""
        to, payer = self._call.overflow, self._payer
        if to is None:
            return
        room = _room_for(self._state, self._call, self._call.pools[to.at_pool])
        if isinstance(room, Payment):
            payer.run(self._move_when_paid(room))
        elif room:
            payer.step(life.MOVE)
        elif payer.phase is Phase.NEW:
            payer.step(life.STAY)

    async def _move_when_paid(self, payment: Payment) -> None:
        refusal = await payment.ask_others()
        payer = self._payer
        payer.forget_task()
        if payer.phase not in (Phase.NEW, Phase.QUEUED, Phase.PARKED):  # it got what it waited for meanwhile
            payment.give_back()
        elif refusal is None:
            payment.take_effect()
            payer.guard(functools.partial(payer.step, life.MOVE))
        elif payer.phase is Phase.NEW:
            payer.guard(functools.partial(payer.step, life.STAY))


def _room_for(state: GatewayState, call: Call, model: str) -> bool | Payment:
    """Return whether a model has room for a request that overflows; a payment that others must agree to first.

    Where the model is external and has room, what the request may cost is reserved already.
    """
    pool = state.table.pool(model)
    if pool is None:
        return False
    if pool.outside is None:
        return pool.slots > pool.in_use + pool.num_waiting
    if pool.outside.refusal(call.path, pool.upstreams, time.monotonic(), is_last=False) is not None:
        return False
    payment = Payment(state, call, pool.outside)
    if payment.is_made or not payment.may_need_others:
        return payment.is_made
    return payment


def close_bill(state: GatewayState, call: Call, *, keep_for: str = "") -> None:
    """Close the bill of the model that is left. keep_for: the next model, whose bill stays open"""
    bill = call.bill
    if bill is not None and bill.outside.model.name != keep_for:
        call.bill = None
        bill.settle(state.usage, call.tenant.name, bill.cost(0, 0))


def _bill_of(state: GatewayState, call: Call, outside: Outside) -> Bill:
    bill = call.bill
    if bill is None or bill.outside.model.name != outside.model.name:
        accounting, facts = state.accounting, call.facts
        prompt = facts.num_prompt_tokens_estimate if facts is not None else 0
        completion = max(0, call.cost_tokens - prompt)
        counters = accounting.remote_counters or accounting.counters
        bill = Bill(outside, counters, prompt_tokens=prompt, completion_tokens=completion)
    return bill
