"""The endpoint table of one gateway process: which pushes it accepts, and the live endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.core.external import ExternalModel
from longboat.core.policy import AdapterRights, QueuePolicy, RoutingRules
from longboat.core.states import Endpoint, EndpointTable
from longboat.gateway.config import GatewayLimits
from longboat.gateway.upstreams.external_endpoints import ExternalEndpoints
from longboat.gateway.upstreams.pool import Pool, Wakes
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.capacity.slots import Demand
from longboat.routing.prefixes.index import DictIndex, PrefixIndex

__all__ = ("LiveTable",)

MOVED = "it is taken out of use"
_NO_NAMES: Final[frozenset[str]] = frozenset()


class LiveTable:  # size: endpoints come from tables and from policies, and all of the gateway asks for them
    """The newest table. Endpoints that stay keep their connections and their counts."""

    def __init__(
        self,
        limits: GatewayLimits,
        queue: QueuePolicy | None = None,
        routing: RoutingRules | None = None,
        *,
        index: PrefixIndex | None = None,
        clock: Clock = WALL,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._queue = queue or QueuePolicy()
        self._routing = routing or RoutingRules()
        self._index = index if index is not None else DictIndex()  # of the prefixes that replicas hold
        self.wakes = Wakes()
        self.epoch: str | None = None
        self.version = 0
        self.num_changes = 0  # of the set of endpoints, or of an endpoint
        self.table: EndpointTable | None = None
        self.models: tuple[str, ...] = ()
        self._adapted: dict[str, str] = {}  # adapter → the model that it adapts
        self._own: tuple[Upstream, ...] = ()  # the endpoints of the table
        self._external = ExternalEndpoints(limits)
        self._pools: dict[str, Pool] = {}
        self._engine_capacities: dict[str, int | None] = {}

    @property
    def relays(self) -> Mapping[str, str]:
        """The relays of heartbeats: host:port → key."""
        return self.table.relays if self.table is not None else {}

    @property
    def known(self) -> bool:
        """Whether any table came yet."""
        return self.epoch is not None

    def offer(self, epoch: str, table: EndpointTable) -> bool:
        """Take the table, or leave it where it is older than the present one: same epoch and a lower version.

        :raises UserInputError: an endpoint's address cannot be used; nothing is changed
        """
        if epoch == self.epoch and table.version < self.version:
            return False
        table = table.over(self.table)
        old = {(u.model, u.key, u.api_key): u for u in self._own}
        made = [self._live(endpoint, old) for endpoint in table.endpoints]
        for upstream, endpoint in zip(made, table.endpoints, strict=True):
            if upstream.endpoint is endpoint:
                continue  # nothing of it changed
            upstream.learn(endpoint)
            upstream.capacity = self._capacity(endpoint.capacity)
            if not upstream.capacity:
                upstream.reported_slots = None  # without a capacity, a report means nothing
        for upstream in old.values():
            upstream.retire()
        self._engine_capacities = {e.key: e.engine_capacity for e in table.endpoints}
        self.epoch, self.version, self.table = epoch, table.version, table
        self._own = tuple(made)
        self._fill_pools()
        for upstream, endpoint in zip(made, table.endpoints, strict=True):
            if endpoint.moving:
                upstream.move_streams(MOVED)
        return True

    def set_external(self, models: Sequence[ExternalModel]) -> None:
        """Take the external models. Those that stay keep their connections and their counts."""
        if self._external.take(models):
            self._fill_pools()

    def read_keys_again(self, now_s: float) -> None:
        """Take other keys of external models, where their files changed."""
        if self._external.refresh(now_s):
            self._fill_pools()

    def set_adapters(self, adapters: Iterable[AdapterRights]) -> None:
        """Take the adapters; requests that wait for one look again."""
        self._adapted = {adapter.name: adapter.model for adapter in adapters}
        for pool in self._pools.values():
            if pool.parked:
                pool.wake()

    @property
    def names(self) -> tuple[str, ...]:
        """The models, and the adapters of those."""
        if not self._adapted:
            return self.models
        return (*self.models, *(name for name, model in self._adapted.items() if model in self._pools))

    def adapted_by(self, name: str) -> str:
        """Return the model that this adapter adapts; empty where the name is not an adapter's."""
        return self._adapted.get(name, "")

    def adapters_among(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of ``names`` that are adapters."""
        return frozenset(name for name in names if name in self._adapted) if self._adapted else _NO_NAMES

    def pool(self, model: str) -> Pool | None:
        """Return the endpoints and the queue of a model, or of an adapter's model; None where there is no such name."""
        pool = self._pools.get(model)
        return self._pools.get(self._adapted.get(model, "")) if pool is None and self._adapted else pool

    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    def endpoints(self, model: str) -> tuple[Upstream, ...] | None:
        """Return the endpoints of a model, or those that serve an adapter; None where the fleet has no such name."""
        pool = self._pools.get(model)
        if pool is None and model in self._adapted:
            base = self._pools.get(self._adapted[model])
            return None if base is None else tuple(u for u in base.upstreams if model in u.adapters)
        return None if pool is None else pool.upstreams

    def upstreams(self) -> list[Upstream]:
        return [u for pool in self._pools.values() for u in pool.upstreams]

    def demands(self) -> dict[str, int]:
        """Return the requests of each endpoint, by its key: those that run there, and a part of those that wait."""
        found: dict[str, int] = {}
        for pool in self._pools.values():
            ready = [u for u in pool.upstreams if u.ready]
            each = -(-pool.num_waiting // len(ready)) if ready else 0
            found.update((u.key, u.outstanding + (each if u.ready else 0)) for u in pool.upstreams)
        return found

    def tenant_demands(self) -> dict[str, dict[str, Demand]]:
        """Return what each tenant has running and waiting, by model."""
        found = {model: pool.scheduler.demands() for model, pool in self._pools.items()}
        return {model: tenants for model, tenants in found.items() if tenants}

    def engine_capacity(self, upstream: Upstream) -> int | None:
        """Return the requests that the engine works on at once for all gateways; where unknown, this process's part."""
        whole = self._engine_capacities.get(upstream.key)
        return upstream.capacity if whole is None else whole

    def set_rules(self, queue: QueuePolicy, routing: RoutingRules) -> None:
        """Change how requests wait, and how they get a replica, from now on."""
        self._queue, self._routing = queue, routing
        for pool in self._pools.values():
            pool.scheduler.queue = queue
            pool.set_routing(routing)

    def has_ready(self) -> bool:
        """Return whether a request may be answered: by an endpoint that is ready, or one that it wakes."""
        if any(u.ready for u in self.upstreams()):
            return True
        return any(pool.asleep is not None and not pool.asleep.paused for pool in self._pools.values())

    def _fill_pools(self) -> None:
        """Give the endpoints to the pools. Pools that stay keep their queues; those of models that left are closed."""
        external, table = self._external, self.table
        names = table.models if table is not None else ()
        self.models = tuple(dict.fromkeys((*names, *(u.model for u in self._own), *external.models)))
        self.num_changes += 1
        old, self._pools = self._pools, {}
        own, outside = _by_model(self._own), _by_model(external.upstreams)
        for model in self.models:
            pool = self._pools[model] = old.pop(model) if model in old else self._new_pool(model)
            pool.outside = external.models.get(model)
            pool.asleep = table.asleep.get(model) if table is not None else None
            all_upstreams = own if pool.outside is None else outside
            pool.take_upstreams(tuple(all_upstreams.get(model, ())))
            if pool.any_ready:
                pool.ready_s = self._clock.monotonic_s()
            if pool.num_waiting:
                pool.pump_soon()
            if pool.parked:
                pool.wake()
        for pool in old.values():
            pool.close()

    def _new_pool(self, model: str) -> Pool:
        return Pool(model, self._queue, self._routing, self._index, self.wakes)

    def _capacity(self, stated: int | None) -> int | None:
        limit = self._limits.max_outstanding
        return min((number for number in (stated, limit) if number is not None), default=None)

    def _live(self, endpoint: Endpoint, old: dict[tuple[str, str, str], Upstream]) -> Upstream:
        known = old.pop((endpoint.model, endpoint.key, endpoint.api_key), None)
        return Upstream(endpoint, self._limits) if known is None else known


def _by_model(upstreams: Iterable[Upstream]) -> dict[str, list[Upstream]]:
    found: dict[str, list[Upstream]] = {}
    for upstream in upstreams:
        found.setdefault(upstream.model, []).append(upstream)
    return found
