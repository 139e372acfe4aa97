"""What the controller tells nodes about weights: how they are fetched, and which nodes may be the tracker."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from longboat.cluster.host.cluster_token import cluster_token
from longboat.cluster.protocol.messages import NodeReport, WeightsOrder
from longboat.spec.types.fleet import Fleet
from longboat.spec.types.source import is_fetched
from longboat.user import user_home

__all__ = ("WeightsOrders", "weights_values")

MAX_TRACKERS: Final = 3
PURPOSE: Final = b"longboat swarm 1"


def weights_values(fleet: Fleet) -> dict[str, Any]:
    """Return the controller's values of weights: plain, and without secrets."""
    sources = dict.fromkeys(model.source for model in fleet.models if is_fetched(model.source))
    return {"spec": fleet.weights.model_dump(mode="json"), "sources": list(sources)}


class WeightsOrders:
    """The orders of one life of the controller.

    The trackers are the nodes that reported first and still do: their order changes only where one is lost, so nodes
    that begin at different moments meet at the same tracker.
    """

    def __init__(self) -> None:
        self._trackers: list[str] = []
        self._token = _token()

    def order(self, document: Mapping[str, Any], reports: Mapping[str, NodeReport]) -> WeightsOrder | None:
        """Return what every node should do; None where no model is fetched by nodes."""
        values = document.get("weights") or {}
        if not values.get("sources"):
            return None
        alive = dict.fromkeys(report.weights.member for report in reports.values() if report.weights is not None)
        kept = [at for at in self._trackers if at in alive]
        if len(kept) < MAX_TRACKERS:
            kept = list(dict.fromkeys([*kept, *alive]))[:MAX_TRACKERS]
        self._trackers = kept
        return WeightsOrder(
            spec=values["spec"],
            sources=tuple(values["sources"]),
            trackers=tuple(self._trackers),
            token=self._token,
        )


def _token() -> str:
    """Return a token that only this cluster's nodes get: the same after a restart where the cluster has one."""
    if known := cluster_token(os.environ, user_home()):
        return hmac.digest(known.encode(), PURPOSE, "sha256").hex()
    return secrets.token_hex(32)
