"""Counters of a fleet in a real Redis, and without it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis_server
from counting import START_S

from longboat.core.errors import UserInputError
from longboat.core.policy import TenantPolicy
from longboat.gateway.limits import redis_exchange, redis_script
from longboat.gateway.limits.counters import LocalCounters
from longboat.gateway.limits.redis_counters import RedisCounters

pytest.importorskip("redis", reason="the package redis is not installed")

PROGRAMS = redis_server.programs()
DAY_S = 86_400
LIMITED = TenantPolicy(name="a", requests_per_minute=1000)


@pytest.fixture(autouse=True)
def any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tests count at times of their own, however far these are from Redis's clock."""
    monkeypatch.setattr(redis_script, "SKEW_S", 1e9)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    redis_server.wait_for_redis(monkeypatch)


@pytest.fixture
def fifty_ms(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway waits no longer than it does in use."""
    redis_server.wait_for_redis(monkeypatch, 0.05)


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[redis_server.RedisServer]:
    if request.param not in PROGRAMS:
        pytest.skip(f"no {request.param}-server is here: install the development requirements")
    made = redis_server.RedisServer(PROGRAMS[request.param], tmp_path, password="hush")
    made.start()
    try:
        yield made
    finally:
        made.kill()


@contextlib.asynccontextmanager
async def gateways(url: str, count: int, *, num_gateways: int = 1) -> AsyncIterator[list[RedisCounters]]:
    made = [RedisCounters(url, fleet="f", fallback=LocalCounters(num_gateways=num_gateways)) for _ in range(count)]
    for counters in made:
        await counters.start()
    try:
        yield made
    finally:
        for counters in made:
            await counters.stop()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1000):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come in 20 s")


async def test_exchange_stops_though_a_call_takes_the_cancellation_for_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_exchange, "RETRY_S", 0.01)
    counters = RedisCounters("redis://127.0.0.1:1/0", fleet="f", fallback=LocalCounters())
    await counters.start()
    calls = asyncio.Event()

    async def send(_batch: object) -> None:
        calls.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ConnectionError from None

    monkeypatch.setattr(counters._exchange._link, "send", send)
    await asyncio.wait_for(calls.wait(), 30)
    await asyncio.wait_for(counters.stop(), 30)


async def test_a_reply_that_cannot_be_used_does_not_end_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_exchange, "RETRY_S", 0.01)
    monkeypatch.setattr(redis_exchange, "HEARTBEAT_S", 0.01)
    counters = RedisCounters("redis://127.0.0.1:1/0", fleet="f", fallback=LocalCounters())
    num_calls, fourth = 0, asyncio.Event()

    async def send(_batch: object) -> dict[str, object]:
        nonlocal num_calls
        num_calls += 1
        if num_calls in (2, 3):
            return {"answers": []}
        if num_calls > 3:
            fourth.set()
        return {"answers": [], "known": True}

    monkeypatch.setattr(counters._exchange._link, "send", send)
    await counters.start()
    await asyncio.wait_for(fourth.wait(), 30)
    await asyncio.wait_for(counters.stop(), 30)


async def told(counters: RedisCounters) -> None:
    """Until Redis knows all."""

    async def is_done() -> bool:
        return not counters._news.changed and counters._exchange.unanswered is None and not counters.degraded

    await until(is_done)


async def in_redis(url: str, tenant: str) -> tuple[int, int, int]:
    """Requests and tokens of the current minute, tokens of the day."""
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:
        found = await client.hgetall(f"{{longboat:f}}:used:{tenant}")
    return int(found[b"requests"]), int(found[b"tokens"]), int(found[b"today"])


async def test_a_call_is_known_as_long_as_its_counts_are(server: redis_server.RedisServer) -> None:
    """A gateway may be cut off from Redis for hours before it repeats a call whose reply was lost."""
    from redis.asyncio import Redis

    async with gateways(server.url, 1) as (counters,), Redis.from_url(server.url) as client:
        assert await counters.reserve(LIMITED, tokens=1, now_s=START_S) is None
        (last,) = await client.keys("{longboat:f}:last:*")
        assert await client.ttl(last) >= await client.ttl("{longboat:f}:used:a") > DAY_S


class FlakyProxy:
    """Stands before Redis; cuts connections at random: before the question, or before the answer."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._target = port
        self._chance = chance
        self.cut_ratio = 0.0
        self.num_cuts = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FlakyProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target)
        pumps = [
            asyncio.create_task(self._pump(reader, to_writer)),
            asyncio.create_task(self._pump(to_reader, writer)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        writer.close()
        to_writer.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await source.read(65536):
                if self._chance.random() < self.cut_ratio:
                    self.num_cuts += 1
                    return
                target.write(block)


async def test_gateways_share_a_limit(server: redis_server.RedisServer) -> None:
    tenant = TenantPolicy(name="ann", requests_per_minute=50)
    async with gateways(server.url, 3) as many:
        asked = [many[i % 3].reserve(tenant, tokens=10, now_s=START_S) for i in range(90)]
        results = await asyncio.gather(*asked)
        assert results.count(None) == 50
        assert not any(counters.degraded for counters in many)
        denied = next(result for result in results if result is not None)
        assert (denied.limit, denied.value, denied.limit_value) == ("requests_per_minute", 50, 50)
        assert denied.retry_after_s is not None and denied.retry_after_s >= 1


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (TenantPolicy(name="a", tokens_per_minute=100), "tokens_per_minute"),
        (TenantPolicy(name="a", tokens_per_day=100), "tokens_per_day"),
        (TenantPolicy(name="a", concurrent_requests=2), "concurrent_requests"),
    ],
)
async def test_each_limit_holds_over_gateways(
    server: redis_server.RedisServer, limits: TenantPolicy, name: str
) -> None:
    async with gateways(server.url, 2) as (one, other):
        assert await one.reserve(limits, tokens=50, now_s=START_S) is None
        assert await other.reserve(limits, tokens=50, now_s=START_S) is None
        denied = await one.reserve(limits, tokens=50, now_s=START_S)
        assert denied is not None and denied.limit == name


async def test_settled_tokens_make_room_in_the_other_gateway(server: redis_server.RedisServer) -> None:
    tenant = TenantPolicy(name="a", tokens_per_day=100)
    async with gateways(server.url, 2) as (one, other):
        assert await one.reserve(tenant, tokens=100, now_s=START_S) is None
        assert await other.reserve(tenant, tokens=10, now_s=START_S) is not None
        one.settle(tenant, reserved_tokens=100, used_tokens=5, reserved_s=START_S, now_s=START_S)
        one.release(tenant)
        await told(one)
        assert await other.reserve(tenant, tokens=10, now_s=START_S) is None


async def test_tenant_without_limits_waits_for_nothing_and_is_counted(server: redis_server.RedisServer) -> None:
    tenant = TenantPolicy(name="free")
    async with gateways(server.url, 1) as [counters]:
        with pytest.raises(StopIteration) as answered:
            counters.reserve(tenant, tokens=8, now_s=START_S).send(None)
        assert answered.value.value is None
        await told(counters)
        assert await in_redis(server.url, "free") == (1, 8, 8)


async def test_windows_roll_in_redis(server: redis_server.RedisServer) -> None:
    tenant = TenantPolicy(name="a", requests_per_minute=1, tokens_per_day=30)
    async with gateways(server.url, 1) as [counters]:
        assert await counters.reserve(tenant, tokens=10, now_s=START_S) is None
        assert await counters.reserve(tenant, tokens=10, now_s=START_S + 61) is not None
        assert await counters.reserve(tenant, tokens=10, now_s=START_S + 120) is None
        assert await counters.reserve(tenant, tokens=20, now_s=START_S + 240) is not None
        assert await counters.reserve(tenant, tokens=20, now_s=START_S + DAY_S) is None


async def test_clock_that_is_hours_ahead_moves_no_window(
    server: redis_server.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis.asyncio import Redis

    monkeypatch.setattr(redis_script, "SKEW_S", 60)
    tenants = [TenantPolicy(name="asked", requests_per_minute=1), TenantPolicy(name="free")]
    async with gateways(server.url, 1) as [counters], Redis.from_url(server.url) as client:
        ahead_s = time.time() + 8 * DAY_S
        for tenant in tenants:
            assert await counters.reserve(tenant, tokens=5, now_s=ahead_s) is None
        denied = await counters.reserve(tenants[0], tokens=5, now_s=ahead_s)
        assert denied is not None and (denied.value, denied.limit_value) == (1, 1)
        await told(counters)
        for tenant in tenants:
            used = f"{{longboat:f}}:used:{tenant.name}"
            assert int(await client.hget(used, "minute")) <= time.time() // 60 + 1
            assert int(await client.hget(used, "day")) <= (time.time() + 60) // DAY_S
            await client.hset(used, mapping={"minute": int(ahead_s // 60), "day": int(ahead_s // DAY_S)})
            assert await counters.reserve(tenant, tokens=5, now_s=time.time()) is None
        await told(counters)
        assert [await in_redis(server.url, tenant.name) for tenant in tenants] == [(1, 5, 10), (1, 5, 10)]


async def test_day_to_which_the_clock_of_redis_returns_keeps_its_count(
    server: redis_server.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = TenantPolicy(name="a", tokens_per_day=30)
    today_s = time.time()
    later_s = today_s + 2 * DAY_S
    async with gateways(server.url, 1) as [counters]:
        assert await counters.reserve(tenant, tokens=25, now_s=later_s) is None
        monkeypatch.setattr(redis_script, "SKEW_S", 60)  # as if the clock of Redis went back by two days
        assert await counters.reserve(tenant, tokens=10, now_s=today_s) is not None
        monkeypatch.setattr(redis_script, "SKEW_S", 1e9)
        denied = await counters.reserve(tenant, tokens=10, now_s=later_s)
        assert denied is not None and (denied.value, denied.limit_value) == (25, 30)
        assert await counters.reserve(tenant, tokens=10, now_s=later_s + DAY_S) is None


async def test_running_requests_of_a_dead_gateway_count_no_more(
    server: redis_server.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_script, "ALIVE_S", 1)
    monkeypatch.setattr(redis_exchange, "HEARTBEAT_S", 0.2)
    tenant = TenantPolicy(name="a", concurrent_requests=1)
    async with gateways(server.url, 2) as (dead, other):
        assert await dead.reserve(tenant, tokens=1, now_s=START_S) is None
        assert await other.reserve(tenant, tokens=1, now_s=START_S) is not None
        assert dead._exchange._task is not None
        dead._exchange._task.cancel()

        async def is_let_in() -> bool:
            return await other.reserve(tenant, tokens=1, now_s=START_S) is None

        await until(is_let_in)


async def test_gateway_that_was_taken_for_dead_tells_again_what_runs(
    server: redis_server.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis.asyncio import Redis

    monkeypatch.setattr(redis_exchange, "HEARTBEAT_S", 0.1)
    tenant = TenantPolicy(name="a", concurrent_requests=1)
    async with gateways(server.url, 2) as (one, other), Redis.from_url(server.url) as client:
        assert await one.reserve(tenant, tokens=1, now_s=START_S) is None
        await client.flushall()

        async def is_told() -> bool:
            return bool(await client.hgetall("{longboat:f}:running:a"))

        await until(is_told)
        assert await other.reserve(tenant, tokens=1, now_s=START_S) is not None


async def test_stopped_gateway_takes_its_running_requests_off(server: redis_server.RedisServer) -> None:
    tenant = TenantPolicy(name="a", concurrent_requests=1)
    async with gateways(server.url, 1) as [other]:
        async with gateways(server.url, 1) as [one]:
            assert await one.reserve(tenant, tokens=1, now_s=START_S) is None
        assert await other.reserve(tenant, tokens=1, now_s=START_S) is None


async def test_request_whose_client_went_away_meanwhile_is_not_counted(server: redis_server.RedisServer) -> None:
    tenant = LIMITED
    async with gateways(server.url, 1) as [counters]:
        await counters.reserve(tenant, tokens=7, now_s=START_S)
        for pause in range(6):
            task = asyncio.create_task(counters.reserve(tenant, tokens=100, now_s=START_S))
            for _ in range(pause):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(0.1)
        await told(counters)
        assert (await in_redis(server.url, "a"))[2] == 7
        assert counters._news.running["a"] == 1


async def test_without_redis_each_node_keeps_its_part(
    server: redis_server.RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    tenant = TenantPolicy(name="a", requests_per_minute=10)
    loop = asyncio.get_running_loop()
    async with gateways(server.url, 1, num_gateways=2) as [counters]:
        assert await counters.reserve(tenant, tokens=1, now_s=START_S) is None
        server.kill()
        began_s = loop.time()
        results = [await counters.reserve(tenant, tokens=1, now_s=START_S) for _ in range(9)]
        assert loop.time() - began_s < 5  # nobody waits for what is away
        assert results.count(None) == 4
        assert counters.degraded and counters.num_degraded == 9
    err = caplog.text
    assert err.count("is away") == 1
    assert "hush" not in err


async def test_what_was_decided_without_redis_is_told_to_it_later(
    server: redis_server.RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_exchange, "RETRY_S", 0.1)
    tenant = LIMITED
    async with gateways(server.url, 1) as [counters]:
        await counters.reserve(tenant, tokens=1, now_s=START_S)
        server.kill()
        for _ in range(5):
            assert await counters.reserve(tenant, tokens=10, now_s=START_S) is None
        server.start()
        await told(counters)
        # The server forgot the first one: it keeps nothing on disk.
        assert await in_redis(server.url, "a") == (5, 50, 50)
        assert await counters.reserve(tenant, tokens=10, now_s=START_S) is None
        assert counters.num_degraded == 5
    assert caplog.text.count(" is back\n") == 2  # "until it is back", and that it is


@pytest.mark.usefixtures("fifty_ms")
async def test_redis_is_not_away_where_the_gateway_itself_did_not_run(server: redis_server.RedisServer) -> None:
    async with gateways(server.url, 1) as [counters]:
        asking = asyncio.create_task(counters.reserve(LIMITED, tokens=10, now_s=START_S))
        while not counters._exchange.sent():  # noqa: ASYNC110
            await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251
        assert await asking is None
        assert not counters.degraded and counters.num_degraded == 0


@pytest.mark.usefixtures("fifty_ms")
async def test_redis_that_is_slow_holds_no_request_up(server: redis_server.RedisServer) -> None:
    from redis.asyncio import Redis

    tenant = LIMITED
    async with gateways(server.url, 1) as [counters], Redis.from_url(server.url) as client:
        await client.execute_command("CLIENT", "PAUSE", "700")
        async with asyncio.timeout(0.6):
            assert await counters.reserve(tenant, tokens=10, now_s=START_S) is None
        assert counters.degraded and counters.num_degraded == 1
        await told(counters)
        assert await in_redis(server.url, "a") == (1, 10, 10)


async def test_redis_that_was_away_at_the_start_is_used_when_it_comes(
    server: redis_server.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_exchange, "RETRY_S", 0.1)
    server.kill()
    async with gateways(server.url, 1) as [counters]:
        assert counters.degraded
        server.start()
        await told(counters)
        assert await counters.reserve(TenantPolicy(name="a"), tokens=1, now_s=START_S) is None
        assert counters.num_degraded == 0


async def test_ten_thousand_requests_over_a_broken_line_lose_nothing_and_count_nothing_twice(
    server: redis_server.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_exchange, "RETRY_S", 0.02)
    chance = random.Random(13)
    tenants = (
        TenantPolicy(name="wide", tokens_per_day=10**9),
        TenantPolicy(name="limited", tokens_per_minute=30_000, concurrent_requests=9),
    )
    used = dict.fromkeys(("wide", "limited"), 0)
    now_s = START_S
    outcomes = {"admitted": 0, "denied": 0, "gone": 0}

    async def one_request(counters: RedisCounters) -> None:
        nonlocal now_s
        now_s += chance.random() / 50
        tenant, tokens, began_s = chance.choice(tenants), chance.randrange(300), now_s
        asking = asyncio.create_task(counters.reserve(tenant, tokens=tokens, now_s=began_s))
        if chance.random() < 0.1:
            await asyncio.sleep(0)
            asking.cancel()
        try:
            denied = await asking
        except asyncio.CancelledError:
            outcomes["gone"] += 1
            return
        outcomes["denied" if denied else "admitted"] += 1
        if denied:
            return
        await asyncio.sleep(chance.choice((0, 0, 0.002)))
        spent = chance.choice((0, chance.randrange(600), tokens))
        used[tenant.name] += spent
        counters.settle(tenant, reserved_tokens=tokens, used_tokens=spent, reserved_s=began_s, now_s=now_s)
        counters.release(tenant)

    async def client(counters: RedisCounters) -> None:
        for _ in range(250):
            await one_request(counters)

    async with FlakyProxy(server.port, chance) as proxy, gateways(server.url_at(proxy.port), 2) as many:
        proxy.cut_ratio = 0.02
        await asyncio.gather(*(client(many[i % 2]) for i in range(40)))
        proxy.cut_ratio = 0.0
        for counters in many:
            await told(counters)
            assert all(running == 0 for running in counters._news.running.values())
        assert proxy.num_cuts > 0
        assert sum(outcomes.values()) == 10_000 and min(outcomes.values()) > 0
        assert sum(counters.num_degraded for counters in many) > 0
        for tenant in tenants:
            assert (await in_redis(server.url, tenant.name))[2] == used[tenant.name]


@pytest.mark.parametrize("url", ["hush", "http://hush@h/", "redis://u:hush@h:po/0"])
def test_url_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UserInputError) as caught:
        RedisCounters(url, fleet="f", fallback=LocalCounters())
    assert "hush" not in str(caught.value) + caught.value.hint
    assert caught.value.__suppress_context__
