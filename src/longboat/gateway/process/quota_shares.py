"""The workers' leases of limits, divided by need once a second, and when a worker lacks room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.core.policy import Policy
from longboat.gateway.admin.control_client import GatewayControl
from longboat.gateway.external.budgets import limits_by_name, spent_on_new_limits, spent_today
from longboat.gateway.limits.lease_document import decode_claims, encode_shares
from longboat.gateway.process.rounds import Rounds
from longboat.gateway.records.usage_store import UsageStore
from longboat.routing.capacity.quota import limits_of
from longboat.routing.capacity.quota_leases import QuotaLedger, Share

__all__ = ("QuotaShares",)

_PAUSE_S = 0.005  # a flood of requests beyond a limit must not keep the workers busy with divisions


class QuotaShares:
    """Collects the workers' counts, and sends them their leases. A worker that hangs keeps its lease."""

    def __init__(self, workers: Mapping[str, GatewayControl], clock: Clock = WALL) -> None:
        """workers: the controls by name, each with a timeout of about a second"""
        self._workers = workers
        self._clock = clock
        self._ledger = QuotaLedger(list(workers))
        self._number = 0
        self._policy = Policy()
        self._usage_file: Path | None = None
        self.divide = Rounds(self._divide, pause_s=_PAUSE_S)

    def set_policy(self, policy: Policy) -> None:
        """Take the limits of all tenants, for the next division. What was spent today counts against new ones."""
        if self._usage_file is not None:
            now_s, store = self._clock.unix_s(), UsageStore(self._usage_file)
            self._ledger.restore_today(spent_on_new_limits(store, self._policy, policy, now_s), now_s)
            store.close()
        self._policy = policy
        tenants = (*policy.tenants, *limits_by_name(policy))
        self._ledger.set_limits({tenant.name: limits_of(tenant, policy.num_gateways) for tenant in tenants})

    def restore_today(self, usage_file: Path) -> None:
        """Count what was used today before a restart. Raise UserInputError where the file cannot be used."""
        self._usage_file, store = usage_file, UsageStore(usage_file)
        store.open()
        self._ledger.restore_today(spent_today(store, self._clock.unix_s()), self._clock.unix_s())
        store.close()

    def ended(self, worker: str) -> None:
        """Take back the leases of a worker that died."""
        self._ledger.ended(worker, self._clock.unix_s())

    async def _divide(self) -> None:
        if self._ledger.is_needed:
            self._ledger.begin()
            await self._send({name: {} for name in self._workers})
            lowered = self._ledger.lowered(self._clock.unix_s())
            await self._send({name: shares for name, shares in lowered.items() if shares})
            raised = self._ledger.raised(self._clock.unix_s())
            await self._send({name: shares for name, shares in raised.items() if shares})

    async def _send(self, shares: Mapping[str, Mapping[str, Share]]) -> None:
        """Send workers their shares, and take their counts and needs."""
        self._number += 1
        messages = {name: encode_shares(self._number, given) for name, given in shares.items()}
        calls = (self._workers[name].leases(message) for name, message in messages.items())
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for (name, given), answer in zip(shares.items(), answers, strict=True):
            if isinstance(answer, BaseException):
                self._ledger.doubtful(name, given)
            else:
                self._ledger.agreed(name, given)
                self._ledger.heard(name, decode_claims(answer))
