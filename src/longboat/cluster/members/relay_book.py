"""Which nodes relay heartbeats, what their relays say, and how often large fleets announce and are ordered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from longboat.cluster.protocol.messages import NodeReport

__all__ = ("QUIET_EVERY_S", "RelayBook", "announce_every_s", "order_every_s", "push_pause_s")

RELAYED_FROM, DIRECT_UNTIL = 64, 48
"""Numbers of replicas from which gateways hear relays, and below which they hear every replica directly again."""

ANNOUNCEMENTS_A_SECOND = 100.0
"""Supervisors whose gangs a relay watches announce themselves less often, so that all of them stay below this."""
RELAYED_EVERY_S, LONGEST_EVERY_S = 5.0, 100.0
"""Limits of the seconds between two announcements of such a supervisor."""
QUIET_EVERY_S = 2.0
"""Seconds between two announcements of another gang that is ready: heartbeats tell sooner that it is not."""

ORDERS_A_SECOND = 50.0
"""Nodes are ordered at each change; without one, less often than once a second where they are more than this."""

ROWS_A_SECOND = 40_000.0
"""Endpoints times gateways that are compared in a second while changes follow each other."""

_NONE: Mapping[str, str] = MappingProxyType({})


def announce_every_s(num_replicas: int) -> float:
    """Return the seconds between two announcements of a supervisor whose gang a relay watches."""
    return min(LONGEST_EVERY_S, max(RELAYED_EVERY_S, num_replicas / ANNOUNCEMENTS_A_SECOND))


def order_every_s(num_nodes: int) -> float:
    """Return the seconds between two orders to a node while nothing changes."""
    return max(1.0, num_nodes / ORDERS_A_SECOND)


def push_pause_s(num_nodes: int, num_endpoints: int) -> float:
    """Return the least time between two orders to a node: changes that come meanwhile are sent together."""
    return min(1.0, num_nodes * num_endpoints / ROWS_A_SECOND)


class RelayBook:
    """The relays of all nodes, as the nodes last reported them."""

    def __init__(self) -> None:
        self._reports: dict[str, NodeReport] = {}
        self._on = False
        self.num_changes = 0  # of relays, and of what they say

    def hear(self, node_id: str, report: NodeReport) -> None:
        """Take a node's report.

        One that does not answer keeps its relay: gateways find out themselves whether it works, and on a busy machine
        the change would cost all of them more than it helps.
        """
        before = self._reports.get(node_id)
        self._reports[node_id] = report
        if before is None or _news(before) != _news(report):
            self.num_changes += 1

    def forget_unwell(self, node_id: str) -> None:
        """Forget what the relay of a node that did not answer an order said last: it may be old."""
        report = self._reports.get(node_id)
        if report is not None and report.unwell:
            self.hear(node_id, replace(report, unwell=()))

    def has_unwell(self, node_id: str) -> bool:
        """Return whether a node's relay said last that a gang takes nothing new."""
        report = self._reports.get(node_id)
        return report is not None and bool(report.unwell)

    def leave(self, node_id: str) -> None:
        if self._reports.pop(node_id, None) is not None:
            self.num_changes += 1

    def by_node(self, num_replicas: int) -> Mapping[str, str]:
        """Return node → HOST:PORT of its relay; empty where the fleet is small enough to be heard directly."""
        self._on = num_replicas >= (DIRECT_UNTIL if self._on else RELAYED_FROM)
        if not self._on:
            return _NONE
        return {node: report.relay for node, report in self._reports.items() if report.relay}

    def keys(self) -> Mapping[str, str]:
        """Return HOST:PORT of each relay → its key; empty where the fleet is heard directly."""
        return {r.relay: r.relay_key for r in self._reports.values() if r.relay} if self._on else _NONE

    def unwell(self) -> frozenset[str]:
        """Return the keys of endpoints that take nothing new, by any relay."""
        return frozenset(key for report in self._reports.values() for key in report.unwell)


def _news(report: NodeReport) -> tuple[object, ...]:
    return report.relay, report.relay_key, frozenset(report.unwell)
