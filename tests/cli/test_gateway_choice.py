"""Which gateway a command uses: its own node's first, and none that it cannot reach."""

from __future__ import annotations

import pytest

from cli.cli_builders import gateway
from longboat.cli.shared.gateway_choice import gateway_here, in_reach
from longboat.core.errors import ClusterError

LOOPBACK = "http://127.0.0.1:8000"


def test_this_nodes_gateway_comes_first() -> None:
    one, two = gateway("one"), gateway("two", address="10.0.0.2", url="http://10.0.0.2:8000")
    assert in_reach([one, two], {"10.0.0.2", "127.0.0.1"}) == [two, one]


def test_a_gateway_with_a_problem_is_passed_over() -> None:
    one, two = gateway("one", problem="port taken"), gateway("two", address="10.0.0.2")
    assert in_reach([one, two], {"10.0.0.1"}) == [two]


@pytest.mark.parametrize("url", [LOOPBACK, "http://[::1]:8000", "http://localhost:8000"])
def test_loopback_leads_only_to_the_own_node(url: str) -> None:
    one, two = gateway("one", url=url), gateway("two", address="10.0.0.2", url=url)
    assert in_reach([one, two], {"10.0.0.2"}) == [two]
    assert in_reach([one, two], {"192.168.7.7"}) == []


def test_the_gateway_of_a_local_cluster_is_ours() -> None:
    assert gateway_here([gateway(address="127.0.0.1", url=LOOPBACK)]).url == LOOPBACK


def test_no_gateway_in_reach_says_why() -> None:
    with pytest.raises(ClusterError, match="only on their own nodes"):
        gateway_here([gateway(address="192.0.2.1", url=LOOPBACK)])
    with pytest.raises(ClusterError, match="port taken"):
        gateway_here([gateway(problem="port taken")])
    with pytest.raises(ClusterError, match="no gateway is up"):
        gateway_here([])
