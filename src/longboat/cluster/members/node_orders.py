"""What each node is ordered, made of the fleet's table and policy, and what nodes reported."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping
from typing import Any

from longboat.cluster.members.slot_shares import SlotShares, policy_document
from longboat.cluster.protocol.messages import (
    GatewayReport,
    GatewaySettings,
    NodeOrder,
    NodeReport,
    WarmEnvironment,
)
from longboat.cluster.weights.orders import WeightsOrders
from longboat.core.states import EndpointTable
from longboat.core.table_changes import TableSender

__all__ = ("NodeOrders",)


class NodeOrders:
    """The orders of one life of the controller, and the newest report of each node."""

    def __init__(self, epoch: str) -> None:
        """epoch: names this life of the controller"""
        self.reports: dict[str, NodeReport] = {}
        self.epoch = epoch
        self._values: Mapping[str, Any] = {}  # the controller's
        self._policy: tuple[int, bytes] | None = None  # number of gateways it is for, and the document
        self._senders: dict[str, TableSender] = {}  # of tables, by node
        self._slot_shares = SlotShares()
        self._weights = WeightsOrders()

    def take(self, values: Mapping[str, Any]) -> None:
        """Take over a fleet. values: the controller's"""
        self._values, self._policy = values, None

    @property
    def has_fleet(self) -> bool:
        """Return whether there is a fleet that nodes can be ordered to serve."""
        return bool(self._values)

    def policy(self, num_gateways: int) -> bytes:
        """Return the policy for this number of nodes."""
        if self._policy is None or self._policy[0] != num_gateways:
            self._policy = num_gateways, policy_document(self._values.get("policy", {}), num_gateways)
        return self._policy[1]

    def order(self, node_id: str, nodes: Collection[str], table: EndpointTable, *, drained: bool) -> NodeOrder:
        """Make the order for one node. nodes: all that have a gateway; drained: its gateway takes nothing new"""
        demands = {node: report.gateway.tenant_demands for node, report in self.reports.items()}
        own = self._slot_shares.table_for(node_id, table, nodes, demands, time.monotonic())
        report = self.reports.get(node_id)
        sender = self._senders.setdefault(node_id, TableSender(self.epoch))
        return NodeOrder(
            fleet=str(self._values["fleet"]),
            update=sender.update(own, known=report.gateway.table_number if report else 0),
            table_is_old=False,
            gateway=GatewaySettings(**self._values["gateway"]),
            warm=tuple(WarmEnvironment(**entry) for entry in self._values.get("warm", ())),
            policy=self.policy(len(nodes)),
            drained=drained,
            weights=self._weights.order(self._values, self.reports),
            dashboard=str(self._values.get("dashboard", "")),
        )

    def has_gap(self, node_id: str) -> bool:
        """Return whether the node answered that it could not apply a change to the table that it has."""
        report, sender = self.reports.get(node_id), self._senders.get(node_id)
        if report is None or sender is None or not report.gateway.pid:
            return False
        return report.gateway.table_number != sender.number

    def silent(self, node_id: str, error: Exception) -> None:
        """Note that a node did not answer; what it reported before is kept."""
        last = self.reports.get(node_id)
        gateway = last.gateway if last else GatewayReport(
            node_id=node_id, address="", hostname="", url="", pid=None, table_version=0
        )  # fmt: skip
        self.reports[node_id] = dataclasses.replace(
            last or NodeReport(gateway=gateway),
            gateway=GatewayReport(
                node_id=node_id,
                address=gateway.address,
                hostname=gateway.hostname,
                url=gateway.url,
                pid=gateway.pid,
                table_version=gateway.table_version,
                policy_digest=gateway.policy_digest,
                problem=f"node does not answer ({type(error).__name__})",
            ),
        )

    def leave(self, node_id: str) -> None:
        """Forget a node that left the cluster."""
        self.reports.pop(node_id, None)
        self._senders.pop(node_id, None)
