"""Nothing is lost or counted twice: random requests through real exchanges, with engines and clients that misbehave."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from gateway_lab import config, endpoint, table

from longboat.core.policy import Policy, QueuePolicy, ResumePolicy, TenantPolicy
from longboat.core.states import EndpointTable, ResumeLevel
from longboat.gateway.calls.accounting import FAILED
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.exchange.exchange import ClientSide, Exchange
from longboat.gateway.http.request import Request
from longboat.gateway.http.response_head import ResponseHead
from longboat.gateway.http.responses import Refusal
from longboat.gateway.native.leaf_work import ChunkPath
from longboat.gateway.records.recent import RecentRequests
from longboat.gateway.requests.admit import admit
from longboat.gateway.upstreams.connection import UpstreamConnection
from longboat.gateway.upstreams.upstream import Upstream

NUM_REQUESTS = 10_000
PROMPT_TOKENS, COMPLETION_TOKENS = 7, 3
NUM_EVENTS = 4  # that bring words, of each stream
WORD = b'data: {"id":"chatcmpl-1","created":1,"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
USAGE = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "total_tokens": 10}


class Client(ClientSide):
    """The client's side of an exchange: counts what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ends = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def chunk_writer(self) -> Callable[[bytes], object]:
        return self.write

    def exchange_done(self, *, keep: bool) -> None:
        self.ends += 1


class Connection(UpstreamConnection):
    """A connection to an engine that does what the test says."""

    def __init__(self, upstream: Upstream, sent: list[Connection]) -> None:
        super().__init__(upstream.connections.keep)
        self.upstream, self._sent = upstream, sent
        self.path = ChunkPath(self)
        self.sink: Any = None
        self.aborted = False
        self.has_head = False  # this answer's was sent
        self.num_events = 0  # of this answer; an engine that goes on with another's tells all of it again

    @property
    def usable(self) -> bool:
        return True

    def send(self, sink: Any, head: bytes, body: bytes) -> None:
        self.sink = sink
        self.num_events = 0
        self.has_head = False
        self.path.reset()
        self.path.between_chunks = True
        self._sent.append(self)

    def tell(self) -> None:
        """The next event of a stream, with its token."""
        self.num_events += 1
        event = b": ids 0 %d\nid: %d\n%b" % (self.num_events, self.num_events, WORD)
        self.path.data_received(b"%x\r\n%b\r\n" % (len(event), event))

    def data_arrived(self, data: bytes) -> None:
        self.sink.on_block(data[data.index(b"\r\n") + 2 : -2], last=False)

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted, self.sink, self.path.write = True, None, None


class World:
    """One gateway process without sockets: 3 replicas of 4 slots, 3 tenants, one of them with tight limits."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.policy = Policy(
            tenants=(TenantPolicy(name="anonymous", concurrent_requests=50, tokens_per_day=10**9),),
            fallbacks={"tiny": ("spare",)},
            queue=QueuePolicy(max_waiting=20, max_wait_s=0.05),
            resume=ResumePolicy(wait_s=0.5, whole_wait_s=0.2),
        )
        self.state = GatewayState(config(policy=self.policy))
        self.state.recent = self.state.accounting.recent = RecentRequests(NUM_REQUESTS, max_bytes=1 << 30)
        self.state.offer_table("e", self.table())
        self.sent: list[Connection] = []
        self.running: dict[Exchange, tuple[Call, Client]] = {}
        self.num_opened = self.num_denied = self.num_resumed = 0

    def table(self, *, ready: bool = True) -> EndpointTable:
        values: dict[str, Any] = {"capacity": 4, "resume": ResumeLevel.CARRIED, "revision": "one", "ready": ready}
        ends = [endpoint(f"http://127.0.0.1:{9 + i}", f"r{i}", "tiny", **values) for i in range(3)]
        return table(*ends, endpoint("http://127.0.0.1:20", "s0", "spare", capacity=2), models=("tiny", "spare"))

    def connect_all(self) -> None:
        for upstream in self.state.table.upstreams():
            while len(upstream.connections._idle) < 5:
                upstream.connections.keep(Connection(upstream, self.sent))

    def begin(self) -> None:
        stream = self.random.random() < 0.5
        document = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
        request = Request(url=b"/v1/chat/completions", method="POST", request_id="r")
        request.pieces = [orjson.dumps(document)]
        request.held_bytes = len(request.pieces[0])
        self.state.held_bytes += request.held_bytes
        request.noted[b"content-length"] = b"1"
        if self.random.random() < 0.2:
            request.noted[b"x-request-timeout"] = b"0.03"
        call = admit(self.state, request, None, close=False)
        # A deadline may be over by now.
        refusal = call if isinstance(call, Refusal) else self.state.accounting.open(call)
        if isinstance(refusal, Refusal):
            self.num_denied += 1
            self.state.held_bytes -= request.held_bytes
            return
        assert isinstance(call, Call), call
        self.num_opened += 1
        client = Client()
        client.write_paused = self.random.random() < 0.1
        exchange = Exchange(self.state, client, call)
        self.running[exchange] = (call, client)
        exchange.start()

    def step_engine(self) -> None:
        """Something happens on one of the connections that carry a request."""
        busy = [c for c in self.sent if c.sink is not None]
        self.sent[:] = busy
        if not busy:
            return
        connection = self.random.choice(busy)
        sink, kind = connection.sink, self.random.random()
        call, relay = sink._answer.call, sink._answer.relay
        if kind < 0.15:
            connection.used = self.random.random() < 0.3
            connection.sink = None
            sink.on_lost("the test says so")
        elif not connection.has_head:
            connection.has_head = True
            status = 200 if kind < 0.9 else self.random.choice((400, 500))
            streams = status == 200 and call.facts.stream
            kind_of = b"text/event-stream" if streams else b"application/json"
            more = (b"x-longboat-journal", b"1") if streams else (b"content-length", b"9")
            sink.on_head(ResponseHead(status, [(b"content-type", kind_of), more]))
        elif relay is None or not relay.events:
            self.answer(connection, orjson.dumps({"choices": [{}], "usage": USAGE}))
        elif connection.num_events < NUM_EVENTS:
            connection.tell()
        else:
            self.answer(connection, b'data: {"choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % orjson.dumps(USAGE))

    def answer(self, connection: Connection, body: bytes) -> None:
        sink, connection.sink = connection.sink, None
        connection.used = True
        connection.upstream.connections.keep(connection)
        sink.on_block(body, last=True)

    def step_client(self) -> None:
        """A client leaves."""
        waiting = [e for e, (_, client) in self.running.items() if not client.ends]
        if waiting:
            exchange = self.random.choice(waiting)
            self.running[exchange][1].ends += 1
            exchange.abort()

    def step_time(self) -> None:
        for exchange in list(self.running):
            if not self.running[exchange][1].ends:
                exchange.sweep(1e9)
        for pool in self.state.table.pools():
            pool.sweep(time.monotonic())

    def forget_ended(self) -> None:
        for exchange, (call, client) in list(self.running.items()):
            assert client.ends <= 1
            if client.ends:
                assert not call.is_open
                self.check_answer(call, client)
                if client.taken is not None:
                    client.taken(self.random.random() < 0.5)
                del self.running[exchange]

    def check_answer(self, call: Call, client: Client) -> None:
        """A stream that came to its end is whole, whichever engines gave it."""
        if b"data: [DONE]" in client.written and b'"error"' not in client.written:
            assert client.written.count(b'"content":"x"') == NUM_EVENTS
            self.num_resumed += len(call.attempts) > 1


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_or_counted_twice(seed: int) -> None:
    world = World(seed)
    state = world.state
    state.metrics.answers.is_on = True
    while world.num_opened < NUM_REQUESTS // 2:
        world.connect_all()
        for _ in range(world.random.randrange(1, 25)):
            world.begin()
        for _ in range(world.random.randrange(1, 120)):
            world.step_engine()
            if world.random.random() < 0.05:
                world.step_client()
        world.step_time()
        world.forget_ended()
        if world.random.random() < 0.02:
            state.offer_table("e", world.table(ready=world.random.random() < 0.5))
        await asyncio.sleep(0.012 if world.random.random() < 0.1 else 0)
    await _finish(world)
    _check(world)


async def _finish(world: World) -> None:
    world.state.offer_table("e", world.table())
    async with asyncio.timeout(60):
        while world.running:
            world.connect_all()
            world.step_engine()
            world.step_time()
            world.forget_ended()
            await asyncio.sleep(0)


def _check(world: World) -> None:
    state = world.state
    state.accounting.flush()
    assert world.num_resumed
    assert "resumed" in {result for _, result, _ in state.metrics.snapshot()["resumes"]}
    records = state.recent.newest(limit=NUM_REQUESTS)
    assert len(records) == world.num_opened
    outcomes = Counter(record.outcome for record in records)
    assert set(outcomes) >= {"ok", "client_left", "broken", "engine_error", "client_error", "refused"}
    snapshot = state.metrics.snapshot()["series"]
    assert sum((Counter(s["outcomes"]) for s in snapshot), Counter()) == outcomes
    assert all(s["in_flight"] == s["waiting"] == 0 for s in snapshot)
    assert state.in_flight == state.held_bytes == 0
    assert all(u.outstanding == 0 for u in state.table.upstreams())
    assert all(p.in_use == p.num_waiting == p.scheduler.num_running == 0 for p in state.table.pools())
    counts = state.accounting.counters.counts_of("anonymous", time.time())
    assert counts.running == 0
    told = sum((r.prompt_tokens or 0) + (r.completion_tokens or 0) for r in records)
    assert counts.tokens_today >= told
    rows = state.usage.report(1, time.time())
    assert sum(row.requests for row in rows) == world.num_opened
    assert sum(row.prompt_tokens + row.completion_tokens for row in rows) == told
    ended = [r for r in records if r.outcome == "ok" and r.completion_tokens is not None]
    assert all((r.prompt_tokens, r.completion_tokens) == (PROMPT_TOKENS, COMPLETION_TOKENS) for r in ended)
    assert any(r.outcome != "ok" and r.completion_tokens for r in records)  # by the events that came
    made = [r for r in records if r.completion_tokens and r.first_byte_s is not None and r.outcome not in FAILED]
    known = state.metrics.answers.by_model()["tiny"]["1"]
    assert known["number"] == sum(r.pool == "tiny" for r in made) < len(made), "without those of the fallback"
    assert {(computed, itl_s is None) for computed, _, _, itl_s in known["newest"]} >= {(PROMPT_TOKENS, False)}


async def test_stream_that_lost_all_engines_is_counted_once_as_failed() -> None:
    world = World(1)
    world.connect_all()
    while not any(e._call.facts.stream for e in world.running):  # type: ignore[union-attr]
        world.begin()
    connection = next(c for c in world.sent if c.sink._answer.call.facts.stream)
    sink, head = connection.sink, [(b"content-type", b"text/event-stream"), (b"x-longboat-journal", b"1")]
    sink.on_head(ResponseHead(200, head))
    connection.tell()
    world.state.offer_table("e", world.table(ready=False))
    connection.sink = None
    sink.on_lost("the power is off")
    async with asyncio.timeout(30):
        while sink._answer.call.is_open:
            await asyncio.sleep(0.1)
            world.step_time()
    (row,) = world.state.metrics.snapshot()["resumes"]
    assert row[1:] == ["failed", 1]
    await _finish(world)


@pytest.mark.parametrize(("is_whole", "end"), [(True, (200, "ok")), (False, (499, "client_left"))])
async def test_an_answer_that_a_slow_client_did_not_take_is_not_ok(is_whole: bool, end: tuple[int, str]) -> None:
    world = World(1)
    state = world.state
    world.connect_all()
    while not any(not exchange._call.facts.stream for exchange in world.running):  # type: ignore[union-attr]
        world.begin()
    exchange, (call, client) = next(
        (exchange, kept)
        for exchange, kept in world.running.items()
        if not exchange._call.facts.stream  # type: ignore[union-attr]
    )
    client.write_paused = True
    before = state.in_flight
    connection = next(c for c in world.sent if c.sink._answer.call is call)
    body = orjson.dumps({"choices": [{}], "usage": USAGE})
    connection.sink.on_head(ResponseHead(200, [(b"content-length", b"%d" % len(body))]))
    world.answer(connection, body)
    state.accounting.flush()
    assert client.ends == 1 and state.in_flight == before - 1 and not state.recent.newest()
    assert client.taken is not None
    client.taken(is_whole)
    state.accounting.flush()
    (record,) = state.recent.newest()
    assert (record.status, record.outcome, record.completion_tokens) == (*end, COMPLETION_TOKENS)
    del world.running[exchange]
    await _finish(world)


async def test_connection_that_is_free_again_is_not_ended_with_the_request_that_left_it() -> None:
    """Another request may already have it."""
    world = World(1)
    world.connect_all()
    world.begin()
    (connection,) = world.sent
    connection.sink.on_head(ResponseHead(500, [(b"content-type", b"application/json"), (b"content-length", b"2")]))
    world.answer(connection, b"{}")
    await asyncio.sleep(0)
    assert not connection.aborted
    await _finish(world)
