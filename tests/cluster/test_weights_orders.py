"""What the controller tells nodes about weights: one order of trackers, and nothing where no node fetches."""

from __future__ import annotations

from longboat.cluster.protocol.messages import GatewayReport, NodeReport, WeightsReport
from longboat.cluster.weights.orders import WeightsOrders, weights_values
from longboat.spec.files.load import load_fleet


def report(member: str) -> NodeReport:
    gateway = GatewayReport(node_id="n", address="", hostname="", url="", pid=None, table_version=0)
    return NodeReport(gateway=gateway, weights=WeightsReport(member=member) if member else None)


def values(source: str) -> dict[str, object]:
    return {"weights": weights_values(load_fleet(f"models: ['{source}']", "fleet"))}


def test_nodes_that_reported_first_are_trackers_until_they_are_lost() -> None:
    orders, document = WeightsOrders(), values("s3://bucket/model")
    told = [
        orders.order(document, {name: report(f"{name}:1") for name in names})
        for names in (["c"], ["a", "b", "c"], ["a", "b"], ["a", "b", "c", "d"])
    ]
    assert [order.trackers for order in told if order] == [
        ("c:1",),
        ("c:1", "a:1", "b:1"),
        ("a:1", "b:1"),
        ("a:1", "b:1", "c:1"),
    ]
    assert len({order.token for order in told if order}) == 1
    assert all(order.token not in repr(order) for order in told if order)


def test_a_fleet_without_fetched_models_has_no_swarm() -> None:
    assert WeightsOrders().order(values("builtin:tiny"), {"a": report("a:1")}) is None
    assert WeightsOrders().order({}, {"a": report("a:1")}) is None
