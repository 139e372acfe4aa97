"""The endpoints of external models: made from the policy, since nothing of them runs in the fleet."""

from __future__ import annotations

from collections.abc import Sequence

from longboat.core.external import ExternalModel
from longboat.core.states import Endpoint
from longboat.gateway.config import GatewayLimits
from longboat.gateway.external.address import addresses_of
from longboat.gateway.external.keys import KeyProblemError, key_stamp, read_key
from longboat.gateway.external.outside import Outside
from longboat.gateway.upstreams.upstream import Upstream
from longboat.telemetry import logger

__all__ = ("ExternalEndpoints",)

log = logger("gateway")

_LOOK_EVERY_S = 1.0


class ExternalEndpoints:
    """All external models of one process, and their addresses as endpoints."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._models: tuple[ExternalModel, ...] = ()
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._looked_s = 0.0
        self.models: dict[str, Outside] = {}  # by name
        self.upstreams: tuple[Upstream, ...] = ()

    def take(self, models: Sequence[ExternalModel]) -> bool:
        """Take other models. Return whether anything changed."""
        if tuple(models) == self._models:
            return False
        self._make(tuple(models))
        return True

    def refresh(self, now_s: float) -> bool:
        """Look now and then whether a key's file changed. Return whether anything did."""
        if not self._models or now_s - self._looked_s < _LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        if all(key_stamp(model) == self._stamps[model.name] for model in self._models):
            return False
        self._make(self._models)
        return True

    def _make(self, models: tuple[ExternalModel, ...]) -> None:
        """Make the endpoints again; what did not change stays the same object."""
        before = self.models
        old = {(u.model, u.key, u.api_key): u for u in self.upstreams}  # models may share an address
        known = {model.name: model for model in self._models}
        self._models, self._stamps = models, {model.name: key_stamp(model) for model in models}
        self.models, made = {}, []
        for model in models:
            is_same = known.get(model.name) == model
            key, problem = _key_of(model)
            kept = before.get(model.name) if is_same else None
            self.models[model.name] = outside = kept or Outside(model)
            outside.problem = problem
            found = self._endpoints(model, key)
            outside.labels = tuple(endpoint.replica for endpoint, _ in found)
            for endpoint, upstream in found:
                same = old.pop((model.name, endpoint.key, key), None) if is_same else None
                made.append(same or upstream)
        for upstream in old.values():
            upstream.retire()
        self.upstreams = tuple(made)

    def _endpoints(self, model: ExternalModel, key: str) -> list[tuple[Endpoint, Upstream]]:
        found = []
        for url, address in zip(model.urls, addresses_of(model, key), strict=True):
            endpoint = Endpoint(model=model.name, replica=address.label, generation=1, url=url, api_key=key)
            upstream = Upstream(endpoint, self._limits, address)
            upstream.capacity = None
            found.append((endpoint, upstream))
        return found


def _key_of(model: ExternalModel) -> tuple[str, str]:
    """Return the model's key, and why there is none."""
    try:
        return read_key(model), ""
    except KeyProblemError as error:
        log.warning("external model %s: %s", model.name, error)
        return "", str(error)
