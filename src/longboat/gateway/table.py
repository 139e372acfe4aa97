"""The endpoint table in the hand of one gateway process: which pushes it takes, and the live endpoints."""

from __future__ import annotations

from longboat.core.states import Endpoint, EndpointTable
from longboat.gateway.config import GatewayLimits
from longboat.gateway.upstream import Upstream

__all__ = ("LiveTable",)


class LiveTable:
    """Holds the newest table. Endpoints that stay keep their connections and their counts."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self.epoch: str | None = None
        self.version = 0
        self.models: tuple[str, ...] = ()
        self._by_model: dict[str, tuple[Upstream, ...]] = {}

    @property
    def known(self) -> bool:
        """Whether any table came yet."""
        return self.epoch is not None

    def offer(self, epoch: str, table: EndpointTable) -> bool:
        """Take the table, or leave it where it is older than ours: same epoch and a lower version.

        :raises UserInputError: an endpoint's address cannot be used; nothing is changed
        """
        if epoch == self.epoch and table.version < self.version:
            return False
        old = {(u.model, u.key, u.api_key): u for u in self.upstreams()}
        made = [self._live(endpoint, old) for endpoint in table.endpoints]
        for upstream, endpoint in zip(made, table.endpoints, strict=True):
            upstream.ready = endpoint.ready
        for upstream in old.values():
            upstream.retire()
        self.epoch, self.version = epoch, table.version
        self.models = tuple(dict.fromkeys((*table.models, *(e.model for e in table.endpoints))))
        self._by_model = {m: tuple(u for u in made if u.model == m) for m in self.models}
        return True

    def endpoints(self, model: str) -> tuple[Upstream, ...] | None:
        """The endpoints of a model; None where the fleet has no such model."""
        return self._by_model.get(model)

    def upstreams(self) -> list[Upstream]:
        return [u for group in self._by_model.values() for u in group]

    def has_ready(self) -> bool:
        return any(u.ready for u in self.upstreams())

    def _live(self, endpoint: Endpoint, old: dict[tuple[str, str, str], Upstream]) -> Upstream:
        fresh = Upstream(endpoint, self._limits)
        return old.pop((fresh.model, fresh.key, fresh.api_key), fresh)
