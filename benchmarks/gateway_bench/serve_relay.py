"""A relay as an ingress of Ray Serve: ``serve_relay.py PORT FOLDER URL [URL …]``, run by the peer's own environment.

What a gateway inside Serve costs, at its best: a plain ASGI application without a framework,
aiohttp to the engines; the caller turns on HAProxy and Serve's throughput mode by their variables.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import aiohttp
import ray
from ray import serve

PASSED_ON = (b"content-type", b"content-length")


class Relay:
    """The ASGI application: reads a request whole, passes the answer on block by block."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.num_asked = 0
        self.session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if self.session is None:
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = await whole_body(receive)
        self.num_asked += 1
        url = self.urls[self.num_asked % len(self.urls)] + scope["path"]
        headers = {"content-type": "application/json"}
        async with self.session.request(scope["method"], url, data=body or None, headers=headers) as answer:
            kept = [(name.lower(), value) for name, value in answer.raw_headers if name.lower() in PASSED_ON]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for block in answer.content.iter_any():
                await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def whole_body(receive: Any) -> bytes:
    """All pieces of a request's body."""
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


def main() -> int:
    """Start Ray and Serve here, stay until told to stop."""
    port, folder, urls = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, object_store_memory=100 * 1024 * 1024)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})

        @serve.deployment(max_ongoing_requests=1000)
        @serve.ingress(Relay(urls))
        class Ingress:
            pass

        serve.run(Ingress.bind(), route_prefix="/")
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        while not stop.wait(1.0):
            pass
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
