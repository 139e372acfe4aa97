"""What the gateways of a fleet reply to one question, asked through their nodes. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from longboat.core.errors import ClusterError

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import GatewayReport

__all__ = ("Nodes", "replies_of")


class Nodes(Protocol):
    """The daemons of the nodes; ``Session`` and ``QuickSession`` reach them."""

    def ask_daemon(self, node_id: str, method: str, *args: object) -> Any: ...


def replies_of(
    nodes: Nodes, gateways: Sequence[GatewayReport], query: bytes
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the replies of the gateways, and by node why those that are missing are.

    Raises ClusterError where there are gateways, and none replies.
    """
    replies: list[dict[str, Any]] = []
    silent: dict[str, str] = {}
    for gateway in gateways:
        try:
            replies.append(nodes.ask_daemon(gateway.node_id, "ask_gateway", query))
        except ClusterError as error:
            silent[gateway.hostname or gateway.node_id[:8]] = error.message
    if silent and not replies:
        what = f"no gateway replies: {next(iter(silent.values()))}"
        raise ClusterError(what, hint="longboat status shows the gateways")
    return replies, silent
