"""The admin API: who may ask, what is answered, and that nobody reads another tenant's requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from test_recent import record

from longboat.core.errors import ClusterError
from longboat.core.policy import AdapterRights, AdminCredential, Policy, TenantPolicy
from longboat.gateway.admin.admin_api import AdminAnswer, answer, is_admin_path
from longboat.gateway.admin.node_query import MetricsQuery, NodeQuery, UsageQuery
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.keys import KeyRing, new_admin_key, new_key
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
        self.draining = False
        self.gone = False
        self.missing: list[str] = []

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        match query:
            case MetricsQuery():
                return Metrics().snapshot()
            case UsageQuery():
                days = [{"day": "2026-01-02", "tenant": tenant, "model": "m", "requests": 1} for tenant in "ab"]
                return {"days": days, "missing": []}
        return {**query.local(self), "missing": self.missing}

    async def report(self) -> dict[str, Any]:
        return {"pid": 1, "draining": self.draining}

    async def drain(self) -> None:
        if self.gone:
            raise ClusterError("gone")
        self.draining = True

    async def undrain(self) -> None:
        self.draining = False


class Live:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.keys = KeyRing(policy)


class Served(NamedTuple):
    """A replica as the table has it."""

    key: str
    adapters: dict[str, str]


class Table:
    def endpoints(self, model: str) -> tuple[Served, ...]:
        replicas = (Served("r1", {"legal": "v1"}), Served("r2", {"legal": "v2"}), Served("r3", {}))
        return tuple(replica for replica in replicas if model in replica.adapters)


class State:
    table = Table()

    def __init__(self, *, auth: str = "keys", admins: tuple[AdminCredential, ...] = ADMINS) -> None:
        tenants = tuple(TenantPolicy(name=name) for name in KEYS)
        keys = tuple(entry for _, entry in KEYS.values())
        adapters = (AdapterRights(name="legal", model="m", tenants=("a",)), AdapterRights(name="new", model="m"))
        self.live = Live(Policy(auth=auth, tenants=tenants, keys=keys, admins=admins, adapters=adapters))
        self.node = FakeNode()


async def ask(
    state: State, path: str, key: str = "", *, method: str = "GET", query: str = "", peer: str = REMOTE, **headers: str
) -> tuple[int, Any]:
    """Status, and the document or the code of the error."""
    noted = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    if key:
        noted[b"authorization"] = f"Bearer {key}".encode()
    given = await answer(state, method, path, query, noted, peer)
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


@pytest.mark.parametrize("path", STEER)
async def test_viewer_steers_nothing(path: str) -> None:
    state = State()
    assert await ask(state, path, VIEWER, method="POST") == (403, "not_allowed")
    assert not state.node.draining


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
