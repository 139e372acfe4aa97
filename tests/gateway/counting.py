"""A reference for counters: what thousands of random requests must have left in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.counters import LocalCounters

START_S = 1_700_006_400.0  # the middle of a UTC day


@dataclass
class Running:
    tenant: TenantPolicy
    tokens: int
    reserved_s: float
    by: int
    open: set[str] = field(default_factory=lambda: {"settle", "release"})


@dataclass
class Tally:
    """All that was let in, settled and released."""

    admitted: int = 0
    denied: int = 0
    tokens: int = 0


class RandomTraffic:
    """Requests of several tenants through the counters of several processes, that end in every way and order."""

    def __init__(self, seed: int, tenants: Sequence[TenantPolicy], counters: Sequence[LocalCounters]) -> None:
        self.random = random.Random(seed)
        self.tenants = tenants
        self.counters = counters
        self.now_s = START_S
        self.running: list[Running] = []
        self.tallies = {tenant.name: Tally() for tenant in tenants}

    def step(self) -> None:
        self.now_s += self.random.choice((0.0, 0.001, 0.05, 3.0))
        if self.running and self.random.random() < 0.6:
            self._go_on(self.random.choice(self.running))
        else:
            self._arrive()

    def finish(self) -> None:
        while self.running:
            self._go_on(self.running[-1])

    def num_running(self, tenant: TenantPolicy) -> int:
        return sum(r.tenant is tenant and "release" in r.open for r in self.running)

    def _arrive(self) -> None:
        tenant, tokens = self.random.choice(self.tenants), self.random.randrange(2000)
        by = int(self.random.random() * len(self.counters))  # the same draws, however many there are
        tally = self.tallies[tenant.name]
        if self.counters[by].reserve(tenant, tokens=tokens, now_s=self.now_s) is not None:
            tally.denied += 1
            return
        tally.admitted += 1
        tally.tokens += tokens
        self.running.append(Running(tenant, tokens, self.now_s, by))

    def _go_on(self, request: Running) -> None:
        """Answered, aborted (part of it used) or failed (nothing used); settled before it is released, or after."""
        what = self.random.choice(sorted(request.open))
        request.open.discard(what)
        counters = self.counters[request.by]
        if what == "release":
            counters.release(request.tenant)
        else:
            used = self.random.choice((0, self.random.randrange(4000), request.tokens))
            counters.settle(
                request.tenant,
                reserved_tokens=request.tokens,
                used_tokens=used,
                reserved_s=request.reserved_s,
                now_s=self.now_s,
            )
            self.tallies[request.tenant.name].tokens += used - request.tokens
        if not request.open:
            self.running.remove(request)
