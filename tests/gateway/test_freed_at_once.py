"""What a request needs is freed when it ends: what waits for the cycle collector grows cold in memory until then."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from fake_upstream import Seen, chunk, event
from gateway_lab import settled

from longboat.gateway.calls.model_request import Call
from longboat.gateway.http.request import Request

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
REQUESTS = {
    "whole": ("/v1/chat/completions", ASK),
    "stream": ("/v1/chat/completions", {**ASK, "stream": True}),
    "completion": ("/v1/completions", {"model": "tiny", "prompt": "hello"}),
    "unknown model": ("/v1/chat/completions", {**ASK, "model": "none"}),
}


async def answer_events(seen: Seen) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    await seen.send(head + chunk(event("a") + event("b")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def collected(kinds: tuple[type, ...]) -> list[Any]:
    """What only the collector could free, of these kinds."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [type(thing).__name__ for thing in gc.garbage if isinstance(thing, kinds)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("name", REQUESTS)
async def test_request_leaves_nothing_for_the_collector(
    name: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    path, document = REQUESTS[name]
    upstream = await (make_upstream(answer_events) if document.get("stream") else make_upstream())
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    for _ in range(3):
        await client.post(document, path)
    gc.collect()
    for _ in range(3):
        await client.post(document, path)
    settled(gateway)
    assert collected((Call, Request)) == []
