"""What gateways are ordered: the policy's document, and each node's table with its share of the engines. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from longboat.core.policy import Policy
from longboat.core.states import Endpoint, EndpointTable
from longboat.routing.slots import lease

__all__ = ("SlotShares", "policy_document")

RENEW_EVERY_S = 1.0

Demands = Mapping[str, Mapping[str, int]]
"""Node → endpoint's key → requests that run or wait there."""


def policy_document(values: Mapping[str, Any], num_gateways: int) -> bytes:
    """The policy for ``num_gateways`` nodes; equal policies give equal bytes, whichever controller writes them."""
    policy = dataclasses.replace(msgspec.convert(dict(values), Policy), num_gateways=max(1, num_gateways))
    return msgspec.json.encode(policy, order="deterministic")


class SlotShares:
    """The division of engines' slots between nodes, made anew once a second: all nodes are told of one division."""

    def __init__(self) -> None:
        self._made_for: tuple[int, tuple[str, ...]] | None = None
        self._made_at_s = -RENEW_EVERY_S
        self._shares: dict[str, list[int]] = {}

    def table_for(
        self, node_id: str, table: EndpointTable, nodes: Iterable[str], demands: Demands, now_s: float
    ) -> EndpointTable:
        """The table for one node: of each engine's slots it says how many this node may use.

        nodes: all that have a gateway; now_s: of any clock that only goes forward
        """
        order = tuple(sorted({*nodes, node_id}))
        made_for = (table.version, order)
        if made_for != self._made_for or now_s - self._made_at_s >= RENEW_EVERY_S:
            self._made_for, self._made_at_s = made_for, now_s
            self._shares = {e.key: _divided(e, order, demands) for e in table.endpoints if e.capacity is not None}
        place = order.index(node_id)
        endpoints = tuple(
            dataclasses.replace(e, capacity=self._shares[e.key][place]) if e.key in self._shares else e
            for e in table.endpoints
        )
        return dataclasses.replace(table, endpoints=endpoints)


def _divided(endpoint: Endpoint, nodes: Sequence[str], demands: Demands) -> list[int]:
    assert endpoint.capacity is not None
    return lease(endpoint.capacity, [max(0, demands.get(node, {}).get(endpoint.key, 0)) for node in nodes])
