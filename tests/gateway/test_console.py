"""The console over HTTP: signing in and out, roles, forged requests, security headers, documents, chats."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from console_client import API, Browser, signed_in
from console_lab import HOSTILE, fleet_view, lab_policy
from gateway_lab import endpoint, push_policy
from test_recent import record

from longboat.cli.look.browser_console import address_here
from longboat.core.policy import Policy, TenantPolicy
from longboat.core.states import EndpointTable
from longboat.gateway.config import GatewayConfig
from longboat.gateway.console.documents import tenants_document, traffic_document
from longboat.gateway.console.failures import Failures
from longboat.gateway.console.sessions import LIFE_S, Sessions, cookie_of, cookie_value
from longboat.gateway.process.server import Gateway

MORE = ("plan", "make-key", "revoke-key", "add-adapter", "remove-adapter")
TENANTS = ("a", "b", HOSTILE)


@pytest.fixture
async def policy_and_keys() -> tuple[Policy, dict[str, str]]:
    return lab_policy(TENANTS)


@pytest.fixture
async def gateway(make_gateway: Any, make_upstream: Any, policy_and_keys: Any) -> AsyncIterator[Gateway]:
    upstream = await make_upstream()
    made: Gateway = await make_gateway(upstream, policy=policy_and_keys[0])
    made.state.recent.add(record("req-a", "a"))
    made.state.recent.add(record("req-b", "b", model=HOSTILE))
    yield made


@pytest.fixture
def keys(policy_and_keys: Any) -> dict[str, str]:
    found: dict[str, str] = policy_and_keys[1]
    return found


# the page


@pytest.mark.parametrize(
    "path", ["/console", "/console/", "/console/fleet", "/console/requests/req-1", "/console/none"]
)
async def test_page_has_no_inline_script_and_strict_headers(gateway: Gateway, path: str) -> None:
    answer = await Browser(gateway).get(path)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"] == "no-referrer"
    text = answer.body.decode()
    assert "<style" not in text and "onload=" not in text and "http://" not in text and "https://" not in text
    assert text.count("<script") == text.count('<script type="module" src="/console/assets/') == 1


async def test_every_file_of_the_page_is_served_and_known_again(gateway: Gateway) -> None:
    names = {path.name for path in (Path(__file__).parents[2] / "src/longboat/gateway/console/assets").iterdir()}
    assert {"main.js", "console.css", "longboat.svg"} <= names
    for name in names - {"index.html"}:
        answer = await Browser(gateway).get(f"/console/assets/{name}")
        assert answer.status == 200 and "content-security-policy" in answer.headers
        again = await Browser(gateway).get(f"/console/assets/{name}", f"if-none-match: {answer.headers['etag']}\r\n")
        assert again.status == 304 and again.body == b""


@pytest.mark.parametrize("path", ["../console.py", "..%2fconsole.py", "index.html", "none.js", "", "a/b.js"])
async def test_no_other_file_can_be_read(gateway: Gateway, path: str) -> None:
    assert (await Browser(gateway).get(f"/console/assets/{path}")).status == 404


async def test_page_takes_no_other_method(gateway: Gateway) -> None:
    assert (await Browser(gateway).post("/console")).status == 405


# signing in and out


async def test_cookie_is_closed_to_scripts_and_other_sites(gateway: Gateway, keys: dict[str, str]) -> None:
    answer = await Browser(gateway).sign_in(keys["viewer"])
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/console" in cookie
    assert keys["viewer"] not in cookie and keys["viewer"].encode() not in answer.body
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "body", [{"key": "wrong"}, {"key": ""}, {"key": 7}, {}, {"key": "é\ud800"}, {"key": "x" * 9000}]
)
async def test_wrong_key_opens_nothing(gateway: Gateway, body: Any) -> None:
    browser = Browser(gateway)
    answer = await browser.post(API + "sign-in", body)
    assert (answer.status, answer.code) == (401, "invalid_key") and "set-cookie" not in answer.headers
    assert (await browser.get(API + "session")).json()["signed_in"] is False
    assert "content-security-policy" in answer.headers


async def test_keys_cannot_be_guessed_quickly(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = Browser(gateway)
    statuses = [(await browser.post(API + "sign-in", {"key": f"guess{n}"})).status for n in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert (await browser.sign_in(keys["viewer"])).status == 429


def test_failures_are_forgotten_after_a_minute() -> None:
    failures = Failures(None, b"secret")
    for _ in range(10):
        failures.note("10.0.0.1", 100.0)
    assert failures.pause_s("10.0.0.1", 110.0) == 50 and failures.pause_s("10.0.0.2", 110.0) == 0
    assert failures.pause_s("10.0.0.1", 161.0) == 0
    assert failures.pause_s("10.0.0.1", 20.0) == 0  # the clock went back


def test_failures_count_for_all_processes_of_a_node(tmp_path: Path) -> None:
    path = tmp_path / "run" / "console-failures"
    processes = [Failures(path, b"secret") for _ in range(4)]
    for number in range(10):
        assert [process.pause_s("10.0.0.1", 100.0) for process in processes] == [0] * 4
        processes[number % 4].note("10.0.0.1", 100.0)
    assert [process.pause_s("10.0.0.1", 110.0) for process in processes] == [50] * 4
    assert processes[0].pause_s("10.0.0.2", 110.0) == 0
    for number in range(10_000):
        processes[0].note(f"10.1.{number}", 110.0)
    assert path.stat().st_size < 100_000


def test_failures_without_a_place_on_the_disk_are_counted_in_the_process(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    failures = Failures(tmp_path / "run" / "console-failures", b"secret")
    for _ in range(10):
        failures.note("10.0.0.1", 100.0)
    assert failures.pause_s("10.0.0.1", 110.0) == 50


@pytest.mark.parametrize("path", ["live/fleet", "live/models", "live/requests", "request/req-a", "live/usage"])
async def test_without_a_session_nothing_is_shown(gateway: Gateway, path: str) -> None:
    browser = Browser(gateway)
    assert (await browser.get(API + path)).code == "sign_in"
    browser.cookie = "longboat_console_0=" + "A" * 300
    assert (await browser.get(API + path)).code == "sign_in"


async def test_sign_out_ends_the_session_itself(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = await signed_in(gateway, keys["operator"])
    answer = await browser.post(API + "sign-out")
    assert answer.status == 200 and "Max-Age=0" in answer.headers["set-cookie"]
    assert (await browser.get(API + "live/models")).status == 401  # the old cookie is sent, and is no longer taken


async def test_sign_out_that_cannot_be_stored_takes_the_cookie_away(
    gateway: Gateway, keys: dict[str, str], tmp_path: Path
) -> None:
    browser = await signed_in(gateway, keys["operator"])
    (tmp_path / "console-sessions.lock").mkdir()
    gateway.state.console.sessions._path = tmp_path / "console-sessions"
    gateway.state.console.sessions._path.parent.chmod(0o600)
    answer = await browser.post(API + "sign-out")
    assert answer.status == 200 and "Max-Age=0" in answer.headers["set-cookie"]


def test_gateways_of_one_host_have_cookies_of_their_own() -> None:
    noted = {b"cookie": b"longboat_console_1=one; longboat_console_2=two"}
    assert [cookie_value(cookie_of(port), noted) for port in (1, 2, 3)] == ["one", "two", ""]


async def test_revoked_key_ends_its_sessions(gateway: Gateway, keys: dict[str, str], policy_and_keys: Any) -> None:
    admin, tenant = await signed_in(gateway, keys["viewer"]), await signed_in(gateway, keys["a"])
    push_policy(gateway, dataclasses.replace(policy_and_keys[0], admins=(), keys=policy_and_keys[0].keys[1:]))
    assert (await admin.get(API + "live/models")).status == (await tenant.get(API + "live/models")).status == 401


async def test_role_follows_the_policy_of_now(gateway: Gateway, keys: dict[str, str], policy_and_keys: Any) -> None:
    browser = await signed_in(gateway, keys["operator"])
    policy = policy_and_keys[0]
    admins = tuple(dataclasses.replace(admin, role="viewer") for admin in policy.admins)
    push_policy(gateway, dataclasses.replace(policy, admins=admins))
    assert (await browser.post(API + "drain")).code == "not_allowed" and not gateway.state.draining


def sessions_of(policy: Policy, folder: Path | None = None) -> tuple[Sessions, str]:
    sessions = Sessions("t", str(folder / "control.sock") if folder else "")
    return sessions, sessions.begin("admin", policy.admins[0], 1000.0)


def test_cookie_is_good_for_its_time_only_and_cannot_be_changed(policy_and_keys: Any) -> None:
    policy = policy_and_keys[0]
    sessions, cookie = sessions_of(policy)
    assert sessions.find(cookie, policy, 1001.0) is not None
    assert sessions.find(cookie, policy, 1000.0 + LIFE_S) is None and sessions.find(cookie, policy, 100.0) is None
    payload, _, mac = cookie.partition(".")
    for wrong in ("", ".", mac, f"{payload}.", f"{payload}.{mac[:-1]}", f"{payload[:-2]}AA.{mac}", f"{payload}.{mac}x"):
        assert sessions.find(wrong, policy, 1001.0) is None
    assert Sessions("other", "").find(cookie, policy, 1001.0) is None  # another node's
    replaced = dataclasses.replace(policy.admins[0], sha256="0" * 64)
    assert sessions.find(cookie, dataclasses.replace(policy, admins=(replaced,)), 1001.0) is None


def test_processes_of_a_node_take_each_others_cookies_until_one_signs_out(policy_and_keys: Any, tmp_path: Path) -> None:
    policy = policy_and_keys[0]
    one, cookie = sessions_of(policy, tmp_path)
    two, _ = sessions_of(policy, tmp_path)
    kept = one.begin("admin", policy.admins[0], 1000.0)
    found = two.find(cookie, policy, 1001.0)
    assert found is not None
    two.end(found[0], 1001.0)
    three, _ = sessions_of(policy, tmp_path)  # a process that started later
    assert [each.find(cookie, policy, 1002.0) for each in (one, two, three)] == [None] * 3
    assert all(each.find(kept, policy, 1002.0) for each in (one, two, three))
    assert (tmp_path / "console-sessions").stat().st_mode & 0o077 == 0


def test_list_of_ended_sessions_stays_short_and_never_revives_one(policy_and_keys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("longboat.gateway.console.sessions._MAX_ENDED", 10)
    policy = policy_and_keys[0]
    sessions, _ = sessions_of(policy)
    cookies = [sessions.begin("admin", policy.admins[0], 1000.0 + n) for n in range(40)]
    for cookie in cookies:
        found = sessions.find(cookie, policy, 1100.0)
        assert found is not None
        sessions.end(found[0], 1100.0)
    assert not any(sessions.find(cookie, policy, 1100.0) for cookie in cookies) and len(sessions._ended.ids) <= 10


# forged requests


@pytest.mark.parametrize(
    "headers",
    ["", "x-csrf-token: wrong\r\n", "GOOD\r\nsec-fetch-site: cross-site\r\n", "GOOD\r\norigin: http://evil.test\r\n"],
)
@pytest.mark.parametrize("path", ["drain", "sign-out", "chat", "scale", "pause", "resume", *MORE])
async def test_forged_changes_are_refused(gateway: Gateway, keys: dict[str, str], path: str, headers: str) -> None:
    browser = await signed_in(gateway, keys["operator"])
    answer = await browser.post(API + path, {}, headers.replace("GOOD", f"x-csrf-token: {browser.csrf}"))
    assert answer.status == 403 and answer.code in ("csrf", "other_origin")
    assert not gateway.state.draining and (await browser.get(API + "live/models")).status == 200


async def test_token_of_another_session_is_refused(gateway: Gateway, keys: dict[str, str]) -> None:
    one, two = await signed_in(gateway, keys["operator"]), await signed_in(gateway, keys["operator"])
    one.csrf = two.csrf
    assert (await one.post(API + "drain")).code == "csrf"


@pytest.mark.parametrize("path", ["drain", "undrain", "sign-out", "chat", "sign-in", "scale", "pause", "resume", *MORE])
async def test_changes_are_posts(gateway: Gateway, keys: dict[str, str], path: str) -> None:
    browser = await signed_in(gateway, keys["operator"])
    assert (await browser.get(API + path)).status == 405


@pytest.mark.parametrize("origin", ["http://evil.test", "http://[", "http://x.evil.test", "null", "x"])
async def test_other_site_cannot_sign_a_browser_in(gateway: Gateway, keys: dict[str, str], origin: str) -> None:
    answer = await Browser(gateway).post(API + "sign-in", {"key": keys["viewer"]}, f"origin: {origin}\r\n")
    assert answer.code == "other_origin" and "set-cookie" not in answer.headers


# roles


async def test_operator_scales_and_viewer_does_not(gateway: Gateway, keys: dict[str, str]) -> None:
    viewer, operator = await signed_in(gateway, keys["viewer"]), await signed_in(gateway, keys["operator"])
    assert (await viewer.post(API + "scale?model=m", {"replicas": 2})).code == "not_allowed"
    assert (await operator.post(API + "scale?model=m", {"replicas": 0})).code == "bad_count"
    assert (await operator.post(API + "scale?model=m", {"replicas": 2})).code == "no_fleet"


async def test_operator_drains_and_viewer_does_not(gateway: Gateway, keys: dict[str, str]) -> None:
    viewer, operator = await signed_in(gateway, keys["viewer"]), await signed_in(gateway, keys["operator"])
    assert (await viewer.post(API + "drain")).code == "not_allowed" and not gateway.state.draining
    assert (await operator.post(API + "drain")).json() == {"draining": True} and gateway.state.draining
    assert (await operator.post(API + "undrain")).json() == {"draining": False} and not gateway.state.draining


async def test_tenant_sees_only_its_own(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = await signed_in(gateway, keys["a"])
    assert (await browser.get(API + "live/fleet")).code == "not_allowed"
    requests = (await browser.live("requests"))["data"]["requests"]
    assert [row["id"] for row in requests] == ["req-a"]
    assert (await browser.get(API + "request/req-a")).status == 200
    assert (await browser.get(API + "request/req-b")).code == "request_not_found"
    tenants = (await browser.live("tenants"))["data"]
    assert [row["name"] for row in tenants["tenants"]] == ["a"] and tenants["admins"] == []
    assert (await browser.live("models"))["data"]["models"][0]["replicas"] == []
    traffic = (await browser.live("traffic"))["data"]
    assert traffic["processes"] == traffic["refusals"] == []
    assert (await browser.post(API + "drain")).code == "not_allowed"


async def test_keys_are_listed_without_what_opens_anything(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = await signed_in(gateway, keys["viewer"])
    answer = await browser.get(API + "live/tenants")
    assert len(answer.json()["data"]["tenants"]) == 3
    policy = gateway.state.live.policy
    for secret in (*keys.values(), *(entry.sha256 for entry in (*policy.keys, *policy.admins))):
        assert secret.encode() not in answer.body


async def test_gateway_without_keys_is_open_on_its_own_machine(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(await make_upstream())
    browser = Browser(gateway)
    for browser.host in ("evil.example", "[", "[::1"):  # names that were pointed at this machine, or are none
        assert (await browser.get(API + "session")).json()["signed_in"] is False
    browser.host = "127.0.0.1:8000"
    session = (await browser.get(API + "session")).json()
    assert session["signed_in"] and session["role"] == "viewer" and session["keyless"]
    assert (await browser.get(API + "live/models")).status == 200
    proxied = (await browser.get(API + "session", "x-forwarded-for: 10.0.0.9\r\n")).json()
    assert proxied["signed_in"] is False


async def test_command_names_the_address_that_a_gateway_without_keys_trusts(
    make_gateway: Any, make_upstream: Any, policy_and_keys: Any
) -> None:
    keyless = await make_gateway(await make_upstream(), settings={"node": "n1"})
    keyed = await make_gateway(await make_upstream(), settings={"node": "n1"}, policy=policy_and_keys[0])
    own, with_keys = (f"http://10.0.0.5:{gateway.port}" for gateway in (keyless, keyed))
    assert await asyncio.to_thread(address_here, own, "n1") == f"http://127.0.0.1:{keyless.port}"
    assert await asyncio.to_thread(address_here, own, "n2") == own  # another node's gateway
    assert await asyncio.to_thread(address_here, with_keys, "n1") == with_keys
    assert await asyncio.to_thread(address_here, "http://10.0.0.5:1", "n1") == "http://10.0.0.5:1"


# documents


async def test_unchanged_document_is_not_sent_again(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = await signed_in(gateway, keys["viewer"])
    first = await browser.live("models")
    assert await browser.live("models", first["tag"]) == {"tag": first["tag"], "same": True}


async def test_ten_viewers_cost_one_question(gateway: Gateway, keys: dict[str, str], monkeypatch: Any) -> None:
    asked: list[str] = []
    ask = gateway.state.node.ask

    async def counted(query: Any) -> Any:
        asked.append(type(query).__name__)
        return await ask(query)

    monkeypatch.setattr(gateway.state.node, "ask", counted)
    browsers = [await signed_in(gateway, keys["viewer"]) for _ in range(2)]
    await asyncio.gather(*(browser.live("requests") for browser in browsers * 5))
    assert asked.count("RecentQuery") <= 2  # the test may cross a second


async def test_fleet_is_watched_only_while_a_page_shows_it(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = await signed_in(gateway, keys["viewer"])
    await browser.live("models")
    assert not (await gateway.steering.report())["watched"]
    await gateway.steering.offer_view(json.dumps(fleet_view()).encode())
    data = (await browser.live("fleet"))["data"]
    assert (await gateway.steering.report())["watched"]
    assert data["view_age_s"] == 0
    assert gateway.state.console.view_age_s(gateway.state.clock.monotonic_s() + 60) == 60
    assert len(data["view"]["replicas"]) == 9 and data["gateway"]["ready"] == 1


async def test_hostile_names_are_json_strings(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = await signed_in(gateway, keys["viewer"])
    answer = await browser.get(API + "live/requests")
    assert answer.headers["content-type"] == "application/json"
    assert HOSTILE in [row["model"] for row in answer.json()["data"]["requests"]]


async def test_timeline_has_the_decision(gateway: Gateway, keys: dict[str, str]) -> None:
    browser = await signed_in(gateway, keys["viewer"])
    found = (await browser.get(API + "request/req-a")).json()
    assert found["routing"]["reason"] == "rule 2" and found["events"][0]["event"] == "received"
    assert (await browser.get(API + "request/" + "x" * 300)).code == "request_not_found"
    assert (await browser.get(API + "live/nothing")).status == 404


def test_view_of_a_large_fleet_is_compact() -> None:
    view = fleet_view(64, 200)
    began = time.perf_counter()
    text = json.dumps(view)
    assert len(view["nodes"]) == 64 and len(view["replicas"]) == 200 and len(text) < 250_000
    assert time.perf_counter() - began < 5.0


def test_tenant_named_other_sees_nothing_of_the_tenants_beyond_the_bound() -> None:
    counts = {name: 1 for name in ("in_flight", "waiting", "retries", "prompt_tokens", "completion_tokens")}
    item = {**counts, "cached_tokens": 0, "outcomes": {"ok": 1}, "ttft": [1], "itl": [1], "queue": [1]}
    series = [{**item, "model": "m", "tenant": tenant} for tenant in ("a", "other")]
    metrics = {"series": series, "missing": ["worker 2"]}
    policy = Policy(tenants=(TenantPolicy(name="other"), TenantPolicy(name="a")))
    document = tenants_document(policy, metrics, None)
    assert {row["name"]: row["in_flight"] for row in document["tenants"]} == {"other": 0, "a": 1}
    traffic = traffic_document(metrics, "other", 1.0)
    assert (traffic["models"], traffic["tenants"]) == ([], [])
    assert traffic["missing"] == document["missing"] == ["worker 2"]


# the page's own arithmetic

LOOKS = """
import { lastOf, pointsOf, take } from "./history.js";
const times = (scale) => [10 * scale, 0, scale];
const row = (scale) => ({ name: "m", outcomes: { ok: 10 * scale }, in_flight: 1, waiting: 0, ttft: times(scale),
  completion_tokens: 100 * scale, prompt_tokens: 50 * scale, itl: times(scale), queue: times(scale) });
const bounds = { ttft: [1], itl: [1], queue: [1] };
const look = (at_s, scale, missing = []) => take({ at_s, bounds, missing, models: [row(scale)], tenants: [] });
look(2, 8000); look(4, 8001); look(6, 1000, ["the others"]); look(8, 8003); look(10, 8004);
look(12, 900); look(14, 901);
console.log(JSON.stringify(pointsOf("", "").map((point) => [point[0], point[2]])));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_plots_have_no_peak_after_an_incomplete_look_or_a_restart(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    shutil.copytree(Path(__file__).parents[2] / "src/longboat/gateway/console/assets", assets)
    (assets / "package.json").write_text('{"type": "module"}')
    (assets / "looks.js").write_text(LOOKS)
    done = subprocess.run(["node", "looks.js"], cwd=assets, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [[4, 50], [10, 50], [14, 50]]


# the playground


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "row"}]}


async def test_chat_runs_for_the_tenant_and_the_engine_sees_no_browser(
    make_gateway: Any, make_upstream: Any, policy_and_keys: Any, keys: dict[str, str]
) -> None:
    upstream = await make_upstream()
    gateway = await make_gateway(upstream, policy=policy_and_keys[0])
    tenant = await signed_in(gateway, keys["b"])
    answer = await tenant.post(API + "chat", CHAT)
    assert answer.status == 200
    operator = await signed_in(gateway, keys["operator"])
    assert (await operator.post(API + "chat?tenant=a", CHAT)).status == 200
    assert (await operator.post(API + "chat?tenant=none", CHAT)).code == "tenant_not_found"
    viewer = await signed_in(gateway, keys["viewer"])
    assert (await viewer.post(API + "chat?tenant=a", CHAT)).code == "not_allowed"
    gateway.state.accounting.flush()
    assert {row.tenant for row in gateway.state.recent.newest()} >= {"a", "b"}
    for seen in upstream.seen:
        head = seen.head.decode().lower()
        assert "/v1/chat/completions" in head and "cookie" not in head and "csrf" not in head


async def test_chat_obeys_the_tenants_rights(
    make_gateway: Any, make_upstream: Any, policy_and_keys: Any, keys: dict[str, str]
) -> None:
    policy = policy_and_keys[0]
    tenants = (dataclasses.replace(policy.tenants[0], models=("other",)), *policy.tenants[1:])
    gateway = await make_gateway(await make_upstream(), policy=dataclasses.replace(policy, tenants=tenants))
    browser = await signed_in(gateway, keys["a"])
    assert (await browser.post(API + "chat", CHAT)).code == "model_not_allowed"
    assert (await browser.live("models"))["data"]["models"] == []


# several processes


def test_worker_keeps_its_list_beside_the_parents_socket(tmp_path: Path, policy_and_keys: Any) -> None:
    from longboat.gateway.console.console import Console

    socket = str(tmp_path / "control.sock")
    parent = GatewayConfig(port=0, control_socket=socket, control_token="t")
    workers = [parent.replaced(control_socket=f"{socket}.{n}", parent_socket=socket) for n in range(2)]
    consoles = [Console(worker) for worker in workers]
    policy = policy_and_keys[0]
    cookie = consoles[0].sessions.begin("admin", policy.admins[0], time.time())
    found = consoles[1].sessions.find(cookie, policy, time.time())
    assert found is not None
    consoles[1].sessions.end(found[0], time.time())
    assert consoles[0].sessions.find(cookie, policy, time.time()) is None


async def test_view_of_the_table_without_a_controller(gateway: Gateway, keys: dict[str, str]) -> None:
    gateway.state.offer_table(
        "e",
        EndpointTable(version=2, models=("tiny", "big"), endpoints=(endpoint("http://127.0.0.1:9", "r9", "big"),)),
    )
    browser = await signed_in(gateway, keys["viewer"])
    rows = {row["name"]: row for row in (await browser.live("models"))["data"]["models"]}
    assert rows["big"]["replicas"][0]["replica"] == "r9" and rows["tiny"]["replicas"] == []
    assert (await browser.live("fleet"))["data"]["view"] is None
