"""What gateways are ordered: the policy's document and each node's share of the engines."""

from __future__ import annotations

import msgspec
import pytest

from longboat.cluster.fleet.serve_config import gateway_settings, plain_policy
from longboat.cluster.members.slot_shares import SlotShares, policy_document
from longboat.cluster.protocol.messages import GatewaySettings, NodeOrder, policy_digest
from longboat.core.policy import KeyRecord, Policy, TenantPolicy
from longboat.core.states import Endpoint, EndpointTable
from longboat.core.table_changes import TableUpdate
from longboat.spec.files.load import load_fleet

POLICY = Policy(
    auth="keys",
    tenants=(TenantPolicy(name="a", models=("tiny",)),),
    keys=(KeyRecord(key_id="k", tenant="a", sha256="0" * 64, created_s=1700000000.25),),
    fallbacks={"b": ("a",), "a": ("c",)},
    salt="s",
)
ONE = Endpoint(model="m", replica="r1", generation=1, url="http://h:1", capacity=8)
FREE = Endpoint(model="n", replica="r2", generation=1, url="http://h:2")
TABLE = EndpointTable(version=3, models=("m", "n"), endpoints=(ONE, FREE))


def shares(*demands: int, now_s: float = 0.0, of: SlotShares | None = None) -> list[int | None]:
    """What each of some nodes may use of the first endpoint."""
    nodes = [f"n{index}" for index in range(len(demands))]
    wanted = {node: {"m": {"a": (1.0, 0, demand)}} for node, demand in zip(nodes, demands, strict=True) if demand}
    made = of or SlotShares()
    return [made.table_for(node, TABLE, nodes, wanted, now_s).endpoints[0].capacity for node in nodes]


def test_policy_document_is_the_policy_for_so_many_gateways() -> None:
    decoded = msgspec.json.decode(policy_document(plain_policy(POLICY), 3), type=Policy)
    assert decoded.num_gateways == 3
    assert (decoded.tenants, decoded.keys, decoded.salt) == (POLICY.tenants, POLICY.keys, "s")


def test_equal_policies_give_equal_documents_in_whatever_order_serve_keeps_them() -> None:
    values = plain_policy(POLICY)
    turned = {name: values[name] for name in reversed(values)} | {"fallbacks": {"a": ["c"], "b": ["a"]}}
    assert policy_document(turned, 2) == policy_document(values, 2)
    assert policy_digest(policy_document(values, 2)) != policy_digest(policy_document(values, 1))


def test_a_document_without_policy_is_the_open_one() -> None:
    assert msgspec.json.decode(policy_document({}, 0), type=Policy) == Policy()


@pytest.mark.parametrize("demands", [(0, 0), (100, 0), (100, 100), (3, 0, 20), (0,)])
def test_shares_of_an_engine_are_all_its_slots(demands: tuple[int, ...]) -> None:
    assert sum(share or 0 for share in shares(*demands)) == ONE.capacity


def test_a_busy_node_gets_more_than_an_idle_one() -> None:
    busy, idle = shares(100, 0)
    assert (busy or 0) > (idle or 0) >= 1


def test_a_tenant_gets_no_more_of_an_engine_by_using_more_nodes() -> None:
    flood, quiet = {"m": {"flood": (1.0, 0, 500)}}, {"m": {"quiet": (1.0, 0, 500)}}
    wanted = {"n0": flood, "n1": flood, "n2": quiet}
    made = SlotShares()
    got = [made.table_for(node, TABLE, wanted, wanted, 0.0).endpoints[0].capacity for node in wanted]
    assert got == [2, 2, 4]


def test_a_node_is_told_what_the_whole_engine_has() -> None:
    told = SlotShares().table_for("n0", TABLE, ["n0", "n1"], {}, 0.0).endpoints[0]
    assert (told.capacity, told.engine_capacity) == (4, ONE.capacity)


def test_shares_are_renewed_once_a_second_and_alike_for_all_nodes() -> None:
    made = SlotShares()
    first = shares(100, 0, of=made, now_s=10.0)
    assert shares(0, 100, of=made, now_s=10.5) == first
    assert shares(0, 100, of=made, now_s=11.0) == first[::-1]


def test_an_engine_of_unknown_capacity_is_not_divided() -> None:
    table = SlotShares().table_for("n0", TABLE, ["n0", "n1"], {}, 0.0)
    assert table.endpoints[1] == FREE
    assert (table.version, table.models) == (TABLE.version, TABLE.models)


def test_settings_name_where_the_secret_is_and_never_hold_it() -> None:
    text = """
models: [builtin:tiny]
gateway:
  tls: {certificate: /c, key: /k}
  logs: {access: false, max_bytes: 1MiB, keep: 0}
  tracing: {endpoint: "http://c:4318"}
  redis: {url_file: /r}
"""
    settings = GatewaySettings(**gateway_settings(load_fleet(text, "x").gateway))
    assert (settings.tls_certificate, settings.tls_key) == ("/c", "/k")
    assert (settings.access_log, settings.access_log_max_bytes, settings.access_log_keep) == (False, 1 << 20, 0)
    assert (settings.tracing_endpoint, settings.tracing_sample_ratio) == ("http://c:4318", 1.0)
    assert (settings.redis_url, settings.redis_url_file, settings.redis_url_env) == (None, "/r", None)


def test_an_order_does_not_show_its_policy() -> None:
    order = NodeOrder(
        fleet="f",
        update=TableUpdate(epoch="e", number=1, table=TABLE),
        table_is_old=False,
        gateway=GatewaySettings(host="127.0.0.1", port=1, processes=1),
        warm=(),
        policy=b'{"salt":"hidden"}',
    )
    assert "hidden" not in repr(order)
