"""Load on one chat-completions endpoint, from one process: ``load.py URL … --clients 32 --requests 600``.

Closed loop (every client asks again when it was answered) or, with ``--rate``, open loop. Its last line is JSON:
counts, times to first byte and to the end, and what the processes that carry ``--watch MARK`` used meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop
from gateway_bench.processes import cpu_s, marked, rss_bytes

WORDS = "the quick brown fox jumps over the lazy dog "
ANSWER_DEADLINE_S = 120.0
OPENING_AT_ONCE = 64
LOOK_EVERY_S = 0.5


class Connection(asyncio.Protocol):
    """One connection of a client; one request at a time."""

    num_events_of_all = 0

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None
        self.status = self.num_events = 0
        self.began_s = self.first_s = self.end_s = 0.0
        self.last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.end()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            if self.transport:
                self.transport.abort()

    def on_body(self, body: bytes) -> None:
        if self.first_s == 0.0:
            self.first_s = time.perf_counter()
        num = body.count(b"data: ")
        self.num_events += num
        Connection.num_events_of_all += num
        self.last = body

    def on_message_complete(self) -> None:
        self.status = int(self.parser.get_status_code())
        self.end()

    def end(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    async def ask(self, request: bytes) -> None:
        """Send; come back when the answer is complete, or broken (then ``status`` is 0)."""
        assert self.transport is not None
        self.parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        self.status = self.num_events = 0
        self.first_s = self.end_s = 0.0
        self.last = b""
        self.began_s = time.perf_counter()
        self.transport.write(request)
        timer = asyncio.get_running_loop().call_later(ANSWER_DEADLINE_S, self.transport.abort)
        await self.done
        timer.cancel()
        self.end_s = time.perf_counter()


class Load:
    """Everything that one run asks and counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        parts = [urlsplit(url) for url in options.urls]
        self.addresses = [(part.hostname or "", part.port or 80) for part in parts]
        self.path = parts[0].path
        self.text = WORDS * (options.prompt_chars // len(WORDS) + 1)
        self.num_asked = 0
        self.num_opened = 0
        self.failures: Counter[str] = Counter()
        self.ttft_s: list[float] = []
        self.total_s: list[float] = []
        self.free: list[Connection] = []

    def request(self, number: int) -> bytes:
        """The bytes of one request. Its number stands first in the prompt, so that no two share a beginning."""
        keys = self.options.keys
        authorization = b"authorization: Bearer %b\r\n" % keys[number % len(keys)].encode() if keys else b""
        if self.options.get:
            return b"GET %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (self.path.encode(), authorization)
        text = f"{self.options.seed}.{number} {self.text}"[: self.options.prompt_chars]
        document = {"model": self.options.model, "messages": [{"role": "user", "content": text}]}
        settings = {"max_tokens": self.options.chunks, "stream": not self.options.whole}
        body = orjson.dumps({**document, **settings})
        return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
            self.path.encode(),
            authorization,
            len(body),
            body,
        )

    async def open(self) -> Connection:
        sources = self.options.sources
        source = (f"127.0.0.{1 + self.num_opened % sources}", 0) if sources > 1 else None
        host, port = self.addresses[self.num_opened % len(self.addresses)]
        self.num_opened += 1
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, host, port, local_addr=source)
        return connection

    async def one(self, connection: Connection, *, counted: bool = True) -> None:
        number, self.num_asked = self.num_asked, self.num_asked + 1
        await connection.ask(self.request(number))
        if not counted:
            return
        if self.is_right(connection):
            self.ttft_s.append(connection.first_s - connection.began_s)
            self.total_s.append(connection.end_s - connection.began_s)
        else:
            self.failures[f"status {connection.status}" if connection.status != 200 else "wrong answer"] += 1

    def is_right(self, connection: Connection) -> bool:
        if connection.status != 200:
            return False
        if self.options.get:
            return True
        if self.options.whole:
            return b'"usage"' in connection.last
        enough = self.options.merged or connection.num_events >= self.options.chunks
        return enough and b"[DONE]" in connection.last

    async def client(self, connection: Connection, end_s: float, delay_s: float) -> None:
        """Ask again and again."""
        await asyncio.sleep(delay_s)
        while self.num_asked < self.options.requests and time.perf_counter() < end_s:
            if connection.transport is None or connection.transport.is_closing():
                connection = await self.open()
            try:
                await self.one(connection)
            except OSError as error:
                self.failures[type(error).__name__] += 1

    async def arrive(self) -> None:
        """One request of the open loop, on a connection that is free."""
        while self.free and self.free[-1].transport is None:
            self.free.pop()
        connection = self.free.pop() if self.free else await self.open()
        await self.one(connection)
        self.free.append(connection)

    async def open_loop(self, end_s: float) -> None:
        began_s = time.perf_counter()
        tasks = []
        for number in range(self.options.requests):
            due_s = began_s + number / self.options.rate
            if due_s > end_s:
                break
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.append(asyncio.ensure_future(self.arrive()))
        await asyncio.gather(*tasks)

    async def closed_loop(self, connections: list[Connection], end_s: float) -> None:
        step_s = self.options.stagger_s / max(1, len(connections))
        await asyncio.gather(*(self.client(c, end_s, i * step_s) for i, c in enumerate(connections)))

    async def run(self) -> dict[str, object]:
        """Warm up, load, count."""
        idle = await open_idle(self)
        connections = [await self.open() for _ in range(0 if self.options.rate else self.options.clients)]
        for _ in range(self.options.warmup):
            await asyncio.gather(*(self.one(connection, counted=False) for connection in connections))
        self.num_asked = 0
        watch = Watch(self.options.watch)
        print('{"event": "begun"}', flush=True)
        began_s = time.perf_counter()
        end_s = began_s + self.options.max_s
        await (self.open_loop(end_s) if self.options.rate else self.closed_loop(connections, end_s))
        wall_s = time.perf_counter() - began_s
        return {**self.result(wall_s), **watch.result(), "idle_lost": await lost_of(idle)}

    def result(self, wall_s: float) -> dict[str, object]:
        return {
            "requests": len(self.total_s),
            "failures": dict(self.failures),
            "wall_s": wall_s,
            "ttft_s": quantiles(self.ttft_s),
            "total_s": quantiles(self.total_s),
        }


class Watch:
    """CPU and memory of the processes under test, from the first request to the last answer; and the pace of events."""

    def __init__(self, mark: str | None) -> None:
        self.pids = marked(mark) if mark else []
        self.began_cpu_s = cpu_s(self.pids)
        self.peak_bytes = rss_bytes(self.pids)
        self.event_rates: list[float] = []
        self.task = asyncio.ensure_future(self.look())

    async def look(self) -> None:
        at_s, seen = time.perf_counter(), Connection.num_events_of_all
        while self.pids:
            await asyncio.sleep(LOOK_EVERY_S)
            now_s, total = time.perf_counter(), Connection.num_events_of_all
            self.event_rates.append((total - seen) / (now_s - at_s))
            at_s, seen = now_s, total
            self.peak_bytes = max(self.peak_bytes, rss_bytes(self.pids))

    def result(self) -> dict[str, object]:
        self.task.cancel()
        used_s = cpu_s(self.pids) - self.began_cpu_s
        memory = {"rss_bytes": rss_bytes(self.pids), "rss_peak_bytes": self.peak_bytes}
        return {"cpu_s": used_s, **memory, "events_per_s": quantiles(self.event_rates)}


LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


async def open_idle(load: Load) -> list[Connection]:
    """Connections that were used once and now do nothing."""
    gate = asyncio.Semaphore(OPENING_AT_ONCE)

    async def opened() -> Connection:
        async with gate:
            connection = await load.open()
            await connection.ask(LIVEZ)
            return connection

    return list(await asyncio.gather(*(opened() for _ in range(load.options.idle))))


async def lost_of(idle: list[Connection]) -> int:
    """How many of them were closed, or do not answer any more."""
    alive = [connection for connection in idle if connection.transport is not None]
    await asyncio.gather(*(connection.ask(LIVEZ) for connection in alive))
    return len(idle) - sum(connection.status == 200 for connection in alive)


def quantiles(values: list[float]) -> dict[str, float | None]:
    """p50, p90, p99 and the largest."""
    ranked = sorted(values)
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    last = len(ranked) - 1
    return {name: ranked[min(last, int(part * len(ranked)))] if ranked else None for name, part in points.items()}


def raise_file_limit() -> None:
    """As many open files as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Read what to ask, ask it, print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="+", metavar="URL", help="connections take them in turn")
    parser.add_argument("--model", default="mock")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--chunks", type=int, default=1, help="max_tokens: chunks of one answer")
    parser.add_argument("--merged", action="store_true", help="the engine may send several tokens in one chunk")
    parser.add_argument("--prompt-chars", type=int, default=800)
    parser.add_argument("--whole", action="store_true", help="no streaming")
    parser.add_argument("--get", action="store_true", help="GET the URL instead")
    parser.add_argument("--rate", type=float, default=0.0, help="open loop: requests a second; 0 is a closed loop")
    parser.add_argument("--stagger-s", type=float, default=0.0, help="clients begin one after another within it")
    parser.add_argument("--max-s", type=float, default=60.0, help="begin no request after this time")
    parser.add_argument("--warmup", type=int, default=1, help="requests of each client before anything is counted")
    parser.add_argument("--idle", type=int, default=0, help="further connections that do nothing meanwhile")
    parser.add_argument("--sources", type=int, default=1, help="source addresses 127.0.0.1 to .N")
    parser.add_argument("--keys", nargs="*", default=[], help="API keys, used in turn")
    parser.add_argument("--seed", default="0", help="begins every prompt")
    parser.add_argument("--watch", metavar="NAME:PID", help="processes whose CPU and memory count")
    options = parser.parse_args()
    raise_file_limit()
    print(orjson.dumps(uvloop.run(Load(options).run())).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
