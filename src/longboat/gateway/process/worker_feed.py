"""The state that all workers of a gateway must have: policy, endpoint table and drain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.core.errors import ClusterError
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.gateway.config import GatewayConfig
from longboat.gateway.limits.policy_view import decode_policy, digest_of_policy
from longboat.gateway.process.worker import Worker
from longboat.gateway.process.worker_shares import WorkerShares
from longboat.gateway.upstreams.table import LiveTable

__all__ = ("WorkerFeed",)

_FEED_TIMEOUT_S = 2.0  # a worker that hangs must not hold up the others' tables


class WorkerFeed:
    """Brings every worker to the newest state. A worker that ends or hangs gets it later."""

    def __init__(self, config: GatewayConfig, workers: Sequence[Worker], clock: Clock = WALL) -> None:
        self._workers = workers
        # which tables are newer
        self.rules = LiveTable(config.limits, clock=clock)
        # each worker's part of the table
        self.shares = WorkerShares([worker.name for worker in workers])
        # the document of the newest policy; None while the configured one holds
        self._policy: bytes | None = None
        self.draining = False

    @property
    def policy(self) -> Policy | None:
        return None if self._policy is None else decode_policy(self._policy)

    @property
    def policy_digest(self) -> str:
        return "" if self._policy is None else digest_of_policy(self._policy)

    def offer_table(self, epoch: str, table: EndpointTable) -> bool:
        """Take the table for the next feeding, or leave it where it is older."""
        if not self.rules.offer(epoch, table):
            return False
        self.shares.set_table(self.rules.table or table)
        return True

    def set_policy(self, document: bytes) -> Policy:
        """Take the policy for the next feeding. Raise UserInputError where it cannot be read."""
        policy = decode_policy(document)
        self._policy = document
        return policy

    async def feed_all(self) -> None:
        await asyncio.gather(*(self.feed(worker) for worker in self._workers))

    async def feed(self, worker: Worker) -> None:
        """Send one worker everything: the policy before the table, so that no model is open to the wrong clients."""
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_FEED_TIMEOUT_S), worker.feeding:
                if self._policy is not None:
                    await worker.control.put_policy(self._policy)
                await self._put_table(worker)
                await (worker.control.drain() if self.draining else worker.control.undrain())

    async def feed_shares(self) -> None:
        """Divide the table again, and send their parts to the workers whose part changed."""
        self.shares.divide()
        await asyncio.gather(*(self._put_share(worker) for worker in self._workers))

    def is_behind(self, report: Mapping[str, Any]) -> bool:
        """Tell from a worker's report whether it missed something."""
        rules = self.rules
        if rules.epoch is not None and (report["epoch"], report["version"]) != (rules.epoch, rules.version):
            return True
        digest = self.policy_digest
        return bool(digest and report.get("policy_digest") != digest) or report["draining"] != self.draining

    async def _put_share(self, worker: Worker) -> None:
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_FEED_TIMEOUT_S), worker.feeding:
                if worker.fed != (self.rules.epoch, self.shares.table_of(worker.name)):
                    await self._put_table(worker)

    async def _put_table(self, worker: Worker) -> None:
        epoch, table = self.rules.epoch, self.shares.table_of(worker.name)
        if epoch is not None and table is not None:
            worker.fed = None  # until the worker replies, it may have either table
            await worker.control.put_table(epoch, table)
            worker.fed = (epoch, table)
