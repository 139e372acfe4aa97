"""The kernel is asked the right questions about this node's addresses."""

from __future__ import annotations

import pytest

from longboat.cluster.host import nic
from longboat.core.errors import ClusterError, UserInputError


def test_addresses_hold_the_loopback() -> None:
    assert ("lo", "127.0.0.1") in nic.addresses()


def test_route_to_ourselves_leaves_from_the_loopback() -> None:
    assert nic.route_source("127.0.0.1") == "127.0.0.1"
    assert nic.route_source("localhost") == "127.0.0.1"


def test_interface_of_a_source_address_is_one_of_ours() -> None:
    for name, address in nic.addresses():
        assert nic.interface_of(address) == name


def test_unknown_address_lists_what_there_is() -> None:
    with pytest.raises(ClusterError) as caught:
        nic.interface_of("192.0.2.77")
    assert "192.0.2.77" in caught.value.message
    assert "127.0.0.1 (lo)" in caught.value.hint


def test_unknown_host_name_is_a_cluster_error() -> None:
    with pytest.raises(ClusterError, match="no host is called"):
        nic.route_source("no-such-host.invalid")


def test_only_address_is_taken_without_a_default_route() -> None:
    assert nic._only_reachable([("lo", "127.0.0.1"), ("eth0", "10.0.0.1")]) == "10.0.0.1"


def test_several_addresses_without_a_default_route_are_listed() -> None:
    with pytest.raises(UserInputError) as caught:
        nic._only_reachable([("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("ib0", "10.1.0.1")])
    assert "10.0.0.1 (eth0), 10.1.0.1 (ib0)" in caught.value.message
    assert "--address 10.0.0.1" in caught.value.hint


def test_no_address_points_to_the_local_cluster() -> None:
    with pytest.raises(UserInputError) as caught:
        nic._only_reachable([("lo", "127.0.0.1")])
    assert "--local" in caught.value.hint
