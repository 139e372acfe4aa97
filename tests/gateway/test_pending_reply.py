"""Requests whose answer must wait for others first: counters in a network, other workers, the admin API."""

from __future__ import annotations

import asyncio
from typing import Any

from fake_upstream import until_closed
from gateway_lab import RawClient, eventually, post_bytes, settled

from longboat.core.policy import TenantPolicy
from longboat.gateway.process.server import Gateway
from longboat.routing.capacity.quota import Denied

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


class FarCounters:
    """Counters that answer when the test lets them. Each reservation is noted, and how often it was given back."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = 0
        self.running = 0
        self.reserved_tokens = 0
        self.denies = False
        self.fails = False

    async def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        self.asked += 1
        await self.open.wait()
        if self.fails:
            raise RuntimeError("a defect")
        if self.denies:
            return Denied(limit="requests_per_minute", value=1, limit_value=1, retry_after_s=7)
        self.running += 1
        self.reserved_tokens += tokens
        return None

    def settle(self, tenant: TenantPolicy, *, reserved_tokens: int, used_tokens: int, **times: float) -> None:
        self.reserved_tokens -= reserved_tokens

    def release(self, tenant: TenantPolicy) -> None:
        self.running -= 1

    async def stop(self) -> None: ...


def with_far_counters(gateway: Gateway) -> FarCounters:
    far = FarCounters()
    gateway.state.accounting.remote_counters = far  # type: ignore[assignment]
    return far


async def sent_two(gateway: Gateway, far: FarCounters, connect: Any) -> RawClient:
    """A client with one request that is being counted and one behind it."""
    client: RawClient = await connect(gateway)
    client.send(post_bytes(ASK) + post_bytes(ASK))
    await eventually(lambda: far.asked == 1, "the first is being counted")
    return client


async def test_pipelined_requests_are_answered_in_order_after_remote_counting(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream())
    far = with_far_counters(gateway)
    client = await sent_two(gateway, far, connect)
    far.open.set()
    assert [(await client.response()).status for _ in range(2)] == [200, 200]
    settled(gateway)
    assert (far.asked, far.running, far.reserved_tokens) == (2, 0, 0)


async def test_request_behind_one_that_was_denied_remotely_is_answered(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream())
    far = with_far_counters(gateway)
    far.denies = True
    client = await sent_two(gateway, far, connect)
    far.open.set()
    for _ in range(2):
        response = await client.response()
        assert (response.status, response.code, response.headers["retry-after"]) == (429, "requests_per_minute", "7")
    assert (await client.get("/livez")).status == 200


async def test_client_that_leaves_while_it_is_counted_leaves_nothing_behind(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    gateway = await make_gateway(upstream)
    far = with_far_counters(gateway)
    client = await sent_two(gateway, far, connect)
    assert gateway.state.held_bytes > 0
    client.abort()
    await eventually(lambda: not gateway.state.connections, "the client is gone")
    far.open.set()
    await asyncio.sleep(0.05)
    assert (gateway.state.held_bytes, gateway.state.in_flight, far.running, far.reserved_tokens) == (0, 0, 0, 0)
    assert not upstream.seen


async def test_client_that_leaves_in_the_moment_it_is_counted_is_counted_out(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    """The answer of the counters and the end of the connection come in the same turn of the loop."""
    upstream = await make_upstream()
    gateway = await make_gateway(upstream)
    far = with_far_counters(gateway)
    client = await sent_two(gateway, far, connect)
    (connection,) = gateway.state.connections
    far.open.set()
    for _ in range(10):
        if far.running:
            break
        await asyncio.sleep(0)
    assert far.running == 1 and not upstream.seen
    connection.connection_lost(None)
    client.abort()
    await asyncio.sleep(0.05)
    settled(gateway)
    assert (gateway.state.held_bytes, gateway.state.in_flight, far.running, far.reserved_tokens) == (0, 0, 0, 0)
    assert not upstream.seen


async def test_defect_while_counting_is_a_500_and_the_connection_lives(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream())
    far = with_far_counters(gateway)
    far.fails = True
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    client = await sent_two(gateway, far, connect)
    far.open.set()
    for _ in range(2):
        response = await client.response()
        assert (response.status, response.code) == (500, "gateway_failed")
    assert [str(context["exception"]) for context in reported] == ["a defect"] * 2
    far.fails = False
    assert (await client.post(ASK)).status == 200
    assert (gateway.state.held_bytes, gateway.state.in_flight, far.running) == (0, 0, 0)


async def test_defect_in_a_decision_is_a_500_for_this_request_only(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    class Broken:
        def of(self, response_id: str, tenant: str) -> None:
            raise RuntimeError("a defect")

    gateway = await make_gateway(await make_upstream())
    gateway.state.owners = Broken()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    client = await connect(gateway)
    client.send(post_bytes(ASK) + b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n\r\n" + post_bytes(ASK))
    assert [(await client.response()).status for _ in range(3)] == [200, 500, 200]
    assert len(reported) == 1


def defect() -> int:
    raise RuntimeError("a defect")


async def test_defect_on_the_way_to_an_engine_is_a_500_and_closes_the_account(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream())
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    (upstream,) = gateway.state.table.upstreams()
    gateway.state.next_turn = defect
    response = await (await connect(gateway)).post(ASK)
    assert (response.status, response.code) == (500, "gateway_failed")
    assert reported
    assert gateway.state.in_flight == gateway.state.held_bytes == upstream.outstanding == 0
    assert gateway.state.table.pools()[0].in_use == 0


async def test_admin_answers_come_in_turn_with_requests(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream()))
    admin = b"GET /admin/v1/requests HTTP/1.1\r\nhost: localhost\r\n\r\n"
    client.send(post_bytes(ASK) + admin + post_bytes(ASK) + admin)
    answers = [await client.response() for _ in range(4)]
    assert [a.status for a in answers] == [200] * 4
    assert [len(answers[at].json()["requests"]) for at in (1, 3)] == [1, 2]
    client.send(admin.replace(b"GET", b"HEAD") + post_bytes(ASK))
    status, headers = await client.head()
    assert (status, int(headers["content-length"]) > 0) == (200, True)
    assert (await client.response()).json() == {"answer": 4.2}  # no body was in between


async def test_answers_at_the_end_of_the_stop_are_cut_off_and_written_down(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream(until_closed)
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    client.send(post_bytes(ASK))
    await eventually(lambda: len(upstream.seen) == 1, "it runs")
    gateway.stop(0.1)
    await gateway.stopped.wait()
    (record,) = gateway.state.recent.newest()
    assert record.outcome == "client_left"
    assert gateway.state.in_flight == 0
