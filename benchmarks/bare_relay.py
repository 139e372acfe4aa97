"""The least that a relay in Python can do: ``bare_relay.py --port P URL [URL …]``. The floor of the gateway benchmark.

Reads a whole request, parses its JSON, sends it to the next engine over a pooled connection, and writes every block of
the answer on as it came. No key, no count, no check, no error worth the name: never serve with it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop

Address = tuple[str, int]


class Upstream(asyncio.Protocol):
    """One pooled connection to an engine."""

    def __init__(self, relay: Relay, address: Address) -> None:
        self.relay = relay
        self.address = address
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def send(self, client: Client, request: bytes) -> None:
        self.client = client
        self.parser = httptools.HttpResponseParser(self)
        self.complete = False
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        client = self.client
        if client is not None:
            client.transport.write(data)
        if self.complete:
            self.client = None
            self.relay.idle[self.address].append(self)

    def on_message_complete(self) -> None:
        self.complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.relay.idle[self.address]:
            self.relay.idle[self.address].remove(self)
        if self.client is not None:
            self.client.transport.close()


class Relay:
    """The engines, and the connections to them that are free."""

    def __init__(self, addresses: list[Address]) -> None:
        self.idle: dict[Address, list[Upstream]] = {address: [] for address in addresses}
        self.turn: Iterator[Address] = itertools.cycle(addresses)

    async def connect(self, address: Address) -> Upstream:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: Upstream(self, address), *address)
        return upstream


class Client(asyncio.Protocol):
    """One connection of a client; one request at a time."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.path = b""
        self.body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        path, body = self.path, b"".join(self.body)
        self.path, self.body = b"", []
        method = self.parser.get_method()
        if body:
            orjson.loads(body)["model"]
        head = b"%b %b HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.forward(head % (method, path, len(body)) + body)

    def forward(self, request: bytes) -> None:
        address = next(self.relay.turn)
        if free := self.relay.idle[address]:
            free.pop().send(self, request)
            return
        connecting = asyncio.ensure_future(self.relay.connect(address))
        connecting.add_done_callback(lambda done: done.result().send(self, request))


async def serve(port: int, addresses: list[Address]) -> None:
    """Until the process is stopped."""
    relay = Relay(addresses)
    server = await asyncio.get_running_loop().create_server(lambda: Client(relay), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> int:
    """Read where the engines are, serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("urls", nargs="+")
    options = parser.parse_args()
    parts = [urlsplit(url) for url in options.urls]
    uvloop.run(serve(options.port, [(part.hostname or "", part.port or 80) for part in parts]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
