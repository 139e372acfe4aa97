"""Several processes on one port: each tells the same, and one that is away or replaced costs no answer."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_upstream import DEADLINE_S
from gateway_lab import RawClient, Response, config, endpoint, eventually, keyed, table
from prometheus_client.parser import text_string_to_metric_families
from test_beats import Gang
from test_gateway_process import ASK, Running, Start, came_true, start

from longboat.core.external import NANOS, Price
from longboat.core.policy import AdminCredential, Policy, TenantPolicy
from longboat.gateway.admin.control_client import GatewayControl
from longboat.gateway.admin.node_query import MetricsQuery, TimelineQuery
from longboat.gateway.config import GatewayLimits
from longboat.gateway.limits.keys import new_admin_key, new_key
from longboat.gateway.process.workers import WorkerParent, _reserve
from longboat.gateway.records.usage_store import UsageStore
from longboat.gateway.upstreams.heartbeat_monitor import follow_beats
from longboat.gateway.upstreams.table import LiveTable
from longboat.routing.health.liveness import Life

__all__ = ("start",)  # the fixture

KEY, KEY_RECORD = new_key("a", now_s=0.0)
OPERATOR, OPERATOR_RECORD = new_admin_key("hand", "operator")


def policy(*admins: AdminCredential) -> Policy:
    return Policy(auth="keys", tenants=(TenantPolicy(name="a"),), keys=(KEY_RECORD,), admins=admins)


async def fresh(running: Running, request: bytes) -> Response:
    """Over a connection of its own, which any of the workers may have taken."""
    client = await RawClient.to(running.port)
    client.send(request)
    response = await client.response()
    client.abort()
    return response


def get(path: str, key: str = "", method: str = "GET") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n"
    return (head + (f"authorization: Bearer {key}\r\n" if key else "") + "\r\n").encode()


async def served(start_: Start, make_upstream: Any, *, requests: int, **changes: Any) -> Running:
    running = await start_(processes=2, **changes)
    await running.control.put_table("e", table(endpoint(await make_upstream())))
    for number in range(requests):
        client = await RawClient.to(running.port)
        assert (await client.post(ASK, headers=f"x-request-id: id-{number}\r\n")).status == 200
        client.abort()
    return running


def counted(text: bytes, name: str = "requests_total") -> float:
    families = text_string_to_metric_families(text.decode())
    return sum(s.value for f in families for s in f.samples if s.name == f"longboat_gateway_{name}")


async def test_every_worker_tells_the_metrics_of_all(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=20)
    for _ in range(12):
        response = await fresh(running, get("/metrics"))
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert counted(response.body) == 20
        for process in ("worker-0", "worker-1", "parent"):
            assert f'cpu_seconds_total{{process="{process}"}}'.encode() in response.body


async def test_every_worker_finds_a_request_of_any_other(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=4)
    for number in range(4):
        for _ in range(6):
            document = (await fresh(running, get(f"/admin/v1/requests/id-{number}"))).json()
            assert [e["event"] for e in document["events"]][-2:] == ["first_byte", "ended"]
    listed = (await fresh(running, get("/admin/v1/requests?limit=3"))).json()
    assert [row["id"] for row in listed["requests"]] == ["id-3", "id-2", "id-1"]
    assert (await fresh(running, get("/admin/v1/requests/none"))).status == 404


async def test_worker_that_hangs_is_named_and_waited_for_a_second(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=20)
    before = await running.control.ask(MetricsQuery())
    hung = (await running.control.state())["processes"][0]
    os.kill(hung, signal.SIGSTOP)
    try:
        begun_s = time.monotonic()
        after, state, found = await asyncio.gather(
            running.control.ask(MetricsQuery()), running.control.state(), running.control.ask(TimelineQuery("none"))
        )
        assert time.monotonic() - begun_s < DEADLINE_S
        assert after["missing"] == state["missing"] == found["missing"] == ["worker-0"]
        assert [item["outcomes"] for item in after["series"]] == [item["outcomes"] for item in before["series"]]
    finally:
        os.kill(hung, signal.SIGCONT)


async def test_state_of_several_workers_tells_what_is_ready_and_lost(start: Start, make_upstream: Any) -> None:
    gang = Gang()
    await gang.door.open()
    try:
        running = await start(processes=2)
        good, bad = endpoint(await make_upstream()), endpoint(await make_upstream(), "r2", beats=gang.address)
        await running.control.put_table("e", table(good, bad))
        assert (await running.control.state())["ready"] == 2
        gang.lives[1] = Life.ENDED
        await came_true(lambda: _is_lost(running, bad.key))
    finally:
        gang.door.close()


async def _is_lost(running: Running, key: str) -> bool:
    state = await running.control.state()
    return (state["ready"], list(state["lost"])) == (1, [key])


async def test_counters_never_go_back(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=20)
    await running.control.ask(MetricsQuery())
    old = (await running.control.state())["processes"]
    os.kill(old[0], signal.SIGKILL)
    await came_true(lambda: _all_answer(running, without=old[0]))
    assert sum(item["outcomes"]["ok"] for item in (await running.control.ask(MetricsQuery()))["series"]) == 20
    assert counted((await fresh(running, get("/metrics"))).body) == 20


async def test_policy_reaches_every_worker_and_one_that_was_replaced(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=1)
    assert await running.control.put_policy(policy())
    assert (await running.control.state())["policy_digest"]
    for replaced in (False, True):
        if replaced:
            old = (await running.control.state())["processes"]
            os.kill(old[0], signal.SIGKILL)
            await came_true(lambda: _all_answer(running, without=old[0]))  # noqa: B023
        for _ in range(12):
            client = await RawClient.to(running.port)
            assert (await client.post(ASK)).status == 401
            assert (await client.post(ASK, headers=f"authorization: Bearer {KEY}\r\n")).status in (200, 503)
            client.abort()
    await came_true(lambda: _all_serve(running))


async def test_policy_that_nobody_can_read_changes_nothing(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=1)
    with pytest.raises(Exception, match="policy"):
        await running.control.put_policy(b'{"tenants": 3}')
    assert (await fresh(running, get("/v1/models"))).status == 200


async def test_drain_at_one_worker_is_a_drain_of_all(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=1)
    await running.control.put_policy(policy(OPERATOR_RECORD))
    for verb, ready in (("drain", 503), ("undrain", 200)):
        response = await fresh(running, get(f"/admin/v1/{verb}", OPERATOR, "POST"))
        assert response.json() == {"draining": verb == "drain"}
        assert {(await fresh(running, get("/readyz"))).status for _ in range(12)} == {ready}


async def test_console_session_and_view_are_the_same_at_every_worker(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=1)
    await running.control.put_policy(policy(OPERATOR_RECORD))
    await running.control.put_view(b'{"fleet": "harbour"}')
    body = b'{"key": "%b"}' % OPERATOR.encode()
    head = b"POST /console/api/sign-in HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    cookie = (await fresh(running, head + body)).headers["set-cookie"].partition(";")[0]

    async def ask(path: str, method: str = "GET", token: str = "") -> Response:
        lines = f"host: x\r\ncookie: {cookie}\r\nx-csrf-token: {token}\r\ncontent-length: 0\r\n\r\n"
        return await fresh(running, f"{method} /console/api/{path} HTTP/1.1\r\n{lines}".encode())

    seen = [(await ask("live/fleet")).json()["data"] for _ in range(12)]
    assert {document["view"]["fleet"] for document in seen} == {"harbour"}
    assert (await running.control.state())["watched"]
    tokens = {(await ask("session")).json()["csrf"] for _ in range(12)}
    assert len(tokens) == 1
    assert (await ask("sign-out", "POST", tokens.pop())).status == 200
    assert {(await ask("live/fleet")).status for _ in range(12)} == {401}


async def test_questions_of_clients_do_not_keep_a_gateway_that_nobody_owns(start: Start) -> None:
    running = await start(processes=2, orphan_grace_s=1.5)
    ended = asyncio.create_task(running.ended())
    while not ended.done():
        try:
            await fresh(running, get("/metrics"))
        except (OSError, asyncio.IncompleteReadError):
            break
        await asyncio.sleep(0.1)
    assert await ended == 0


async def test_table_that_a_hanging_worker_missed_reaches_it_later(start: Start, make_upstream: Any) -> None:
    running = await served(start, make_upstream, requests=1)
    first = GatewayControl(f"{running.config.control_socket}.0", running.config.control_token)
    hung = int((await first.state())["pid"])
    os.kill(hung, signal.SIGSTOP)
    try:
        assert await running.control.put_policy(policy())
        assert await running.control.put_table("e", table(version=9))
    finally:
        os.kill(hung, signal.SIGCONT)
    await came_true(lambda: _has_version(running, first, 9))


@pytest.mark.parametrize("limit", ["tokens_per_day", "money_per_day"])
async def test_budget_of_the_day_that_was_used_before_a_start_is_used_for_all_workers(
    start: Start, make_upstream: Any, tmp_path: Path, limit: str
) -> None:
    store = UsageStore(tmp_path / "usage.sqlite")
    store.open()
    store.add("a", "tiny", now_s=time.time(), prompt_tokens=400, completion_tokens=600, cost_nanos=1000 * NANOS)
    store.close()
    given, (key,) = keyed(TenantPolicy(name="a", **{limit: 1000}))  # type: ignore[arg-type]
    given = replace(given, prices={"tiny": Price(input_per_million=1, output_per_million=1)})
    running = await start(processes=2, state_folder=str(tmp_path), policy=given)
    await running.control.put_table("e", table(endpoint(await make_upstream())))
    for _ in range(6):
        client = await RawClient.to(running.port)
        refused = await client.post(ASK, headers=key)
        client.abort()
        assert (refused.status, refused.code) == (429, limit)


async def test_what_was_spent_today_counts_for_all_workers_against_a_limit_that_is_set_later(
    start: Start, make_upstream: Any, tmp_path: Path
) -> None:
    given, (key,) = keyed(TenantPolicy(name="a"))
    given = replace(given, prices={"tiny": Price(input_per_million=1, output_per_million=1)})
    running = await start(processes=2, state_folder=str(tmp_path), policy=given)
    await running.control.put_table("e", table(endpoint(await make_upstream())))
    store = UsageStore(tmp_path / "usage.sqlite")  # as a worker writes
    store.add("a", "tiny", now_s=time.time(), prompt_tokens=400, completion_tokens=600, cost_nanos=1000 * NANOS)
    store.close()
    await running.control.put_policy(replace(given, tenants=(TenantPolicy(name="a", money_per_day=1000),)))
    for _ in range(6):
        client = await RawClient.to(running.port)
        refused = await client.post(ASK, headers=key)
        client.abort()
        assert (refused.status, refused.code) == (429, "money_per_day")


async def test_limit_of_one_request_at_a_time_is_open_to_whichever_worker_is_asked(
    start: Start, make_upstream: Any
) -> None:
    running = await start(processes=2)
    given, (key,) = keyed(TenantPolicy(name="a", concurrent_requests=1))
    await running.control.put_policy(msgspec.json.encode(given))
    await running.control.put_table("e", table(endpoint(await make_upstream())))
    clients = [await RawClient.to(running.port) for _ in range(12)]
    for client in clients * 2:  # kept connections, so that the head is known the second time
        assert (await client.post(ASK, headers=key)).status == 200


async def test_successor_takes_the_port_while_old_requests_end(start: Start) -> None:
    old = await start(processes=2)
    client = await RawClient.to(old.port)
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await came_true(lambda: _counts_a_connection(old))
    await old.control.stop(DEADLINE_S)
    for _ in range(50):  # the workers close their listeners a moment later
        new = await start(listening=False, processes=2, port=old.port)
        assert new.process.stdout
        if line := await asyncio.wait_for(new.process.stdout.readline(), DEADLINE_S):
            break
    assert json.loads(line)["port"] == old.port
    assert old.process.returncode is None, "the old gateway had ended already"
    client.abort()


class Ended:
    pid, returncode = 1, -9

    async def wait(self) -> int:
        return self.returncode


class Unforkable:
    """A worker that ended, and that cannot be started three times."""

    name, fed, process = "worker-0", None, Ended()

    def __init__(self) -> None:
        self.num_failures = 0
        self.started = asyncio.Event()

    def kill(self) -> None:
        pass

    async def start(self, policy: Policy | None) -> None:
        if self.num_failures < 3:
            self.num_failures += 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.started.set()


async def test_worker_is_tried_again_after_the_system_had_no_process_for_it(tmp_path: Path) -> None:
    with socket.socket() as held:
        parent = WorkerParent(config(control_socket=str(tmp_path / "c.sock"), processes=2), held)
        worker: Any = Unforkable()
        keeping = asyncio.create_task(parent._keep(worker))
        await asyncio.wait_for(worker.started.wait(), DEADLINE_S)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert worker.num_failures == 3


async def test_slots_are_divided_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longboat.gateway.process.workers._SHARE_EVERY_S", 0.0)
    rounds, third = [], asyncio.Event()

    async def collect() -> None:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise RuntimeError("a report that nothing can read")
        third.set()

    with socket.socket() as held:
        parent = WorkerParent(config(control_socket=str(tmp_path / "c.sock"), processes=2), held)
        monkeypatch.setattr(parent._reports, "collect", collect)
        following = asyncio.create_task(parent._follow_demands())
        await asyncio.wait_for(third.wait(), DEADLINE_S)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class BrokenAtFirst:
    """A clock that cannot be read twice."""

    def __init__(self) -> None:
        self.num_looks = 0

    def monotonic_s(self) -> float:
        self.num_looks += 1
        if self.num_looks in (2, 3):  # behind the first one, with which the watch begins
            raise RuntimeError("a clock that nothing can read")
        return 1.0

    unix_s = monotonic_s


async def test_heartbeats_are_judged_on_after_a_failure() -> None:
    clock = BrokenAtFirst()
    following = asyncio.create_task(follow_beats(LiveTable(GatewayLimits()), clock=clock))
    await eventually(lambda: following.done() or clock.num_looks > 5, "the watch goes on")
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def _counts_a_connection(running: Running) -> bool:
    return bool((await running.control.state())["connections"])


async def _has_version(running: Running, worker: GatewayControl, version: int) -> bool:
    await running.control.state()
    state = await worker.state()
    return bool(state["version"] == version and state["policy_digest"])


async def _all_serve(running: Running) -> bool:
    return {(await fresh(running, get("/readyz"))).status for _ in range(12)} == {200}


async def _all_answer(running: Running, without: int) -> bool:
    state = await running.control.state()
    return not state["missing"] and len(state["processes"]) == 2 and without not in state["processes"]


def test_port_is_free_for_workers_while_connections_of_a_gateway_of_one_process_linger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:  # with SO_REUSEADDR, as asyncio opens it
        port = before.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = before.accept()
        accepted.close()  # the side that closes first keeps the port for a minute
        client.recv(1)
        client.close()
    _reserve("127.0.0.1", port).close()
