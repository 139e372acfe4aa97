"""Requests that wait for room: their order, how long they wait, and when they are refused."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from fake_upstream import FakeUpstream, Seen
from gateway_lab import RawClient, endpoint, eventually, keyed, post_bytes, settled, table

from longboat.core.policy import Policy, QueuePolicy, ResumePolicy, TenantPolicy
from longboat.gateway.process.server import Gateway

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def ask(name: str = "") -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "user": name, "max_tokens": 100}


class Slots:
    """An engine that answers a request only when the test says so."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.turns = asyncio.Semaphore(0)

    async def script(self, seen: Seen) -> None:
        self.arrived.append(json.loads(seen.body)["user"])
        await self.turns.acquire()
        await seen.send(OK)

    def finish(self, count: int = 1) -> None:
        for _ in range(count):
            self.turns.release()


class Lab:
    """A gateway with one replica of few slots."""

    def __init__(self, gateway: Gateway, slots: Slots, connect: Any) -> None:
        self.gateway, self.slots, self._connect = gateway, slots, connect

    @property
    def waiting(self) -> int:
        return self.gateway.state.table.pools()[0].num_waiting

    async def running(self, name: str, headers: str = "") -> RawClient:
        """A request that has reached the engine."""
        client = await self._send(name, headers)
        await eventually(lambda: name in self.slots.arrived, f"{name} runs")
        return client

    async def queued(self, name: str, headers: str = "") -> RawClient:
        """A request that waits, behind those before it."""
        before = self.waiting
        client = await self._send(name, headers)
        await eventually(lambda: self.waiting == before + 1, f"{name} waits")
        return client

    async def answer_of(self, name: str, headers: str = "") -> Any:
        return await (await self._connect(self.gateway)).post(ask(name), headers=headers)

    async def _send(self, name: str, headers: str) -> RawClient:
        client: RawClient = await self._connect(self.gateway)
        client.send(post_bytes(ask(name), headers=headers))
        return client


@pytest.fixture
async def make_lab(make_upstream: Any, make_gateway: Any, connect: Any) -> Any:
    async def make(policy: Policy | None = None, capacity: int = 1) -> Lab:
        slots = Slots()
        upstream: FakeUpstream = await make_upstream(slots.script)
        gateway = await make_gateway(policy=policy, endpoints=[endpoint(upstream, capacity=capacity)])
        return Lab(gateway, slots, connect)

    return make


async def test_requests_of_one_tenant_go_in_the_order_they_came(make_lab: Any) -> None:
    lab = await make_lab()
    clients = [await lab.running("0")]
    clients += [await lab.queued(str(n)) for n in range(1, 6)]
    assert lab.slots.arrived == ["0"]
    lab.slots.finish(6)
    assert [(await client.response()).status for client in clients] == [200] * 6
    assert lab.slots.arrived == [str(n) for n in range(6)]


async def test_engine_never_has_more_than_its_slots(make_lab: Any) -> None:
    lab = await make_lab(capacity=3)
    for n in range(3):
        await lab.running(str(n))
    for n in range(3, 6):
        await lab.queued(str(n))
    lab.slots.finish()
    await eventually(lambda: len(lab.slots.arrived) == 4, "one more is sent")
    assert lab.waiting == 2


async def test_one_that_leaves_the_queue_never_reaches_the_engine(make_lab: Any) -> None:
    lab = await make_lab()
    await lab.running("runs")
    leaves = await lab.queued("leaves")
    stays = await lab.queued("stays")
    leaves.abort()
    await eventually(lambda: lab.waiting == 1, "it left the queue")
    lab.slots.finish(2)
    assert (await stays.response()).status == 200
    assert lab.slots.arrived == ["runs", "stays"]


@pytest.mark.parametrize("header", ["x-request-timeout: 0.4", "x-request-deadline: {}"])
async def test_deadline_ends_the_waiting(header: str, make_lab: Any) -> None:
    lab = await make_lab()
    await lab.running("runs")
    response = await lab.answer_of("late", header.format(time.time() + 0.4) + "\r\n")
    assert (response.status, response.code) == (504, "deadline_passed")
    assert (lab.slots.arrived, lab.waiting) == (["runs"], 0)
    record = settled(lab.gateway).recent.newest()[0]
    assert record.outcome == "expired"


async def test_deadline_ends_a_request_that_the_engine_does_not_answer(make_lab: Any) -> None:
    lab = await make_lab()
    response = await lab.answer_of("slow", "x-request-timeout: 0.3\r\n")
    assert (response.status, response.code) == (504, "deadline_passed")
    assert lab.gateway.state.table.pools()[0].in_use == 0


@pytest.mark.parametrize(
    ("header", "status", "code"),
    [
        ("x-request-deadline: 1000000000", 504, "deadline_passed"),
        ("x-request-timeout: 0", 504, "deadline_passed"),
        ("x-request-timeout: -1", 504, "deadline_passed"),
        ("x-request-timeout: soon", 400, "bad_deadline"),
        ("x-request-deadline: nan", 400, "bad_deadline"),
        ("x-request-deadline: inf", 400, "bad_deadline"),
        ("x-request-timeout: 30", 200, ""),
    ],
)
async def test_deadline_header_is_read_as_it_says(header: str, status: int, code: str, make_lab: Any) -> None:
    lab = await make_lab()
    lab.slots.finish()
    response = await lab.answer_of("a", header + "\r\n")
    assert response.status == status
    if code:
        assert response.code == code and not lab.slots.arrived


async def test_wait_ends_at_the_queues_limit(make_lab: Any) -> None:
    lab = await make_lab(Policy(queue=QueuePolicy(max_wait_s=0.3)))
    await lab.running("runs")
    response = await lab.answer_of("waits")
    assert (response.status, response.code) == (429, "queue_timeout")
    assert int(response.headers["retry-after"]) >= 1
    assert lab.slots.arrived == ["runs"]


async def test_queue_is_bounded_by_count(make_lab: Any) -> None:
    lab = await make_lab(Policy(queue=QueuePolicy(max_waiting=2)))
    await lab.running("runs")
    waiting = [await lab.queued(str(n)) for n in range(2)]
    refused = await lab.answer_of("too many")
    assert (refused.status, refused.code) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    lab.slots.finish(3)
    assert [(await client.response()).status for client in waiting] == [200, 200]


async def test_refused_requests_do_not_hide_how_long_others_waited(make_lab: Any) -> None:
    lab = await make_lab(Policy(queue=QueuePolicy(max_waiting=1)))
    await lab.running("runs")
    client = await lab.queued("waits")
    for _ in range(5):
        assert (await lab.answer_of("too many")).code == "queue_full"
    lab.slots.finish(2)
    assert (await client.response()).status == 200
    accounting = lab.gateway.state.accounting
    accounting.flush()
    (series,) = accounting.metrics.snapshot()["series"]
    assert series["outcomes"] == {"ok": 2, "refused": 5}
    assert sum(series["queue"][:-1]) == 2  # the last number is the sum of the seconds


async def test_better_class_goes_first(make_lab: Any) -> None:
    policy, (low, high) = keyed(
        TenantPolicy(name="low", priority=2), TenantPolicy(name="high", priority=0), queue=QueuePolicy(age_s=0)
    )
    lab = await make_lab(policy)
    clients = [await lab.running("runs", low)]
    clients += [await lab.queued(f"low {n}", low) for n in range(2)]
    clients += [await lab.queued(f"high {n}", high) for n in range(2)]
    lab.slots.finish(5)
    for client in clients:
        assert (await client.response()).status == 200
    assert lab.slots.arrived == ["runs", "high 0", "high 1", "low 0", "low 1"]


async def test_flooding_tenant_does_not_lock_another_out(make_lab: Any) -> None:
    policy, (flood, calm) = keyed(
        TenantPolicy(name="flood"), TenantPolicy(name="calm"), queue=QueuePolicy(max_waiting=20)
    )
    lab = await make_lab(policy)
    await lab.running("flood", flood)
    for n in range(20):
        await lab.queued(f"flood {n}", flood)
    assert (await lab.answer_of("flood more", flood)).code == "queue_full"
    client = await lab.queued("calm", calm)  # there is a place for it though the queue is full
    for _ in range(3):
        lab.slots.finish()
        await asyncio.sleep(0.05)
    assert (await client.response()).status == 200
    assert "calm" in lab.slots.arrived[:3]


async def test_waiting_requests_run_on_a_replica_that_comes_later(make_lab: Any, make_upstream: Any) -> None:
    lab = await make_lab()
    await lab.running("runs")
    waiting = await lab.queued("waits")
    second = await make_upstream()
    (first,) = lab.gateway.state.table.upstreams()
    url = f"http://{first.target[0]}:{first.target[1]}"
    both = table(endpoint(url, capacity=1), endpoint(second, "r1", capacity=1), version=2)
    lab.gateway.state.offer_table("e", both)
    assert (await waiting.response()).headers["x-longboat-replica"] == "r1"


async def test_model_that_leaves_takes_its_queue_along(make_lab: Any) -> None:
    lab = await make_lab()
    runs = await lab.running("runs")
    waiting = await lab.queued("waits")
    lab.gateway.state.offer_table("e", table(version=2, models=("other",)))
    assert (await waiting.response()).status in (429, 503)
    lab.slots.finish()
    assert (await runs.response()).status == 200  # what runs goes on
    assert lab.gateway.state.in_flight == 0


async def test_slot_is_given_out_again_after_every_kind_of_end(make_lab: Any) -> None:
    lab = await make_lab()
    for n in range(10):
        client = await lab.running(f"leaves {n}")
        client.abort()
        await eventually(lambda: lab.gateway.state.table.pools()[0].in_use == 0, "its slot is free")
        lab.slots.finish()  # the script of the one that left
    await eventually(lambda: lab.slots.turns.locked(), "the scripts ended")
    client = await lab.running("stays")
    lab.slots.finish()
    assert (await client.response()).status == 200


async def test_endpoint_without_capacity_has_no_queue(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    slots = Slots()
    upstream = await make_upstream(slots.script)
    gateway = await make_gateway(endpoints=[endpoint(upstream)])
    clients = [await connect(gateway) for _ in range(50)]
    for n, client in enumerate(clients):
        client.send(post_bytes(ask(str(n))))
    await eventually(lambda: len(slots.arrived) == 50, "all of them run")
    slots.finish(50)
    assert {(await client.response()).status for client in clients} == {200}


async def test_time_without_any_engine_is_no_wait_for_a_slot(make_lab: Any) -> None:
    lab = await make_lab(Policy(queue=QueuePolicy(max_wait_s=0.5), resume=ResumePolicy(wait_s=60)))
    await lab.running("runs")
    waits = await lab.queued("waits")
    pool = lab.gateway.state.table.pools()[0]
    pool.away_s = time.monotonic()  # as its sweep notes while no engine is ready
    began_s = time.monotonic()
    await eventually(lambda: time.monotonic() - began_s > 0.9, "its first wait is over")
    lab.slots.finish(2)
    assert (await waits.response()).status == 200
