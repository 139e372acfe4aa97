"""Accounting in batches: what is free at once; what is written down later is complete, in order and on time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_lab import config, eventually, post_bytes

from longboat.core.external import Price
from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.admin.node_query import MetricsQuery, RecentQuery, TimelineQuery, UsageQuery
from longboat.gateway.api.apis import APIS
from longboat.gateway.api.body import BodyKind, read_facts
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.external.budgets import wallet_of
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal
from longboat.gateway.records.recent import Attempt
from longboat.routing.capacity.quota import Denied

ASK = {"model": "tiny", "messages": []}
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"hello"}]}'
COST_TOKENS = 100
USED_BODY = b'{"usage":{"prompt_tokens":7,"completion_tokens":3}}'
USED_TOKENS = 10


class Office:
    """The accounting of one process without sockets, and requests of one tenant with these limits."""

    def __init__(self, log: Path | None = None, price: Price | None = None, **limits: Any) -> None:
        tenant = TenantPolicy(name="anonymous", **limits)
        policy = Policy(tenants=(tenant,), prices={} if price is None else {"tiny": price})
        self.state = GatewayState(config(policy=policy, access_log=str(log or "")))
        self.accounting = self.state.accounting
        self.tenant = tenant
        self.log = log

    def call(self, request_id: str = "req") -> Call:
        request = Request(b"/v1/chat/completions", "POST", request_id)
        return Call(
            request, APIS[b"/v1/chat/completions"], path=request.url, tenant=self.tenant, pools=("tiny",),
            requested="tiny", body=BODY, facts=read_facts(BODY, BodyKind.CHAT, refuse_fleet_fields=True),
            cost_tokens=COST_TOKENS,
        )  # fmt: skip

    def opened(self, request_id: str = "req") -> Call:
        call = self.call(request_id)
        assert self.accounting.open(call) is None
        return call

    def answered(self, request_id: str = "req") -> Call:
        """One whose engine told what it used; it is not written down yet."""
        call = self.opened(request_id)
        call.attempts = (Attempt("r0", 0.001),)
        call.whole_answer = USED_BODY
        self.accounting.close(call, time.monotonic(), status=200, outcome="ok")
        return call

    def failed(self, request_id: str = "req") -> None:
        """One that costs nothing in the end."""
        self.accounting.close(self.opened(request_id), time.monotonic(), status=503, outcome="refused")

    @property
    def ids(self) -> list[str]:
        """Of what is written down, the oldest first."""
        return [record.request_id for record in reversed(self.state.recent.newest(limit=1000))]

    def counts(self) -> Any:
        return self.state.accounting.counters.counts_of("anonymous", time.time())

    def logged(self) -> list[str]:
        assert self.state.accounting.access_log is not None and self.log is not None
        self.state.accounting.access_log.close()
        self.state.accounting.access_log = None
        return [json.loads(line)["id"] for line in self.log.read_text().splitlines()]


@pytest.fixture
def logging_office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path / "access.log")
    yield office
    if office.state.accounting.access_log is not None:
        office.state.accounting.access_log.close()


def test_place_of_a_request_that_ended_is_free_at_once() -> None:
    office = Office(concurrent_requests=1)
    call = office.opened("first")
    assert isinstance(office.accounting.open(office.call("second")), Refusal)
    assert (office.state.in_flight, call.series.in_flight) == (1, 1)  # type: ignore[union-attr]
    office.accounting.close(call, time.monotonic(), status=200, outcome="ok")
    assert (office.state.in_flight, call.series.in_flight) == (0, 0)  # type: ignore[union-attr]
    assert office.counts().running == 0 and not office.ids
    assert office.accounting.open(office.call("third")) is None


def test_settling_writes_each_request_into_every_book_once(logging_office: Office) -> None:
    office = logging_office
    for number in range(3):
        office.answered(str(number))
    assert (office.ids, office.counts().tokens) == ([], 3 * COST_TOKENS)
    for _ in range(2):
        office.accounting.flush()
    assert office.ids == ["0", "1", "2"]
    (series,) = office.state.metrics.snapshot()["series"]
    assert (series["outcomes"], series["prompt_tokens"], series["completion_tokens"]) == ({"ok": 3}, 21, 9)
    (row,) = office.state.usage.report(1, time.time())
    assert (row.requests, row.prompt_tokens, row.completion_tokens) == (3, 21, 9)
    counts = office.counts()
    assert (counts.tokens, counts.tokens_today) == (3 * USED_TOKENS, 3 * USED_TOKENS)
    assert (counts.requests, counts.running) == (3, 0)
    assert office.logged() == ["0", "1", "2"]


def test_request_that_is_closed_again_is_counted_once() -> None:
    office = Office()
    call = office.answered()
    for _ in range(2):
        office.accounting.close(call, time.monotonic(), status=499, outcome="client_left")
        office.accounting.flush()
    assert [record.outcome for record in office.state.recent.newest()] == ["ok"]
    assert (office.state.in_flight, office.counts().running) == (0, 0)


def test_denied_request_settles_first_and_fits() -> None:
    """What was reserved and not used must deny nobody, though it is not written down yet."""
    office = Office(tokens_per_minute=COST_TOKENS)
    for number in range(5):
        office.failed(str(number))
        assert len(office.ids) == number  # the one before made room
    assert office.counts().requests == 5


def test_request_that_is_denied_for_good_is_counted_nowhere() -> None:
    office = Office(requests_per_minute=1)
    office.failed("first")
    refusal = office.accounting.open(office.call("second"))
    assert isinstance(refusal, Refusal) and refusal.code == "requests_per_minute"
    assert (office.ids, office.state.in_flight) == (["first"], 0)
    assert (office.counts().requests, office.counts().tokens, office.counts().running) == (1, 0, 0)


def test_request_that_is_denied_twice_holds_no_money() -> None:
    price = Price(input_per_million=1e6, output_per_million=1e6)
    office = Office(price=price, requests_per_minute=1, money_per_day=1e6)
    office.failed("first")
    refusal = office.accounting.open(office.call("second"))  # it is denied, and again after the first was settled
    assert isinstance(refusal, Refusal) and refusal.code == "requests_per_minute"
    wallet = wallet_of(office.tenant)
    assert wallet is not None
    counts = office.accounting.counters.counts_of(wallet.name, time.time())
    assert (counts.tokens_today, counts.running) == (0, 0)


def test_request_that_fits_settles_nothing() -> None:
    office = Office(tokens_per_minute=2 * COST_TOKENS)
    office.failed("first")
    office.opened("second")
    assert office.ids == []


async def test_counters_in_a_network_are_asked_after_all_is_settled() -> None:
    class Far:
        def __init__(self) -> None:
            self.told: list[str] = []

        async def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
            self.told.append("reserve")
            return None

        def settle(self, tenant: TenantPolicy, **numbers: float) -> None:
            self.told.append(f"settle {numbers['used_tokens']} of {numbers['reserved_tokens']}")

        def release(self, tenant: TenantPolicy) -> None:
            self.told.append("release")

    office = Office()
    office.state.accounting.remote_counters = far = Far()  # type: ignore[assignment]
    first = office.call("first")
    assert await office.accounting.open_remotely(first) is None
    office.accounting.close(first, time.monotonic(), status=503, outcome="refused")
    assert await office.accounting.open_remotely(office.call("second")) is None
    assert far.told == ["reserve", "release", f"settle 0 of {COST_TOKENS}", "reserve"]


async def test_defect_in_one_record_loses_no_other(logging_office: Office) -> None:
    office = logging_office
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for number in range(5):
        call = office.answered(str(number))
        if number in (0, 3):
            call.series = None  # which a call that was opened has
    office.accounting.flush()
    assert [type(context["exception"]) for context in reported] == [AssertionError] * 2
    assert office.ids == ["1", "2", "4"]
    office.answered("after")
    office.accounting.flush()
    assert office.ids == office.logged() == ["1", "2", "4", "after"]
    assert (office.state.in_flight, office.counts().running, len(reported)) == (0, 0, 2)


def test_log_keeps_the_order_of_answers_and_refusals(logging_office: Office) -> None:
    office = logging_office
    request = Request(b"/v1/chat/completions", "POST")
    for number in range(20):
        if number % 3:
            office.answered(str(number))
        else:
            request.request_id = str(number)
            office.accounting.refused(request, error_responses.no_key())
    office.accounting.flush()
    assert office.logged() == [str(number) for number in range(20)]
    assert office.ids == [str(number) for number in range(20) if number % 3]


def test_requests_that_end_in_another_order_are_written_in_that(logging_office: Office) -> None:
    office = logging_office
    calls = [office.opened(str(number)) for number in range(4)]
    for number in (2, 0, 3, 1):
        office.accounting.close(calls[number], time.monotonic(), status=200, outcome="ok")
    office.accounting.flush()
    assert office.ids == office.logged() == ["2", "0", "3", "1"]


def test_record_has_the_times_of_the_request_and_not_of_the_writing() -> None:
    office = Office()
    call = office.opened()
    begun_unix_s, received_s = time.time(), call.request.received_s
    office.accounting.close(call, time.monotonic(), status=200, outcome="ok")
    latest_s = time.monotonic()
    office.accounting.flush()
    (record,) = office.state.recent.newest()
    assert 0 < record.ended_s <= latest_s - received_s
    assert record.received_unix_s == pytest.approx(begun_unix_s, abs=5.0)


def test_what_ended_does_not_heap_up() -> None:
    office = Office()
    for number in range(1000):
        office.answered(str(number))
        if office.ids:
            break
    assert 1 < number < 999 and office.ids == [str(n) for n in range(number + 1)]


async def test_running_gateway_settles_by_itself(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(await make_upstream())
    assert (await (await connect(gateway)).post(ASK)).status == 200
    await eventually(lambda: len(gateway.state.recent) == 1, "it is written down")


async def test_whoever_asks_finds_what_just_ended(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(await make_upstream())
    client = await connect(gateway)
    asked = gateway.steering.answers
    for number in range(1, 4):
        assert (await client.post(ASK, headers=f"x-request-id: {number}\r\n")).status == 200
        assert (await asked.ask(TimelineQuery(str(number))))["request"]["status"] == 200
        assert (await client.post(ASK, headers=f"x-request-id: again-{number}\r\n")).status == 200
        assert len((await asked.ask(RecentQuery()))["requests"]) == 4 * number - 2
        assert (await client.post(ASK)).status == 200
        assert [day["requests"] for day in (await asked.ask(UsageQuery()))["days"]] == [4 * number - 1]
        client.send(post_bytes(ASK))
        assert (await client.response()).status == 200
        (series,) = (await asked.ask(MetricsQuery()))["series"]
        assert (series["outcomes"], series["in_flight"]) == ({"ok": 4 * number}, 0)


async def test_stopping_gateway_writes_all_down(
    make_upstream: Any, make_gateway: Any, connect: Any, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    gateway = await make_gateway(await make_upstream(), settings={"access_log": str(log)})
    client = await connect(gateway)
    for number in range(7):
        assert (await client.post(ASK, headers=f"x-request-id: {number}\r\n")).status == 200
    gateway.stop(1.0)
    await gateway.stopped.wait()
    assert [json.loads(line)["id"] for line in log.read_text().splitlines()] == [str(n) for n in range(7)]
    assert len(gateway.state.recent.newest()) == 7
