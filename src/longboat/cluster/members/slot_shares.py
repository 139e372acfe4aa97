"""What gateways are ordered: the policy's document, and each node's table with its share of the engines. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.routing.capacity.shares import Divider, read_demands

__all__ = ("SlotShares", "policy_document")

RENEW_EVERY_S = 1.0
CELLS_A_SECOND = 50_000.0
"""Endpoints times nodes that are divided in a second: where they are more, slots are divided less often."""

Demands = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""Node → model → tenant → its weight, and how many of its requests run and wait there."""


def policy_document(values: Mapping[str, Any], num_gateways: int) -> bytes:
    """Write the policy for ``num_gateways`` nodes; equal policies give equal bytes in every controller."""
    policy = dataclasses.replace(msgspec.convert(dict(values), Policy), num_gateways=max(1, num_gateways))
    return msgspec.json.encode(policy, order="deterministic")


class SlotShares:
    """The division of engines' slots between nodes, made about once a second: all nodes get the same division."""

    def __init__(self) -> None:
        self._divider = Divider()
        self._made_for: tuple[int, bool, tuple[str, ...]] | None = None
        self._made_at_s = -RENEW_EVERY_S
        self._tables: list[EndpointTable] = []

    def table_for(
        self, node_id: str, table: EndpointTable, nodes: Iterable[str], demands: Demands, now_s: float
    ) -> EndpointTable:
        """Make the table for one node: it says how many of each engine's slots this node may use.

        nodes: all that have a gateway; now_s: of any clock that only goes forward
        """
        order = tuple(sorted({*nodes, node_id}))
        made_for = (table.version, table.partial, order)
        renew_s = max(RENEW_EVERY_S, len(order) * len(table.endpoints) / CELLS_A_SECOND)
        if made_for != self._made_for or now_s - self._made_at_s >= renew_s:
            self._made_for, self._made_at_s = made_for, now_s
            self._tables = self._divider.tables(table, [read_demands(demands.get(node, {})) for node in order])
        return self._tables[order.index(node_id)]
