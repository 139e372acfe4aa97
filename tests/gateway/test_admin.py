"""The admin API: who may ask, what is answered, and that nobody reads another tenant's requests."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_recent import record

from longboat.core.errors import ClusterError
from longboat.core.policy import AdapterRights, AdminCredential, Policy, TenantPolicy
from longboat.core.states import Endpoint, EndpointTable
from longboat.gateway.admin import admin_api
from longboat.gateway.admin.admin_api import answer, is_admin_path
from longboat.gateway.admin.admin_call import AdminAnswer
from longboat.gateway.admin.node_query import MetricsQuery, NodeQuery, UsageQuery
from longboat.gateway.config import GatewayConfig
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.keys import new_admin_key, new_key
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.orders.model_orders import ModelOrders
from longboat.gateway.records.metrics import Metrics
from longboat.gateway.records.recent import RecentRequests

LOCAL, REMOTE = "127.0.0.1", "10.1.2.3"
VIEWER, VIEWER_RECORD = new_admin_key("eye", "viewer")
OPERATOR, OPERATOR_RECORD = new_admin_key("hand", "operator")
KEYS = {tenant: new_key(tenant, now_s=0.0) for tenant in ("a", "b")}
ADMINS = (VIEWER_RECORD, OPERATOR_RECORD)


class FakeNode:
    """A node with one request of each of two tenants."""

    def __init__(self) -> None:
        self.recent = RecentRequests()
        self.recent.add(record("req-a", "a"))
        self.recent.add(record("req-b", "b"))
        self.table = Table()
        self.draining = False
        self.gone = False
        self.missing: list[str] = []

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        match query:
            case MetricsQuery():
                return Metrics().snapshot()
            case UsageQuery():
                days = [
                    {"day": "2026-01-02", "tenant": tenant, "model": "m", "requests": 1}
                    for tenant in (query.tenant or "ab")
                ]
                limits = [{"tenant": name, "kind": "tokens_per_day", "limit": 9} for name in "ab"]
                outside = {"model": "x", "kind": "requests_per_day", "limit": 5}
                return {"days": days, "limits": [*limits, outside], "missing": []}
        return {**query.local(self), "missing": self.missing}

    async def report(self) -> dict[str, Any]:
        return {"pid": 1, "draining": self.draining}

    async def drain(self) -> None:
        if self.gone:
            raise ClusterError("gone")
        self.draining = True

    async def undrain(self) -> None:
        self.draining = False


class Served(NamedTuple):
    """A replica as the table has it."""

    key: str
    adapters: dict[str, str]


class Table:
    def endpoints(self, model: str) -> tuple[Served, ...]:
        replicas = (Served("r1", {"legal": "v1"}), Served("r2", {"legal": "v2"}), Served("r3", {}))
        return tuple(replica for replica in replicas if model in replica.adapters)

    def upstreams(self) -> tuple[()]:
        return ()


class State:
    table = Table()

    def __init__(self, *, auth: str = "keys", admins: tuple[AdminCredential, ...] = ADMINS) -> None:
        tenants = tuple(TenantPolicy(name=name) for name in KEYS)
        keys = tuple(entry for _, entry in KEYS.values())
        adapters = (AdapterRights(name="legal", model="m", tenants=("a",)), AdapterRights(name="new", model="m"))
        self.live = LivePolicy(Policy(auth=auth, tenants=tenants, keys=keys, admins=admins, adapters=adapters), ())
        self.node = FakeNode()
        self.config = GatewayConfig(port=0, control_socket="", control_token="t")
        self.model_orders = ModelOrders(None)


async def ask(
    state: State,
    path: str,
    key: str = "",
    *,
    method: str = "GET",
    query: str = "",
    peer: str = REMOTE,
    body: bytes = b"",
    **headers: str,
) -> tuple[int, Any]:
    """Status, and the document or the code of the error."""
    noted = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    if key:
        noted[b"authorization"] = f"Bearer {key}".encode()
    given = await answer(state, method, path, query, noted, peer, body)
    if isinstance(given, Refusal):
        assert given.message.endswith(".") and given.encode(request_id="r", close=False).startswith(b"HTTP/1.1 ")
        return given.status, given.code
    assert isinstance(given, AdminAnswer)
    return given.status, given.body


READ = [
    "/admin/v1/state",
    "/admin/v1/adapters",
    "/admin/v1/requests",
    "/admin/v1/requests/req-a",
    "/admin/v1/usage",
    "/admin/v1/prometheus-targets",
    "/metrics",
]
STEER = ["/admin/v1/drain", "/admin/v1/undrain"]


@pytest.mark.parametrize("path", [*READ, *STEER, "/admin", "/admin/v1/nothing"])
@pytest.mark.parametrize("key", ["", "wrong", "lba-none-none"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_stranger_learns_nothing_and_moves_nothing(path: str, key: str, method: str) -> None:
    state = State()
    status, code = await ask(state, path, key, method=method)
    assert (status, code) in ((401, "admin_key_required"), (405, "method_not_allowed"))
    assert status == 401 or path == "/metrics"
    assert not state.node.draining


@pytest.mark.parametrize("path", READ)
async def test_viewer_reads(path: str) -> None:
    assert (await ask(State(), path, VIEWER))[0] == 200


async def test_adapters_are_listed_with_their_replicas_by_revision() -> None:
    status, document = await ask(State(), "/admin/v1/adapters", VIEWER)
    assert status == 200
    legal, new = document["adapters"]
    assert legal == {"name": "legal", "model": "m", "tenants": ("a",), "served_by": {"v1": ["r1"], "v2": ["r2"]}}
    assert (new["name"], new["served_by"]) == ("new", {})
    assert await ask(State(), "/admin/v1/adapters", KEYS["a"][0]) == (403, "not_allowed")


ADD = b'{"model": "m", "source": "/adapters/x"}'


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[tuple[State, list[Any]]]:
    """A state whose daemon answers by the name in the order, and the orders that it got."""
    orders: list[Any] = []
    replies = {"x": {"value": {"adapter": {"name": "x"}}}, "legal": {"value": {"adapter": None}}}
    replies["late"] = {"value": {"status": 504, "error": "not confirmed in time", "hint": ""}}
    replies["busy"] = {"value": {"status": 409, "error": "another change runs", "hint": "ask again"}}
    replies["m"] = {"value": {"count": {"model": "m", "replicas": 3, "paused": False}}}
    wrong = {"value": {"status": 400, "error": "there is no folder /adapters/y", "hint": "put it there"}}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = json.loads(await reader.readline())
        assert question["ask"] == "change_fleet"
        (order,) = question["args"]
        orders.append(order)
        if order.get("remove") == "lost":  # the daemon ends before it answers
            return writer.close()
        if "count" in order:
            name = order["count"]["model"]
        else:
            name = order["add"]["source"].rpartition("/")[2] if "add" in order else order["remove"]
        writer.write(json.dumps(replies.get(name, wrong)).encode())
        await writer.drain()
        writer.close()

    state = State()
    state.config = state.config.replaced(daemon_socket=str(tmp_path / "d.sock"))
    async with await asyncio.start_unix_server(serve, tmp_path / "d.sock"):
        yield state, orders


async def test_operator_adds_and_removes_adapters(daemon: tuple[State, list[Any]]) -> None:
    state, orders = daemon
    found = await ask(state, "/admin/v1/adapters", OPERATOR, method="POST", body=ADD, query="timeout_s=7")
    assert found == (200, {"adapter": {"name": "x"}})
    assert await ask(state, "/admin/v1/adapters/legal", OPERATOR, method="DELETE") == (200, {"removed": "legal"})
    added = {"model": "m", "source": "/adapters/x", "name": "", "tenants": None}
    assert orders == [{"add": added, "timeout_s": 7}, {"remove": "legal", "timeout_s": 60}]


async def test_what_the_fleet_refuses_comes_back_with_its_hint(daemon: tuple[State, list[Any]]) -> None:
    state, _ = daemon
    noted = {b"authorization": f"Bearer {OPERATOR}".encode()}
    body = ADD.replace(b"/x", b"/y")
    refusal = await answer(state, "POST", "/admin/v1/adapters", "", noted, REMOTE, body)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (400, "bad_adapter")
    assert refusal.message == "there is no folder /adapters/y. Hint: put it there."


@pytest.mark.parametrize(
    ("name", "status", "code", "words"),
    [
        ("busy", 409, "another_change", "another change runs. Hint: ask again."),
        ("lost", 504, "change_not_confirmed", "This node's daemon did not confirm the change (DecodeError)"),
        ("late", 504, "change_not_confirmed", "not confirmed in time. Hint: it may still be carried out: GET "),
    ],
)
async def test_client_learns_whether_its_change_may_still_be_carried_out(
    daemon: tuple[State, list[Any]], name: str, status: int, code: str, words: str
) -> None:
    state, _ = daemon
    noted = {b"authorization": f"Bearer {OPERATOR}".encode()}
    refusal = await answer(state, "DELETE", f"/admin/v1/adapters/{name}", "", noted, REMOTE, b"")
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (status, code)
    assert refusal.message.startswith(words)


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("POST", "adapters", b"{", (400, "bad_adapter")),
        ("POST", "adapters", b'{"model": "m"}', (400, "bad_adapter")),
        ("POST", "adapters", b'{"model": "m", "source": "/a", "rank": 8}', (400, "bad_adapter")),
        ("POST", "adapters?timeout_s=900", ADD, (400, "bad_query")),
        ("POST", "adapters/x", ADD, (405, "method_not_allowed")),
        ("GET", "adapters/x", b"", (405, "method_not_allowed")),
        ("DELETE", "adapters", b"", (405, "method_not_allowed")),
    ],
)
async def test_wrong_changes_of_adapters_reach_no_daemon(
    daemon: tuple[State, list[Any]], method: str, path: str, body: bytes, told: tuple[int, str]
) -> None:
    state, orders = daemon
    name, _, query = path.partition("?")
    assert await ask(state, f"/admin/v1/{name}", OPERATOR, method=method, body=body, query=query) == told
    assert not orders


@pytest.mark.parametrize("key", [VIEWER, KEYS["a"][0]], ids=["viewer", "tenant"])
async def test_only_operators_change_adapters(daemon: tuple[State, list[Any]], key: str) -> None:
    state, orders = daemon
    for method, path in (("POST", "/admin/v1/adapters"), ("DELETE", "/admin/v1/adapters/legal")):
        assert await ask(state, path, key, method=method, body=ADD) == (403, "not_allowed")
    assert not orders


async def test_gateway_without_a_daemon_changes_no_adapters(tmp_path: Path) -> None:
    state = State()
    assert await ask(state, "/admin/v1/adapters", OPERATOR, method="POST", body=ADD) == (409, "no_fleet")
    state.config = state.config.replaced(daemon_socket=str(tmp_path / "none"))
    assert await ask(state, "/admin/v1/adapters", OPERATOR, method="POST", body=ADD) == (503, "daemon_away")


async def test_operator_changes_numbers_of_replicas(daemon: tuple[State, list[Any]]) -> None:
    state, orders = daemon
    told = {"count": {"model": "m", "replicas": 3, "paused": False}}
    path = "/admin/v1/models/m/"
    assert await ask(state, path + "scale", OPERATOR, method="POST", body=b'{"replicas": 3}') == (200, told)
    for verb, body in (("scale", b'{"replicas": "auto"}'), ("pause", b""), ("resume", b"{}")):
        assert (await ask(state, path + verb, OPERATOR, method="POST", body=body))[0] == 200
    counts = [(order["count"]["verb"], order["count"]["replicas"], order["count"]["by"]) for order in orders]
    assert counts == [
        (verb, n, "hand, admin API") for verb, n in (("scale", 3), ("scale", None), ("pause", None), ("resume", None))
    ]
    found = await ask(state, "/admin/v1/models/org%2Fother/pause", OPERATOR, method="POST")
    assert (found, orders[-1]["count"]["model"]) == ((400, "bad_count"), "org/other")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"replicas": 0}', b'{"replicas": "two"}', b'{"replicas": 1.5}', b"\xff"]
)
async def test_numbers_that_cannot_be_reach_no_daemon(daemon: tuple[State, list[Any]], body: bytes) -> None:
    state, orders = daemon
    path = "/admin/v1/models/m/scale"
    assert await ask(state, path, OPERATOR, method="POST", body=body) == (400, "bad_count")
    assert await ask(state, path, OPERATOR) == (405, "method_not_allowed")
    for key in (VIEWER, KEYS["a"][0]):
        assert await ask(state, path, key, method="POST", body=b'{"replicas": 2}') == (403, "not_allowed")
    assert not orders
    assert await ask(State(), path, OPERATOR, method="POST", body=b'{"replicas": 2}') == (409, "no_fleet")


SAYS_IT = "import json, sys; print(json.dumps({'value': json.load(sys.stdin)}))"
"""A process that answers an order with the order."""


async def test_operator_starts_and_ends_models(tmp_path: Path) -> None:
    state = State()
    state.model_orders = ModelOrders(tmp_path, command=[sys.executable, "-c", SAYS_IT])
    body = b'{"source": "builtin:tiny", "replicas": 2, "by": "somebody else"}'
    started = {"order": "start", "source": "builtin:tiny", "replicas": 2, "by": "hand, admin API"}
    assert await ask(state, "/admin/v1/models", OPERATOR, method="POST", body=body) == (200, started)
    ended = {"order": "end", "model": "org/x"}
    assert await ask(state, "/admin/v1/models/org%2Fx", OPERATOR, method="DELETE") == (200, ended)


@pytest.mark.parametrize(
    ("method", "path", "key", "body", "told"),
    [
        ("POST", "models", OPERATOR, b"[]", (400, "bad_model")),
        ("POST", "models", OPERATOR, b"{", (400, "bad_model")),
        ("POST", "models", OPERATOR, b'{"source": "x"}', (409, "no_fleet")),
        ("DELETE", "models/m", OPERATOR, b"", (409, "no_fleet")),
        ("GET", "models", OPERATOR, b"", (405, "method_not_allowed")),
        ("POST", "models/m", OPERATOR, b"{}", (405, "method_not_allowed")),
        ("POST", "models", VIEWER, b"{}", (403, "not_allowed")),
        ("DELETE", "models/m", VIEWER, b"", (403, "not_allowed")),
        ("POST", "models", KEYS["a"][0], b"{}", (403, "not_allowed")),
        ("POST", "models", "", b"{}", (401, "admin_key_required")),
    ],
    ids=range(10),
)  # names of tests hold no secrets, which differ in each process
async def test_wrong_starts_and_ends_of_models_are_refused(
    method: str, path: str, key: str, body: bytes, told: tuple[int, str]
) -> None:
    assert await ask(State(), f"/admin/v1/{path}", key, method=method, body=body) == told


@pytest.mark.parametrize("path", STEER)
async def test_viewer_steers_nothing(path: str) -> None:
    state = State()
    assert await ask(state, path, VIEWER, method="POST") == (403, "not_allowed")
    assert not state.node.draining


async def test_requests_go_on_while_metrics_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on = threading.Event()
    monkeypatch.setattr(admin_api, "render", lambda snapshot: b"%d" % went_on.wait(20.0))
    asyncio.get_running_loop().call_later(0.01, went_on.set)
    assert await ask(State(), "/metrics", VIEWER) == (200, b"1")


async def test_operator_drains_and_ends_the_drain() -> None:
    state = State()
    assert await ask(state, "/admin/v1/drain", OPERATOR, method="POST") == (200, {"draining": True})
    assert state.node.draining
    assert await ask(state, "/admin/v1/undrain", OPERATOR, method="POST") == (200, {"draining": False})
    assert not state.node.draining


async def test_drain_by_get_is_refused() -> None:
    state = State()
    assert await ask(state, "/admin/v1/drain", OPERATOR) == (405, "method_not_allowed")
    assert not state.node.draining


async def test_key_may_come_as_x_api_key() -> None:
    assert (await ask(State(), "/admin/v1/state", x_api_key=VIEWER))[0] == 200


async def test_unknown_role_may_nothing() -> None:
    odd = AdminCredential(name="odd", role="emperor", sha256=VIEWER_RECORD.sha256)
    assert (await ask(State(admins=(odd,)), "/admin/v1/state", VIEWER))[0] in (401, 403)


# tenants


async def test_tenant_reads_its_own_requests_only() -> None:
    state, key = State(), KEYS["a"][0]
    status, document = await ask(state, "/admin/v1/requests/req-a", key)
    assert status == 200 and document["tenant"] == "a"
    assert await ask(state, "/admin/v1/requests/req-b", key) == (404, "request_not_found")
    assert await ask(state, "/admin/v1/requests/none", key) == (404, "request_not_found")
    status, document = await ask(state, "/admin/v1/requests", key)
    assert [row["id"] for row in document["requests"]] == ["req-a"]
    assert await ask(state, "/admin/v1/requests", key, query="tenant=b") == (404, "tenant_not_found")
    assert (await ask(state, "/admin/v1/requests", key, query="tenant=a"))[0] == 200


async def test_tenant_reads_its_own_usage_only() -> None:
    status, document = await ask(State(), "/admin/v1/usage", KEYS["b"][0])
    assert status == 200 and [row["tenant"] for row in document["days"]] == ["b"]
    assert document["limits"] == [{"tenant": "b", "kind": "tokens_per_day", "limit": 9, "used": 0, "left": 9}]
    _, whole = await ask(State(), "/admin/v1/usage", VIEWER)
    assert [limit["limit"] for limit in whole["limits"]] == [9, 9, 5]


@pytest.mark.parametrize("path", ["/admin/v1/state", "/metrics"])
@pytest.mark.parametrize("peer", [LOCAL, REMOTE])
async def test_tenant_sees_nothing_of_the_whole(path: str, peer: str) -> None:
    assert await ask(State(), path, KEYS["a"][0], peer=peer) == (403, "not_allowed")


async def test_tenant_steers_nothing() -> None:
    assert await ask(State(), "/admin/v1/drain", KEYS["a"][0], method="POST") == (403, "not_allowed")


# without keys


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.9.9.9"])
async def test_keyless_gateway_is_read_from_its_own_machine(peer: str) -> None:
    state = State(auth="none", admins=())
    assert [(await ask(state, path, peer=peer))[0] for path in READ] == [200] * len(READ)
    assert await ask(state, "/admin/v1/drain", method="POST", peer=peer) == (401, "admin_key_required")


@pytest.mark.parametrize("peer", [REMOTE, "", "nonsense", "::ffff:10.0.0.1", "fe80::1%eth0"])
async def test_keyless_gateway_shows_others_its_metrics_only(peer: str) -> None:
    state = State(auth="none", admins=())
    assert [(await ask(state, path, peer=peer))[0] for path in READ] == [401] * (len(READ) - 1) + [200]


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "10.0.0.5:80", socket.gethostname()])
async def test_own_machine_may_ask_by_address_or_by_its_own_name(host: str) -> None:
    state = State(auth="none", admins=())
    assert [(await ask(state, path, peer=LOCAL, host=host))[0] for path in READ] == [200] * len(READ)
    assert (await ask(State(), "/metrics", peer=LOCAL, host=host))[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "[", "[::1", "127.0.0.1.evil.example", "a:b:c"])
async def test_name_that_was_pointed_at_this_machine_opens_nothing(host: str) -> None:
    state = State(auth="none", admins=())
    assert [(await ask(state, path, peer=LOCAL, host=host))[0] for path in READ] == [401] * (len(READ) - 1) + [200]
    assert (await ask(State(), "/metrics", peer=LOCAL, host=host))[0] == 401


async def test_any_key_does_where_nobody_has_keys() -> None:
    assert (await ask(State(auth="none", admins=()), "/admin/v1/requests", "sk-whatever", peer=LOCAL))[0] == 200


async def test_admin_keys_close_a_gateway_without_tenant_keys() -> None:
    state = State(auth="none")
    assert (await ask(state, "/metrics"))[0] == (await ask(state, "/admin/v1/state", peer=LOCAL))[0] == 401
    assert (await ask(state, "/metrics", peer=LOCAL))[0] == (await ask(state, "/admin/v1/state", VIEWER))[0] == 200


async def test_metrics_are_open_to_the_own_machine_but_not_through_a_proxy() -> None:
    state = State()
    assert (await ask(state, "/metrics", peer=LOCAL))[0] == 200
    assert (await ask(state, "/metrics", "wrong", peer=LOCAL))[0] == 401
    assert (await ask(state, "/metrics", peer=LOCAL, x_forwarded_for="10.0.0.9"))[0] == 401
    assert (await ask(state, "/metrics", peer=LOCAL, forwarded="for=10.0.0.9"))[0] == 401
    assert (await ask(State(auth="none", admins=()), "/admin/v1/state", peer=LOCAL, forwarded="for=x"))[0] == 401


# what is answered


async def test_metrics_are_prometheus_text() -> None:
    status, body = await ask(State(), "/metrics", VIEWER)
    assert status == 200 and b"# TYPE longboat_gateway_requests_total counter" in body
    assert await ask(State(), "/metrics", VIEWER, method="DELETE") == (405, "method_not_allowed")


async def test_timeline_says_who_is_missing() -> None:
    state = State()
    state.node.missing = ["worker-1"]
    _, document = await ask(state, "/admin/v1/requests/req-b", VIEWER)
    assert document["missing"] == ["worker-1"] and document["events"][0]["event"] == "received"
    given = await answer(
        state, "GET", "/admin/v1/requests/x", "", {b"authorization": f"Bearer {VIEWER}".encode()}, REMOTE
    )
    assert isinstance(given, Refusal) and given.status == 404 and "worker-1" in given.message


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "99999999999999999999", "٣"])
async def test_silly_limit_is_refused(limit: str) -> None:
    assert await ask(State(), "/admin/v1/requests", VIEWER, query=f"limit={limit}") == (400, "bad_query")
    assert await ask(State(), "/admin/v1/usage", VIEWER, query=f"days={limit}") == (400, "bad_query")


@pytest.mark.parametrize("until", ["2026-1-2", "yesterday", "2026-01-02x"])
async def test_silly_day_is_refused(until: str) -> None:
    assert await ask(State(), "/admin/v1/usage", VIEWER, query=f"until={until}") == (400, "bad_query")


def test_days_that_one_process_left_out_are_left_out_of_all() -> None:
    """A file that the processes share may have had another row when the next one read it."""
    row = {"tenant": "a", "model": "m", "currency": "", "requests": 1}
    one = {"days": [{**row, "day": "2026-01-02"}], "older": "2026-01-01", "limits": [], "shared": True}
    other = {"days": [{**row, "day": f"2026-01-0{day}"} for day in (1, 2)], "older": None, "limits": [], "shared": True}
    joined = UsageQuery().joined([one, other])
    assert (joined["days"], joined["older"]) == (one["days"], "2026-01-01")


def test_usage_of_processes_without_a_common_file_is_added_by_currency() -> None:
    row = {"day": "2026-01-02", "tenant": "a", "model": "m"}
    replies = [
        {"days": [{**row, "currency": unit, "cost_nanos": nanos}], "limits": [], "shared": False}
        for unit, nanos in (("EUR", 1), ("USD", 2), ("EUR", 4))
    ]
    days = UsageQuery().joined(replies)["days"]
    assert [(day["currency"], day["cost_nanos"]) for day in days] == [("EUR", 5), ("USD", 2)]


async def test_admin_chooses_tenant_and_limit() -> None:
    status, document = await ask(State(), "/admin/v1/requests", VIEWER, query="tenant=b&limit=7")
    assert status == 200 and [row["id"] for row in document["requests"]] == ["req-b"]


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/v1/", "/admin/v1/requests/", "/admin/v1/requests/a/b"])
async def test_unknown_admin_path_is_404(path: str) -> None:
    assert is_admin_path(path)
    assert await ask(State(), path, VIEWER) == (404, "unknown_url")


def test_other_paths_are_none_of_the_admin_api() -> None:
    assert not any(is_admin_path(path) for path in ("/v1/models", "/administrator", "/metricsx", "/"))


async def test_parent_that_does_not_answer_is_503() -> None:
    state = State()
    state.node.gone = True
    assert await ask(state, "/admin/v1/drain", OPERATOR, method="POST") == (503, "gateway_parent")


TARGETS = "/admin/v1/prometheus-targets"


class Tabled(Table):
    """A table with two engines, as the controller pushed it."""

    table = EndpointTable(
        version=1,
        models=("m",),
        endpoints=(
            Endpoint(model="m", replica="r2", generation=1, url="http://10.0.0.6:9001", api_key="secret"),
            Endpoint(model="m", replica="r1", generation=1, url="http://10.0.0.5:9001", api_key="secret"),
        ),
    )


async def test_prometheus_gets_the_engines_without_their_keys() -> None:
    state = State()
    state.table = Tabled()
    status, body = await ask(state, TARGETS, VIEWER, query="of=engines")
    assert (status, b"secret" in body) == (200, False)
    labels = {"__scheme__": "http", "__metrics_path__": "/metrics", "model": "m"}
    assert json.loads(body) == [
        {"targets": ["10.0.0.5:9001"], "labels": {**labels, "replica": "r1"}},
        {"targets": ["10.0.0.6:9001"], "labels": {**labels, "replica": "r2"}},
    ]


async def test_prometheus_gets_the_gateways_of_all_nodes(tmp_path: Path) -> None:
    rows = [
        {"node_id": "b", "hostname": "two", "url": "https://10.0.0.6:8000"},
        {"node_id": "a", "hostname": "one", "url": "http://10.0.0.5:8000"},
        {"node_id": "c", "hostname": "three", "url": ""},
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert json.loads(await reader.readline()) == {"ask": "gateways", "args": []}
        writer.write(json.dumps({"value": rows} if rows else {"error": "away", "hint": ""}).encode())
        await writer.drain()
        writer.close()

    state = State()
    state.config = state.config.replaced(daemon_socket=str(tmp_path / "d.sock"), fleet="f")
    assert await ask(state, TARGETS, VIEWER) == (503, "fleet_away")
    async with await asyncio.start_unix_server(serve, tmp_path / "d.sock"):
        status, body = await ask(state, TARGETS, VIEWER)
        groups = json.loads(body)
        rows.clear()
        away = await ask(state, TARGETS, VIEWER)
    assert status == 200
    assert [(group["targets"], group["labels"]["hostname"]) for group in groups] == [
        (["10.0.0.5:8000"], "one"),
        (["10.0.0.6:8000"], "two"),
    ]
    assert [group["labels"]["__scheme__"] for group in groups] == ["http", "https"]
    assert away == (503, "fleet_away")


async def test_gateway_by_itself_lists_itself() -> None:
    status, body = await ask(State(), TARGETS, VIEWER, host="gate.example:8000")
    labels = {"__scheme__": "http", "__metrics_path__": "/metrics"}
    assert (status, json.loads(body)) == (200, [{"targets": ["gate.example:8000"], "labels": labels}])
    assert await ask(State(), TARGETS, VIEWER, query="of=cats") == (400, "bad_query")


@pytest.mark.parametrize("host", ["h:abc", "h:70000", "[::1"], ids=["port", "large", "bracket"])
async def test_address_that_is_no_target_is_refused(host: str) -> None:
    assert await ask(State(), TARGETS, VIEWER, host=host) == (400, "bad_query")


async def test_targets_are_for_admins(tmp_path: Path) -> None:
    assert await ask(State(), TARGETS) == (401, "admin_key_required")
    assert await ask(State(), TARGETS, KEYS["a"][0]) == (403, "not_allowed")
    assert await ask(State(), TARGETS, VIEWER, method="POST") == (405, "method_not_allowed")
