"""What a question to a node's gateway is: it reads one process, and joins the replies of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from longboat.core.clock import Clock
from longboat.gateway.config import GatewayConfig
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.records.access_log import AccessLog
from longboat.gateway.records.metrics import Metrics
from longboat.gateway.records.recent import RecentRequests
from longboat.gateway.records.trace_recorder import TraceRecorder
from longboat.gateway.records.usage_store import UsageStore
from longboat.gateway.upstreams.response_affinity import ResponseAffinity
from longboat.gateway.upstreams.table import LiveTable

if TYPE_CHECKING:
    from longboat.gateway.limits.redis_counters import RedisCounters
    from longboat.gateway.records.tracing import Tracer

__all__ = ("ObservedState", "Query", "Reply")

Reply = dict[str, Any]


class _Accounting(Protocol):
    access_log: AccessLog | None
    tracer: Tracer | None
    remote_counters: RedisCounters | None

    def flush(self) -> None: ...


class ObservedState(Protocol):
    """What one process keeps about its requests."""

    clock: Clock
    config: GatewayConfig
    metrics: Metrics
    recent: RecentRequests
    recorder: TraceRecorder
    usage: UsageStore
    owners: ResponseAffinity
    table: LiveTable
    connections: set[Any]
    held_bytes: int

    @property
    def live(self) -> LivePolicy: ...
    @property
    def accounting(self) -> _Accounting: ...


class Query(msgspec.Struct, frozen=True, tag_field="query", forbid_unknown_fields=True):
    """One question. Replies are JSON documents; the process that queries several others adds ``missing``."""

    # whether ``local`` takes long, and runs in a thread
    is_slow: ClassVar[bool] = False

    def local(self, state: ObservedState) -> Reply:
        """Reply from the state of one process, whose accounts are settled."""
        raise NotImplementedError

    def joined(self, replies: Sequence[Reply]) -> Reply:
        """Join the replies of several processes to one."""
        raise NotImplementedError
