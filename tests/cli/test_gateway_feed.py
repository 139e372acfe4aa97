"""What a gateway is sent while it refuses a policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.cli.gateway.feed import GatewayFeed
from longboat.core.errors import ClusterError
from longboat.core.policy import Policy
from longboat.core.states import Endpoint, EndpointTable

OLD = Policy(auth="none", tenants=(), keys=())
NEW = replace(OLD, auth="keys")
READY = Endpoint(model="m", replica="r0", generation=1, url="http://h:1", ready=True)
OTHER = replace(READY, model="n")


class Gateway:
    """Takes what it is sent; a policy only when it is willing."""

    def __init__(self) -> None:
        self.is_willing = True
        self.taken: list[Policy | EndpointTable] = []

    async def put_policy(self, policy: Policy) -> bool:
        if not self.is_willing:
            raise ClusterError("refused")
        self.taken.append(policy)
        return True

    async def put_table(self, epoch: str, table: EndpointTable) -> bool:
        self.taken.append(table)
        return True


def table(version: int, *endpoints: Endpoint) -> EndpointTable:
    return EndpointTable(version=version, models=tuple(e.model for e in endpoints), endpoints=endpoints)


async def test_a_new_policy_goes_before_the_table_and_only_once() -> None:
    gateway = Gateway()
    feed = GatewayFeed(gateway, OLD, ("m",))
    await feed.send(NEW, ("m", "n"), (READY, OTHER))
    await feed.send(NEW, ("m", "n"), (READY, OTHER))
    assert gateway.taken == [NEW, table(1, READY, OTHER), table(2, READY, OTHER)]


async def test_a_refused_policy_keeps_no_state_of_an_engine_back_and_serves_no_new_model() -> None:
    gateway, dead = Gateway(), replace(READY, ready=False)
    feed = GatewayFeed(gateway, OLD, ("m",))
    gateway.is_willing = False
    with pytest.raises(ClusterError, match="refused"):
        await feed.send(NEW, ("m", "n"), (dead, OTHER))
    assert gateway.taken == [table(1, dead)]
    gateway.is_willing = True
    await feed.send(NEW, ("m", "n"), (dead, OTHER))
    assert gateway.taken[1:] == [NEW, table(2, dead, OTHER)]
