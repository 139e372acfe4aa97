"""What all connections of one gateway process share: configuration, table, policy, counters, budgets."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.gateway.calls.accounting import Accounting
from longboat.gateway.calls.head import KnownHeads
from longboat.gateway.calls.trip import Trips
from longboat.gateway.calls.wallets import Wallets
from longboat.gateway.config import GatewayConfig
from longboat.gateway.console.console import Console
from longboat.gateway.external.budgets import spent_on_new_limits
from longboat.gateway.limits.counters import LocalCounters
from longboat.gateway.limits.policy_view import LivePolicy, decode_policy, digest_of_policy
from longboat.gateway.orders.model_orders import ModelOrders
from longboat.gateway.prefixes.feed import FeedState
from longboat.gateway.records.access_log import AccessLog
from longboat.gateway.records.metrics import Metrics
from longboat.gateway.records.recent import RecentRequests
from longboat.gateway.records.trace_recorder import TraceRecorder
from longboat.gateway.records.usage_store import UsageStore
from longboat.gateway.sign_in.desk import SignInDesk
from longboat.gateway.upstreams.crash_blame import CrashBlame, until_answers
from longboat.gateway.upstreams.response_affinity import ResponseAffinity
from longboat.gateway.upstreams.table import LiveTable
from longboat.routing.prefixes.overflow import OverflowIndex
from longboat.routing.prefixes.shared_index import SharedIndex
from longboat.telemetry import logger

if TYPE_CHECKING:
    from longboat.gateway.admin.node_view import Node
    from longboat.gateway.limits.keys import KeyRing
    from longboat.gateway.upstreams.upstream import Upstream

log = logger("gateway")

MAX_SLOTS = 512
"""Replicas that the index of prefixes can tell apart."""

__all__ = ("GatewayState", "SweptConnection")


class SweptConnection(Protocol):
    """A client connection, as the periodic sweep and the stop see it."""

    def sweep(self, now_s: float) -> None: ...
    def stop_when_idle(self) -> None: ...
    def cut(self) -> None: ...


class GatewayState:  # size: what one process shares; every field belongs to one part of the gateway
    """What the connections of one process share. Counters and budgets are of this process."""

    def __init__(self, config: GatewayConfig, clock: Clock = WALL) -> None:
        self.clock = clock
        self.config = config
        self.limits = config.limits
        self.max_body_bytes, self.max_held_bytes = config.limits.max_body_bytes, config.limits.max_held_bytes
        self.live = LivePolicy(config.policy or Policy(), ())
        index = _index_of(config)
        self.trips = Trips(index)
        policy = self.live.policy
        self.table = LiveTable(config.limits, policy.queue, policy.routing, index=index, clock=clock)
        self.trips.table = self.table
        self.table.set_external(self.live.policy.external)
        self.table.set_adapters(self.live.policy.adapters)
        self.live = self.live.with_models(self.table.names)
        self.metrics = Metrics(max_label_values=config.max_label_values, process=_process_name(config))
        self.recent = RecentRequests(config.recent_requests)
        self.recorder = TraceRecorder()
        self.owners = ResponseAffinity()
        self.deaths = CrashBlame(clock)
        self.heads = KnownHeads()
        self.usage = UsageStore(_in_folder(config, "usage.sqlite"))
        self.accounting = Accounting(
            LocalCounters(), self.metrics, self.recent, self.usage, _access_log(config), self.recorder
        )
        self.accounting.trips = self.trips
        self.accounting.wallets = Wallets(self.live.policy)
        self.console = Console(config)
        self.model_orders = ModelOrders(config.run_folder)
        self.sign_in = SignInDesk(config, clock)
        self.node: Node  # answers for the node; set by the maker of this state
        self.connections: set[SweptConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        self.stopping = False
        self.requests_total = 0
        self.held_bytes = 0  # of request bodies in memory
        self.created_s = int(clock.unix_s())
        self.started_s = clock.monotonic_s()
        self.last_contact_s = self.started_s
        # Each worker starts its turns elsewhere, so that several do not pick the same replica in step.
        self.next_turn = itertools.count(config.worker_index or 0).__next__
        self._id_prefix = f"req-{os.urandom(6).hex()}-"
        self._num_ids = 0

    @property
    def feeds(self) -> dict[str, FeedState]:
        """What is known of the engines that tell what they hold, by the replica's key."""
        return self.trips.feeds

    @property
    def in_flight(self) -> int:
        """Requests whose account is open."""
        return self.accounting.in_flight

    def new_request_id(self) -> str:
        self._num_ids += 1
        return self._id_prefix + str(self._num_ids)

    def watch_until_found(self, upstream: Upstream) -> None:
        """Ask a silent engine now and then whether it answers, where it has no heartbeats."""
        if not upstream.beats and not upstream.lost:
            task = asyncio.get_running_loop().create_task(until_answers(upstream))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def offer_table(self, epoch: str, table: EndpointTable) -> bool:
        """Take the table, or leave it where it is older. :raises UserInputError: an address cannot be used."""
        models = self.table.models
        if not self.table.offer(epoch, table):
            return False
        self.trips.keep({upstream.key for upstream in self.table.upstreams()})
        if self.table.models != models:
            self.live = self.live.with_models(self.table.names)
            self.heads.forget_plans()
        return True

    def offer_policy(self, document: bytes) -> bool:
        """Take a policy. :raises UserInputError: it cannot be read."""
        policy = decode_policy(document)
        if self.config.worker_index is None:  # the parent counts what its workers spent
            self._count_spent_today(policy)
        self.table.set_external(policy.external)
        self.table.set_adapters(policy.adapters)
        self.live = LivePolicy(policy, self.table.names, digest_of_policy(document))
        self.table.set_rules(policy.queue, policy.routing)
        self.accounting.wallets = Wallets(policy)
        self.accounting.counters.num_gateways = policy.num_gateways  # also while a Redis is away
        self.heads.forget_plans()
        return True

    def _count_spent_today(self, policy: Policy) -> None:
        self.accounting.flush()
        now_s = self.clock.unix_s()
        spent = spent_on_new_limits(self.usage, self.live.policy, policy, now_s)
        self.accounting.counters.restore_today(spent, now_s=now_s)

    @property
    def policy(self) -> Policy:
        return self.live.policy

    @property
    def keys(self) -> KeyRing:
        return self.live.keys

    def unready_reason(self) -> str:
        """Return why a load balancer should send nothing here; empty when ready."""
        if self.draining or self.stopping:
            return "draining"
        if not self.table.known:
            return "no endpoint table yet"
        return "" if self.table.has_ready() else "no ready endpoint of any model"


def _index_of(config: GatewayConfig) -> OverflowIndex:
    """Return the index of prefixes: in memory of this process alone where the shared file finds no room on the disk."""
    try:
        table = SharedIndex(config.prefix_index_bytes, MAX_SLOTS, config.prefix_index_path)
    except OSError as error:
        log.warning("this process keeps an index of prefixes of its own: %s", error)
        table = SharedIndex(config.prefix_index_bytes, MAX_SLOTS)
    return OverflowIndex(table, _left_out)


def _left_out(key: str) -> None:
    log.warning(
        "the index of prefixes can tell %d replicas apart, and they are all taken: "
        "requests go to %s by its load alone, whatever prompts it holds",
        MAX_SLOTS,
        key,
    )


def _access_log(config: GatewayConfig) -> AccessLog | None:
    if not config.access_log:
        return None
    return AccessLog(config.access_log, max_bytes=config.access_log_max_bytes, keep=config.access_log_keep)


def _process_name(config: GatewayConfig) -> str:
    return "gateway" if config.worker_index is None else f"worker-{config.worker_index}"


def _in_folder(config: GatewayConfig, name: str) -> Path | None:
    return Path(config.state_folder) / name if config.state_folder else None
