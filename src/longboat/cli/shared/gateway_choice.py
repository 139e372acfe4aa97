"""Which of the fleet's gateways a command on this machine can use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from longboat.cluster.protocol.messages import GatewayReport
from longboat.core.errors import ClusterError
from longboat.spec.types.section import is_loopback

__all__ = ("gateway_here", "gateways_here", "in_reach")


def gateway_here(gateways: Sequence[GatewayReport]) -> GatewayReport:
    """Return this node's gateway, else the first that can be reached from here.

    Raises ClusterError when there is none.
    """
    if chosen := gateways_here(gateways):
        return chosen[0]
    if working := [gateway for gateway in gateways if not gateway.problem]:
        raise ClusterError(
            f"the gateways listen on {working[0].url}, which can be reached only on their own nodes",
            hint="run the command on a node of the cluster, or set gateway.host in the fleet file",
        )
    problem = f": {gateways[0].problem}" if gateways else ""
    raise ClusterError(f"no gateway is up{problem}", hint="longboat status; longboat up FILE")


def gateways_here(gateways: Sequence[GatewayReport]) -> list[GatewayReport]:
    """Gateways that can be reached from this machine, its own first."""
    from longboat.cluster.host.nic import addresses

    return in_reach(gateways, {address for _, address in addresses()})


def in_reach(gateways: Sequence[GatewayReport], ours: Collection[str]) -> list[GatewayReport]:
    """Return the working gateways that this machine can reach, its own first.

    ``ours``: this machine's addresses. A loopback URL of another node does not lead to that node.
    """
    working = [gateway for gateway in gateways if not gateway.problem]
    here = [gateway for gateway in working if gateway.address in ours]
    away = [gateway for gateway in working if gateway not in here]
    return [*here, *(gateway for gateway in away if not is_loopback(urlsplit(gateway.url).hostname or ""))]
