"""What several workers know together, and what is told while one of them, or their parent, is away."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from gateway_lab import config
from test_recent import record

from longboat.clock import WALL
from longboat.core.errors import ClusterError
from longboat.core.policy import Policy
from longboat.gateway.admin.node_aggregate import NodeAggregate
from longboat.gateway.admin.node_query import (
    MetricsQuery,
    NodeQuery,
    OwnerQuery,
    RecentQuery,
    TimelineQuery,
    UsageQuery,
)
from longboat.gateway.admin.node_view import LocalAnswers, LocalNode, ParentNode, make_node
from longboat.gateway.records.metrics import Metrics
from longboat.gateway.records.metrics_text import render
from longboat.gateway.records.recent import RecentRequests
from longboat.gateway.upstreams.response_affinity import Owner


class Row(NamedTuple):
    day: str
    tenant: str
    model: str
    requests: int


class FakeWorker(LocalAnswers):
    """One worker's state, and whether it answers."""

    def __init__(self, index: int, *, shared: bool = False) -> None:
        self.state = SimpleNamespace(
            clock=WALL,
            config=config(worker_index=index, state_folder="/somewhere" if shared else None),
            metrics=Metrics(process=f"worker-{index}"),
            recent=RecentRequests(),
            accounting=SimpleNamespace(
                flush=self._write_down,
                access_log=SimpleNamespace(num_dropped=2),
                tracer=None,
                remote_counters=None,
            ),
            owners=SimpleNamespace(find={}.get),
            usage=SimpleNamespace(page=lambda days, now_s, tenant, until: (self.rows, False)),
            live=SimpleNamespace(policy=Policy()),
            table=SimpleNamespace(upstreams=list, table=None),
            connections=set(),
            held_bytes=0,
        )
        self.rows: list[Row] = []
        self.away = False
        self.pid: int | None = None
        self._num_ended = 0
        super().__init__(self.state)

    def served(self, times: int = 1) -> None:
        """Requests ended, and are not written down yet."""
        self._num_ended += times

    def _write_down(self) -> None:
        for _ in range(self._num_ended):
            self.state.metrics.series("m", "a").done("ok", 0.1, 0.2, 0.0, 1, 1, 0, 0)
        self._num_ended = 0

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        if self.away:
            raise ClusterError("away")
        reply = await super().ask(query)
        if self.pid is not None:
            reply["processes"][0]["pid"] = self.pid
        return reply


def pair(**options: Any) -> tuple[FakeWorker, FakeWorker, NodeAggregate]:
    one, two = FakeWorker(0, **options), FakeWorker(1, **options)
    return one, two, NodeAggregate({"worker-0": one, "worker-1": two})


def served(snapshot: dict[str, Any]) -> int:
    return sum(item["outcomes"].get("ok", 0) for item in snapshot["series"])


async def test_metrics_are_of_all_workers_and_the_parent() -> None:
    one, two, gathered = pair()
    one.served(2)
    two.served(3)
    snapshot = await gathered.ask(MetricsQuery())
    assert served(snapshot) == 5 and snapshot["missing"] == []
    assert [p["process"] for p in snapshot["processes"]] == ["worker-0", "worker-1", "parent"]
    assert b'longboat_gateway_cpu_seconds_total{process="parent"}' in render(snapshot)


async def test_counters_stay_while_a_worker_is_away_and_after_it_was_replaced() -> None:
    one, two, gathered = pair()
    one.served(2)
    two.served(3)
    one.state.metrics.series("m", "a").in_flight += 1
    assert (await gathered.ask(MetricsQuery()))["series"][0]["in_flight"] == 1
    one.away = True
    snapshot = await gathered.ask(MetricsQuery())
    assert (served(snapshot), snapshot["missing"], snapshot["series"][0]["in_flight"]) == (5, ["worker-0"], 0)
    one.away, one.pid = False, -5  # another process in its place
    one.state.metrics = Metrics(process="worker-0")
    one.served(1)
    for _ in range(3):
        assert served(await gathered.ask(MetricsQuery())) == 6


async def test_gauges_end_with_their_worker() -> None:
    one, two, gathered = pair()
    one.state.metrics.series("m", "a").preempted += 1
    one.state.table.table = SimpleNamespace(scaling={"gone": {"wanted": 2}, "m": {"wanted": 1}})
    two.state.table.table = SimpleNamespace(scaling={"m": {"wanted": 3}})
    await gathered.ask(MetricsQuery())
    one.pid, one.state.metrics, one.state.table.table = -5, Metrics(process="worker-0"), two.state.table.table
    snapshot = await gathered.ask(MetricsQuery())
    assert snapshot["series"][0]["preempted"] == 0
    assert snapshot["scaling"] == {"m": {"wanted": 3}}


async def test_losses_are_told() -> None:
    _, _, gathered = pair()
    assert (await gathered.ask(MetricsQuery()))["events"] == {"log_lines_dropped": 4}


async def test_metrics_asked_twice_are_the_same() -> None:
    one, _, gathered = pair()
    one.served(2)
    first, second = await gathered.ask(MetricsQuery()), await gathered.ask(MetricsQuery())
    assert first["series"] == second["series"]


async def test_request_is_found_whoever_served_it() -> None:
    one, two, gathered = pair()
    two.state.recent.add(record("req-2", "a"))
    found = await gathered.ask(TimelineQuery("req-2"))
    assert found["request"]["tenant"] == "a" and found["missing"] == []
    assert (await gathered.ask(TimelineQuery("req-2", "b")))["request"] is None
    one.away = True
    assert await gathered.ask(TimelineQuery("req-3")) == {"request": None, "missing": ["worker-0"]}


async def test_newest_of_equal_ids_is_told() -> None:
    one, two, gathered = pair()
    one.state.recent.add(record("same", status=200, received_unix_s=20.0))
    two.state.recent.add(record("same", status=404, received_unix_s=10.0))
    assert (await gathered.ask(TimelineQuery("same")))["request"]["status"] == 200


async def test_requests_are_listed_newest_first_and_limited() -> None:
    one, two, gathered = pair()
    for number in range(6):
        (one, two)[number % 2].state.recent.add(record(f"req-{number}", received_unix_s=float(number)))
    listed = await gathered.ask(RecentQuery(None, 4))
    assert [row["id"] for row in listed["requests"]] == ["req-5", "req-4", "req-3", "req-2"]


async def test_usage_of_separate_stores_is_added_up() -> None:
    one, two, gathered = pair()
    one.rows = [Row("2026-01-02", "a", "m", 2), Row("2026-01-01", "a", "m", 1)]
    two.rows = [Row("2026-01-02", "a", "m", 5), Row("2026-01-02", "b", "m", 7)]
    days = (await gathered.ask(UsageQuery()))["days"]
    assert [(r["day"], r["tenant"], r["requests"]) for r in days] == [
        ("2026-01-01", "a", 1), ("2026-01-02", "a", 7), ("2026-01-02", "b", 7),
    ]  # fmt: skip


async def test_usage_of_one_shared_file_is_not_counted_twice() -> None:
    one, two, gathered = pair(shared=True)
    one.rows = [Row("2026-01-02", "a", "m", 10)]
    two.rows = [Row("2026-01-02", "a", "m", 11)]  # with what it has not written yet
    assert [r["requests"] for r in (await gathered.ask(UsageQuery()))["days"]] == [11]


async def test_requests_go_on_while_usage_is_read() -> None:
    one, _, _ = pair()
    went_on = threading.Event()
    one.state.usage.page = lambda *_, **__: ([Row("2026-01-02", "a", "m", int(went_on.wait(20.0)))], False)
    asyncio.get_running_loop().call_later(0.01, went_on.set)
    assert [r["requests"] for r in (await one.ask(UsageQuery()))["days"]] == [1]


async def test_owner_is_found_wherever_it_is_known() -> None:
    _, two, gathered = pair()
    two.state.owners = SimpleNamespace(find={"resp_1": Owner("a", "m", "r0/1@http://x")}.get)
    assert (await gathered.ask(OwnerQuery("resp_1")))["owner"] == {"tenant": "a", "model": "m", "key": "r0/1@http://x"}
    assert (await gathered.ask(OwnerQuery("resp_2")))["owner"] is None


async def test_worker_tells_what_it_knows_while_its_parent_is_away(tmp_path: Path) -> None:
    worker = FakeWorker(0)
    worker.state.config = config(worker_index=0, parent_socket=str(tmp_path / "none.sock"))
    worker.served(4)
    worker.state.recent.add(record("req-1"))
    node = make_node(worker.state, SimpleNamespace(report=None, drain=None, undrain=None))
    assert isinstance(node, ParentNode)
    snapshot = await node.ask(MetricsQuery())
    assert served(snapshot) == 4 and snapshot["missing"]
    found = await node.ask(TimelineQuery("req-1"))
    assert found["request"] is not None and found["missing"]


async def test_gateway_that_is_one_process_answers_itself() -> None:
    worker = FakeWorker(0)
    gateway = SimpleNamespace(report=_report, drain=None, undrain=None)
    node = make_node(worker.state, gateway)
    assert isinstance(node, LocalNode)
    assert await node.report() == {"pid": 7}


async def _report() -> dict[str, Any]:
    return {"pid": 7}
