"""What a daemon does with its node's gateway: the order of policy and table, restarts, secrets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat.cluster.node import log_bounds
from longboat.cluster.node.gateway_process import GatewayProcess
from longboat.cluster.node.gateway_record import GatewayRecord, RecordFile
from longboat.cluster.node.gateway_start import GatewayStart
from longboat.cluster.node.log_bounds import bound_logs
from longboat.cluster.protocol.messages import GatewaySettings, NodeOrder, policy_digest
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.states import EndpointTable
from longboat.core.table_changes import TableUpdate
from longboat.gateway.admin.node_query import UsageQuery
from longboat.processes import born_ticks
from waiting import wait_until

POLICY = b'{"auth":"keys","salt":"s"}'


class FakeGateway:
    """The other end of the control socket."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pid, self.hangs = os.getpid(), False
        self.policy = ""
        self.draining = False

    async def state(self) -> dict[str, Any]:
        demands = {"demands": {"r": 2}, "tenant_demands": {"m": {"a": [1.0, 1, 1]}}}
        if self.hangs:
            raise ClusterError("no answer")
        return {
            "pid": self.pid,
            "policy_digest": self.policy,
            "version": 1,
            "epoch": "e",
            "draining": self.draining,
            **demands,
        }

    async def put_policy(self, document: bytes) -> bool:
        self.calls.append("policy")
        self.policy = policy_digest(document)
        return True

    async def put_update(self, update: TableUpdate) -> bool:
        self.calls.append("table")
        self.number = update.number
        return True

    async def drain(self) -> None:
        self.draining = True

    async def undrain(self) -> None:
        self.draining = False

    async def stop(self) -> None:
        if self.hangs:
            raise ClusterError("no answer")
        self.calls.append("stop")

    async def ask(self, query: UsageQuery) -> dict[str, Any]:
        return {"days": [{"tenant": "a", "days": query.days}]}


class Node(GatewayProcess):
    """A node whose gateway is a fake; ``gateway`` is None while none runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "n1", "10.0.0.1")
        self.gateway: FakeGateway | None = None
        self.starts: list[Any] = []

    def _control(self, record: GatewayRecord) -> Any:
        return self.gateway or Gone()

    async def _start(self, order: NodeOrder, redis_url: str | None) -> GatewayRecord:
        from longboat.cluster.node.gateway_process import _digest

        record = GatewayRecord(socket="s", token="t", digest=_digest(order, redis_url), port=1)
        self.starts.append(GatewayStart(self._folder, self._node_id, self._record).config(order, record, redis_url))
        self._record.write(record)
        self.gateway = FakeGateway()
        return record


class Gone:
    async def state(self) -> dict[str, Any]:
        raise ClusterError("gone")


def order(*, old: bool = False, policy: bytes = POLICY, drained: bool = False, **settings: Any) -> NodeOrder:
    return NodeOrder(
        fleet="f",
        update=TableUpdate(epoch="e", number=1, table=EndpointTable(version=1, models=(), endpoints=())),
        table_is_old=old,
        gateway=GatewaySettings(**{"host": "127.0.0.1", "port": 8000, "processes": 1, **settings}),
        warm=(),
        policy=policy,
        drained=drained,
    )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    return Node(tmp_path / "gateway")


def calls(node: Node) -> list[str]:
    assert node.gateway is not None
    made, node.gateway.calls = node.gateway.calls, []
    return made


async def test_a_new_gateway_knows_who_may_ask_before_there_is_anything_to_ask(node: Node) -> None:
    report = await node.ensure(order())
    assert node.starts[0].policy.auth == "keys"
    assert calls(node) == ["policy", "table"]
    assert (report.policy_digest, report.demands, report.problem) == (policy_digest(POLICY), {"r": 2}, "")
    assert report.tenant_demands == {"m": {"a": [1.0, 1, 1]}}


async def test_a_known_policy_is_not_sent_again_and_a_new_one_restarts_nothing(node: Node) -> None:
    await node.ensure(order())
    calls(node)
    await node.ensure(order())
    assert calls(node) == ["table"]
    report = await node.ensure(order(policy=b'{"auth":"none"}'))
    assert calls(node) == ["policy", "table"]
    assert report.policy_digest == policy_digest(b'{"auth":"none"}')
    assert len(node.starts) == 1


async def test_an_old_table_is_kept_back_and_the_policy_is_not(node: Node) -> None:
    await node.ensure(order())
    calls(node)
    await node.ensure(order(old=True, policy=b"{}"))
    assert calls(node) == ["policy"]


@pytest.mark.parametrize(
    "change", [{"tls_certificate": "/c", "tls_key": "/k"}, {"access_log_keep": 1}, {"tracing_endpoint": "http://c:1"}]
)
async def test_what_a_gateway_learns_at_its_start_restarts_it(node: Node, change: dict[str, Any]) -> None:
    await node.ensure(order())
    await node.ensure(order(**change))
    await node.ensure(order(**change))
    assert len(node.starts) == 2


async def test_the_url_of_redis_is_read_on_the_node_and_a_new_one_restarts_the_gateway(
    node: Node, tmp_path: Path
) -> None:
    file = tmp_path / "redis-url"
    file.write_text("redis://:one@h/0\n")
    await node.ensure(order(redis_url_file=str(file)))
    file.write_text("redis://:two@h/0\n")
    await node.ensure(order(redis_url_file=str(file)))
    assert [config.redis_url for config in node.starts] == ["redis://:one@h/0", "redis://:two@h/0"]
    assert "two" not in (tmp_path / "gateway" / "gateway.json").read_text()


async def test_a_gateway_that_runs_is_fed_while_its_redis_url_cannot_be_read(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "redis-url"
    with pytest.raises(UserInputError, match="cannot be read"):
        await node.ensure(order(redis_url_file=str(file)))
    file.write_text("redis://h/0")
    await node.ensure(order(redis_url_file=str(file)))
    calls(node)
    file.unlink()
    report = await node.ensure(order(redis_url_file=str(file)))
    assert calls(node) == ["table"]
    assert "cannot be read" in report.problem
    assert len(node.starts) == 1


async def test_an_operators_drain_holds_until_the_order_changes(node: Node) -> None:
    await node.ensure(order())
    assert node.gateway is not None
    await node.gateway.drain()  # by the console or the admin API
    assert [(await node.ensure(order())).draining for _ in range(2)] == [True, True]
    assert (await node.ensure(order(drained=True))).draining
    await node.gateway.undrain()
    assert not (await node.ensure(order(drained=True))).draining
    assert not (await node.ensure(order())).draining


async def test_an_ordered_drain_outlives_the_daemon_and_reaches_a_new_gateway(node: Node, tmp_path: Path) -> None:
    await node.ensure(order(drained=True))
    successor = Node(tmp_path / "gateway")
    successor.gateway = node.gateway
    assert not (await successor.ensure(order())).draining
    await successor.ensure(order(drained=True))
    assert (await successor.ensure(order(drained=True, access_log_keep=1))).draining
    assert len(successor.starts) == 1  # the new settings


async def test_usage_is_asked_of_the_gateway(node: Node) -> None:
    with pytest.raises(ClusterError, match="no gateway"):
        await node.ask(b'{"query":"usage","days":3}')
    await node.ensure(order())
    assert (await node.ask(b'{"query":"usage","days":3}'))["days"] == [{"tenant": "a", "days": 3}]


async def test_nodes_that_share_a_home_keep_apart_what_they_counted(node: Node, tmp_path: Path) -> None:
    other = Node(tmp_path / "other")
    await node.ensure(order())
    await other.ensure(dataclasses.replace(order()))
    assert node.starts[0].state_folder != other.starts[0].state_folder


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


async def test_a_gateway_that_is_busy_is_left_alone_and_one_that_hangs_is_ended(
    node: Node, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.ensure(order())
    assert node.gateway is not None
    node.gateway.pid = process.pid
    await node.ensure(order())
    node.gateway.hangs = True
    with pytest.raises(ClusterError, match="busy"):
        await node.ensure(order())
    assert process.poll() is None and len(node.starts) == 1
    monkeypatch.setattr("longboat.cluster.node.gateway_process.HANG_S", 0.0)
    await node.ensure(order())
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert len(node.starts) == 2


async def test_the_end_of_a_fleet_ends_a_gateway_that_hangs(node: Node, process: subprocess.Popen[bytes]) -> None:
    await node.ensure(order())
    assert node.gateway is not None
    node.gateway.pid = process.pid
    await node.ensure(order())
    node.gateway.hangs = True
    await node.stop()
    assert process.wait(timeout=30) == -signal.SIGKILL


async def test_output_of_a_gateway_that_ended_stays_and_is_not_taken_for_that_of_the_next(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, pids = tmp_path / "gateway" / "gateway.log", []

    async def start(code: str) -> None:
        command = [sys.executable, "-c", f"import sys, time; sys.stdin.read(); {code}"]
        monkeypatch.setattr("longboat.gateway.admin.control_client.gateway_command", lambda: command)
        try:
            await GatewayProcess._start(node, order(), None)
        finally:
            record = RecordFile(tmp_path / "gateway").read()
            assert record is not None
            pids.append(record.pid)

    try:
        await start("print('\"listening\"'); raise MemoryError('no memory')")
        await asyncio.to_thread(wait_until, lambda: not born_ticks(pids[0]))
        with pytest.raises(ClusterError, match="did not start: the port is in use"):
            await start("print('the port is in use')")
        words = "print('Redis is away (ConnectionError)'); time.sleep(0.2); print('\"listening\"')"
        await start(f"{words}; [(print('it works'), time.sleep(0.01)) for _ in range(60_000)]")
        assert "MemoryError: no memory" in output.read_text()
        monkeypatch.setattr(log_bounds, "MOST_FILE_BYTES", 10)
        bound_logs(tmp_path, time.time())
        await asyncio.to_thread(wait_until, lambda: "it works" in output.read_text())
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "\0" not in output.read_text(), "the gateway appends, so that its file can be cut"
    assert "MemoryError: no memory" in output.with_name("gateway.log.1").read_text()


async def test_a_gateway_that_starts_slowly_is_known_by_its_pid_and_left_alone(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [sys.executable, "-c", "import sys, time; sys.stdin.read(); time.sleep(600)"]
    monkeypatch.setattr("longboat.gateway.admin.control_client.gateway_command", lambda: slow)
    monkeypatch.setattr("longboat.cluster.node.gateway_start.START_TIMEOUT_S", 0.1)
    with pytest.raises(ClusterError, match="did not start"):
        await GatewayProcess._start(node, order(), None)
    record = RecordFile(tmp_path / "gateway").read()
    assert record is not None and record.pid
    try:
        assert record.born and born_ticks(record.pid) == record.born
        for known in (record, dataclasses.replace(record, pid=0, born=0)):  # an earlier daemon may not have noted it
            RecordFile(tmp_path / "gateway").write(known)
            with pytest.raises(ClusterError, match="busy"):
                await Node(tmp_path / "gateway").ensure(order())
    finally:
        os.kill(record.pid, signal.SIGKILL)


async def test_a_gateway_that_ended_is_started_again_at_once(node: Node, process: subprocess.Popen[bytes]) -> None:
    await node.ensure(order())
    assert node.gateway is not None
    node.gateway.pid = process.pid
    await node.ensure(order())
    process.kill()
    process.wait(timeout=30)
    node.gateway.hangs = True
    await node.ensure(order())
    assert len(node.starts) == 2
