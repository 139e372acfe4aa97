"""What all connections of one gateway process share: configuration, table, counters, budgets."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import Protocol

from longboat.gateway.access_log import AccessLog
from longboat.gateway.config import GatewayConfig
from longboat.gateway.table import LiveTable

__all__ = ("GatewayState", "SweptConnection")


class SweptConnection(Protocol):
    """A client connection, as the periodic sweep and the stop see it."""

    def sweep(self, now_s: float) -> None: ...
    def stop_when_idle(self) -> None: ...


class GatewayState:
    """Counters and budgets are of this process. ``held_bytes`` are request bodies in memory."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.limits = config.limits
        self.table = LiveTable(config.limits)
        self.access_log = AccessLog(config.access_log) if config.access_log else None
        self.connections: set[SweptConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        self.stopping = False
        self.in_flight = 0
        self.requests_total = 0
        self.held_bytes = 0
        self.created_s = int(time.time())
        self.started_s = time.monotonic()
        self.last_contact_s = self.started_s
        # Each worker starts its turns elsewhere, so that several do not pick the same replica in step.
        self.next_turn = itertools.count(config.worker_index or 0).__next__
        self._id_prefix = f"req-{os.urandom(6).hex()}-"
        self._next_id = itertools.count(1).__next__

    def new_request_id(self) -> str:
        return f"{self._id_prefix}{self._next_id():x}"

    def unready_reason(self) -> str:
        """Why a balancer should send nothing here; empty when ready."""
        if self.draining or self.stopping:
            return "draining"
        if not self.table.known:
            return "no endpoint table yet"
        return "" if self.table.has_ready() else "no ready endpoint of any model"

    def log(self, record: dict[str, object]) -> None:
        if self.access_log is not None:
            self.access_log.write(record)
