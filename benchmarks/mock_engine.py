"""An OpenAI-compatible engine that only keeps time: ``mock_engine.py --port P --ttft-ms 10 --itl-ms 5``.

A request's ``max_tokens`` is the number of its chunks: each is one event and one write to the socket; what ends the
answer goes out with the last one. Usage is told as vLLM tells it. It shall cost little beside the proxy before it.
A gateway that asks for a journal gets one, as from our vLLM plugin.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import re
import sys
from typing import ClassVar

import httptools
import orjson
import uvloop

MODEL = "mock"
COMPLETION_PATH = b"completions"
STREAM = re.compile(rb'"stream"\s*:\s*true')
USAGE = re.compile(rb'"include_usage"\s*:\s*true')
TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')
TAIL_BYTES = 4096
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
JOURNAL_HEAD = STREAM_HEAD[:-2] + b"x-longboat-journal: 1\r\n\r\n"
DETAILS = {"id": MODEL, "object": "model", "created": 1, "owned_by": "benchmark", "max_model_len": 1 << 20}
ABOUT = {"served_model_name": MODEL, "is_generation": True, "dp_size": 1}


def chunked(block: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(block), block)


def event(choices: list[dict[str, object]], **more: object) -> bytes:
    """One server-sent event of a chat completion, as a piece of a chunked body."""
    answer = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices}
    return chunked(b"data: " + orjson.dumps({**answer, **more}) + b"\n\n")


def delta(content: dict[str, str], finish: str | None = None) -> list[dict[str, object]]:
    """The ``choices`` of one event."""
    return [{"index": 0, "delta": content, "logprobs": None, "finish_reason": finish}]


def usage(num_tokens: int) -> dict[str, int]:
    """What an engine counts; the prompt is not looked at."""
    return {"prompt_tokens": 10, "completion_tokens": num_tokens, "total_tokens": num_tokens + 10}


TOKEN = event(delta({"content": " token"}))
FIRST = event(delta({"role": "assistant", "content": ""})) + TOKEN
FINISH = event(delta({"content": ""}, "length"))
DONE = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@functools.lru_cache(maxsize=4096)
def journaled(block: bytes, first: int) -> bytes:
    """The same events with the lines that tell token ids. first: how many tokens there are with the first of them.

    Kept, so that the engine's pace is the same with and without: a slower one is read in smaller pieces.
    """
    told = []
    for number, event_of in enumerate(block.replace(b"0\r\n\r\n", b"").split(b"\n\n\r\n")[:-1], first):
        data = event_of.partition(b"\r\n")[2]
        lines = b": ids 0 %d\nid: %d\n" % (1000 + number, number) if b"[DONE]" not in data else b""
        told.append(chunked(lines + data + b"\n\n"))
    return b"".join(told) + (b"0\r\n\r\n" if block.endswith(b"0\r\n\r\n") else b"")


class Engine(asyncio.Protocol):
    """One connection; one request at a time."""

    ttft_s = 0.01
    itl_s = 0.005
    seen: ClassVar[dict[str, int]] = {"requests": 0, "cache_salt": 0, "include_usage": 0}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = transport  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.path = b""
        self.body: list[bytes] = []
        self.left = 0
        self.ending = b""
        self.due_s = 0.0
        self.journal = False
        self.told = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            if self.transport:
                self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-longboat-journal":
            self.journal = True

    def on_message_begin(self) -> None:
        self.journal = False

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        path, body = self.path, b"".join(self.body)
        self.path, self.body = b"", []
        if COMPLETION_PATH in path:
            self.complete(body)
        elif path == b"/stats":
            self.answer(Engine.seen)
        elif b"models" in path:
            self.answer({"object": "list", "data": [DETAILS]})
        else:
            self.answer({"status": "ok", **ABOUT})

    def complete(self, body: bytes) -> None:
        """Only both ends of the body are searched: settings stand before or after the prompt."""
        ends = body if len(body) <= 2 * TAIL_BYTES else body[:TAIL_BYTES] + body[-TAIL_BYTES:]
        found = TOKENS.search(ends)
        num_tokens = int(found.group(1)) if found else 16
        Engine.seen["requests"] += 1
        Engine.seen["cache_salt"] += b'"cache_salt"' in ends
        if not STREAM.search(ends):
            self.loop.call_later(self.ttft_s, self.whole, num_tokens)
            return
        self.left = num_tokens
        counts = USAGE.search(ends) is not None
        Engine.seen["include_usage"] += counts
        counted = event([], usage=usage(num_tokens)) if counts else b""
        self.ending = FINISH + counted + DONE
        self.due_s = self.loop.time() + self.ttft_s
        self.told = 1
        first = JOURNAL_HEAD + journaled(FIRST, 1) if self.journal else STREAM_HEAD + FIRST
        if self.journal:
            self.ending = journaled(self.ending, num_tokens)
        self.loop.call_at(self.due_s, self.next, first)

    def next(self, block: bytes) -> None:
        """One chunk now, the next one later; the pace does not drift."""
        if self.transport is None:
            return
        self.left -= 1
        if self.left <= 0:
            self.transport.write(block + self.ending)
            return
        self.transport.write(block)
        self.due_s += self.itl_s
        self.told += 1
        self.loop.call_at(self.due_s, self.next, journaled(TOKEN, self.told) if self.journal else TOKEN)

    def whole(self, num_tokens: int) -> None:
        message = {"role": "assistant", "content": " token" * num_tokens}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices}
        self.answer({**answer, "usage": usage(num_tokens)})

    def answer(self, document: object) -> None:
        if self.transport is None:
            return
        body = orjson.dumps(document)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)


async def serve(port: int) -> None:
    """Until the process is stopped."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> int:
    """Read the pace, serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, default=10.0, help="milliseconds to the first chunk")
    parser.add_argument("--itl-ms", type=float, default=5.0, help="milliseconds between chunks")
    options = parser.parse_args()
    Engine.ttft_s, Engine.itl_s = options.ttft_ms / 1e3, options.itl_ms / 1e3
    uvloop.run(serve(options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
