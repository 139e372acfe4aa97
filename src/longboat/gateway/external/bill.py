"""What one request may cost at an external model: reserved before it is sent, and put right when it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from longboat.gateway.external.budgets import Amounts, cost_of
from longboat.gateway.limits.counters import LocalCounters

if TYPE_CHECKING:
    from longboat.core.policy import TenantPolicy
    from longboat.gateway.external.outside import Outside
    from longboat.gateway.limits.redis_counters import RedisCounters
    from longboat.gateway.records.usage_store import UsageStore
    from longboat.routing.capacity.quota import Denied

__all__ = ("Bill",)

_REQUESTS = "requests_per_day"


class _Held:
    """A part of a daily limit that is reserved."""

    __slots__ = ("amount", "kind", "reserved_s", "tenant")

    def __init__(self, kind: str, tenant: TenantPolicy, amount: int, reserved_s: float) -> None:
        self.kind = kind
        self.tenant = tenant
        self.amount = amount
        self.reserved_s = reserved_s


class Bill:
    """The account of one request at one external model. Each time that it is sent counts as a request there."""

    __slots__ = ("_counters", "_held", "_num_reserved", "_since_s", "estimate", "num_sent", "outside")

    def __init__(
        self, outside: Outside, counters: LocalCounters | RedisCounters, *, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """prompt_tokens, completion_tokens: as estimated"""
        self.outside = outside
        self.num_sent = 0
        self._counters = counters
        nanos = cost_of(outside.model.price, prompt_tokens, completion_tokens)
        self.estimate = Amounts(1, prompt_tokens + completion_tokens, nanos)
        self._held: list[_Held] = []
        self._num_reserved = 0
        self._since_s = time.time()

    @property
    def is_paid(self) -> bool:
        """Whether it may be sent once more without asking."""
        return self._num_reserved > self.num_sent

    def reserve(self, counters: LocalCounters) -> tuple[str, Denied] | None:
        """Reserve one sending; return the limit that forbids it. ``counters.lacks_lease``: other processes may help."""
        held: list[_Held] = []
        for kind, tenant, amount in self._needed():
            now_s = time.time()
            denied = counters.reserve(tenant, tokens=amount, now_s=now_s)
            if denied is not None:
                self._give_back(held)
                return kind, denied
            held.append(_Held(kind, tenant, amount, now_s))
        self._hold(held)
        return None

    async def reserve_remotely(self) -> tuple[str, Denied] | None:
        """Reserve one sending where other processes, or Redis, must be asked."""
        remote = self._counters
        reserve = remote.reserve_after_division if isinstance(remote, LocalCounters) else remote.reserve
        held: list[_Held] = []
        try:
            for kind, tenant, amount in self._needed():
                now_s = time.time()
                denied = await reserve(tenant, tokens=amount, now_s=now_s)
                if denied is not None:
                    self._give_back(held)
                    return kind, denied
                held.append(_Held(kind, tenant, amount, now_s))
        except BaseException:
            self._give_back(held)
            raise
        self._hold(held)
        return None

    def settle(self, usage: UsageStore, tenant: str, used: Amounts | None) -> None:
        """Close the account. used: tokens and money; None where the estimate must stand"""
        used = used or self.estimate
        if not self.num_sent:
            used = Amounts()
        requests = self.num_sent
        for held in self._held:
            if held.kind == _REQUESTS:
                self._settle(held, 1 if requests > 0 else 0)
                requests -= 1
            else:
                self._settle(held, used.of(held.kind))
        self._held = []
        if self.num_sent:
            usage.add(
                tenant,
                self.outside.model.name,
                now_s=self._since_s,
                requests=0,
                prompt_tokens=0,
                completion_tokens=0,
                sent=self.num_sent,
                cost_nanos=used.nanos,
                currency="" if self.outside.model.price is None else self.outside.model.price.currency,
            )

    def give_back(self) -> None:
        """Return everything that is reserved: nothing was sent."""
        held, self._held = self._held, []
        self._give_back(held)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> Amounts:
        """Return what these tokens are of each limit."""
        nanos = cost_of(self.outside.model.price, prompt_tokens, completion_tokens)
        return Amounts(self.num_sent, prompt_tokens + completion_tokens, nanos)

    def _needed(self) -> Iterator[tuple[str, TenantPolicy, int]]:
        """Yield what one more sending takes of each limit; tokens and money are reserved once."""
        for kind, tenant in self.outside.budgets:
            if kind == _REQUESTS or not self._num_reserved:
                yield kind, tenant, self.estimate.of(kind)

    def _hold(self, held: list[_Held]) -> None:
        self._held += held
        self._num_reserved += 1

    def _give_back(self, held: list[_Held]) -> None:
        for entry in held:
            self._settle(entry, 0)

    def _settle(self, held: _Held, used: int) -> None:
        self._counters.settle(
            held.tenant,
            reserved_tokens=held.amount,
            used_tokens=used,
            reserved_s=held.reserved_s,
            now_s=time.time(),
        )
        self._counters.release(held.tenant)
