"""What the daemon of a node reports when its gateway fails: the rest of the node is still there."""

from __future__ import annotations

import errno
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from longboat.cluster.node.gateway_process import GatewayProcess
from longboat.cluster.node.gateway_record import GatewayRecord, RecordFile
from longboat.cluster.node.node_daemon import NodeDaemon
from longboat.cluster.protocol.messages import GatewaySettings, NodeOrder, WeightsOrder
from longboat.core.errors import ClusterError
from longboat.core.states import EndpointTable
from longboat.core.table_changes import TableUpdate
from longboat.spec.types.weights import WeightsSpec

ORDER = NodeOrder(
    fleet="f",
    update=TableUpdate(epoch="e", number=1, table=EndpointTable(version=1, models=(), endpoints=())),
    table_is_old=False,
    gateway=GatewaySettings(host="127.0.0.1", port=1, processes=1),
    warm=(),
    policy=b"{}",
    weights=WeightsOrder(spec=WeightsSpec().model_dump(mode="json"), sources=(), trackers=(), token="t"),
)


class Failing(GatewayProcess):
    """A gateway that cannot be started."""

    error: Exception

    async def _start(self, order: NodeOrder, redis_url: str | None) -> GatewayRecord:
        raise self.error


@pytest.fixture
async def daemon(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeDaemon]:
    """A daemon as of a node in a cluster, without Ray."""
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n1"))
    monkeypatch.setattr("longboat.cluster.host.facts.node_address", lambda: "127.0.0.1")
    monkeypatch.setattr("longboat.cluster.host.facts.node_labels", dict)
    with tempfile.TemporaryDirectory(prefix="lb", dir="/tmp") as folder:
        monkeypatch.setenv("LONGBOAT_RUN", f"{folder}/run")
        monkeypatch.setenv("LONGBOAT_HOME", f"{folder}/home")
        daemon = NodeDaemon()
        daemon._gateway = Failing(Path(folder) / "run" / "gateway", "n1", "127.0.0.1")
        yield daemon
        await daemon.shutdown()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ClusterError("its port is taken"), "its port is taken"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (subprocess.TimeoutExpired(["sh"], 10.0), "timed out after 10.0 seconds"),
        (TimeoutError(), "TimeoutError"),
    ],
)
async def test_a_gateway_that_cannot_start_takes_nothing_else_of_its_node_away(
    daemon: NodeDaemon, error: Exception, told: str
) -> None:
    assert isinstance(daemon._gateway, Failing)
    daemon._gateway.error = error
    report = await daemon.order(ORDER)
    assert told in report.gateway.problem
    assert report.gateway.node_id == "n1"
    assert report.relay
    assert report.weights is not None


async def test_a_disk_without_room_for_the_socket_of_commands_stops_no_order(
    daemon: NodeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert isinstance(daemon._gateway, Failing)
    daemon._gateway.error = ClusterError("its port is taken")
    monkeypatch.setattr(daemon._door, "open", full)
    report = await daemon.order(ORDER)
    assert "its port is taken" in report.gateway.problem and report.relay


def test_the_gateway_of_a_newer_version_is_found(tmp_path: Path) -> None:
    file = RecordFile(tmp_path)
    record = GatewayRecord(socket="s", token="t", digest="d", port=7, pid=3, born=9)
    file.write(record)
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert file.read() == record
    path.write_text("[]")
    assert file.read() is None
