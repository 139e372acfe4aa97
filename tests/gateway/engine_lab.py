"""Fake engines as processes that can be killed, stopped and started again, and streams read as a client means them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
from fake_upstream import DEADLINE_S
from gateway_lab import API_KEY, endpoint, post_bytes

from engines.fake_process import PLAIN
from free_ports import free_port
from longboat.core.states import Endpoint, ResumeLevel
from longboat.gateway.process.server import Gateway

Json = dict[str, Any]

CHAT: Json = {"model": "tiny", "messages": [{"role": "user", "content": "Who rows the boat? 🚣"}], "stream": True}
TEXT: Json = {"model": "tiny", "prompt": "Who rows", "stream": True, "max_tokens": 40}
TOOLS = [{"type": "function", "function": {"name": "row", "parameters": {"properties": {"far": {"type": "string"}}}}}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}},
}
RESPONSE: Json = {"model": "tiny", "input": "Who rows the boat?", "stream": True}
REQUESTS: dict[str, tuple[str, Json]] = {
    "greedy": ("/v1/chat/completions", {**CHAT, "max_tokens": 40, "temperature": 0}),
    "usage": ("/v1/chat/completions", {**CHAT, "max_tokens": 40, "stream_options": {"include_usage": True}}),
    "seeded": ("/v1/chat/completions", {**CHAT, "max_tokens": 40, "temperature": 1, "seed": 7}),
    "several": ("/v1/chat/completions", {**CHAT, "seed": 5, "n": 3, "max_tokens": 40}),
    "logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "max_tokens": 40}),
    "reasoning": ("/v1/chat/completions", {**CHAT, "reasoning_effort": "high", "max_tokens": 60}),
    "tool": ("/v1/chat/completions", {**CHAT, "tools": TOOLS, "tool_choice": "required"}),
    "schema": (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    ),
    "stop": ("/v1/chat/completions", {**CHAT, "stop": ["zz"], "max_tokens": 40}),
    "completion": ("/v1/completions", TEXT),
    "completions": ("/v1/completions", {**TEXT, "seed": 5, "n": 2}),
    "completion-logprobs": ("/v1/completions", {**TEXT, "logprobs": 1}),
    "message": ("/v1/messages", {**CHAT, "max_tokens": 40}),
    "message-tool": (
        "/v1/messages",
        {**CHAT, "max_tokens": 64, "tools": [{"name": "row", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
    ),
    "response": ("/v1/responses", RESPONSE),
    "response-tool": ("/v1/responses", {**RESPONSE, "tools": TOOLS, "tool_choice": "required"}),
}


@dataclass
class Engine:
    """One fake engine process."""

    options: tuple[str, ...] = ("--itl-ms", "10")
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def endpoint(self, replica: str, **changes: Any) -> Endpoint:
        return endpoint(self.url, replica, **{"resume": ResumeLevel.CARRIED, "revision": "one", **changes})

    def start(self) -> None:
        """Returns when it serves."""
        argv = ["-m", "longboat_fake", "--model", "tiny", "--port", str(self.port), *self.options]
        env = {**os.environ, "LONGBOAT_ENGINE_API_KEY": API_KEY}
        self.process = subprocess.Popen([sys.executable, *argv], env=env, stdout=subprocess.DEVNULL)
        end_s = time.monotonic() + DEADLINE_S
        while not _serves(self.url):
            assert time.monotonic() < end_s, "the engine does not start"
            time.sleep(0.05)

    async def fault(self, kind: str, **values: Any) -> None:
        """Have the next answer, or the engine, fail in this way. It counts when this returns."""
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {API_KEY}"}, verify=PLAIN) as client:
            answer = await client.post(f"{self.url}/fault", json={"kind": kind, **values})
        assert answer.status_code < 300, answer.text
        await asyncio.sleep(0.1)  # the fake arms itself 20 ms after its answer

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", verify=PLAIN).status_code == 200
    except httpx.TransportError:
        return False


@dataclass
class Stream:
    """One streamed answer as a client got it. done: it came to its proper end."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    done: bool = False

    @property
    def events(self) -> list[Json]:
        lines = self.body.decode().split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def event_ids(self) -> list[str]:
        return [line[4:] for line in self.body.decode().split("\n") if line.startswith("id: ")]

    @property
    def ids(self) -> set[str]:
        """By which the events say that they belong together."""
        return {str(event[name]) for event in self.events for name in ("id", "created") if name in event}

    def meaning(self) -> Json:
        """What a client that puts the events together has in the end; ids that are random are numbered."""
        texts: dict[str, str] = {}
        lists: dict[str, list[Any]] = {}
        ends: list[Any] = []
        for event in self.events:
            _take_event(event, texts, lists, ends)
        ends.sort(key=lambda end: end[0] if isinstance(end, list) else 99)  # choices end in any order
        found = json.dumps({"texts": texts, "lists": lists, "ends": ends, "done": b"data: [DONE]" in self.body})
        known: dict[str, str] = {}
        names = r"(?:chatcmpl|cmpl|resp|msg|fc|call|rs|toolu|chatcmpl-tool|item)[-_][0-9A-Za-z_-]+"
        found = re.sub(names, lambda m: known.setdefault(m[0], f"id{len(known)}"), found)
        meaning: Json = json.loads(re.sub(r'"(created|created_at|completed_at)": [0-9.]+', r'"\1": 0', found))
        return meaning


def _take_event(event: Json, texts: dict[str, str], lists: dict[str, list[Any]], ends: list[Any]) -> None:
    if event.get("error"):
        ends.append(event["error"])
    for choice in event.get("choices", ()):
        _take_delta(str(choice["index"]), choice.get("delta", {"text": choice.get("text")}), texts)
        for name, entries in (choice.get("logprobs") or {}).items():
            lists.setdefault(f"{choice['index']}.{name}", []).extend(entries or ())
        if choice.get("finish_reason"):
            ends.append([choice["index"], choice["finish_reason"], choice.get("stop_reason")])
    if event.get("usage") and not event.get("type"):
        ends.append(event["usage"])
    if kind := event.get("type"):
        delta = event.get("delta")
        if kind.endswith("delta") and kind != "message_delta":
            where = f"{kind} {event.get('index', event.get('output_index'))}"
            said = delta if isinstance(delta, str) else "".join(v for k, v in (delta or {}).items() if k != "type")
            texts[where] = texts.get(where, "") + said
        else:
            ends.append({k: v for k, v in event.items() if k != "sequence_number"})


def _take_delta(index: str, delta: Json, texts: dict[str, str]) -> None:
    for name, value in delta.items():
        if isinstance(value, str):
            texts[f"{index}.{name}"] = texts.get(f"{index}.{name}", "") + value
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        for name, value in (
            ("name", function.get("name")),
            ("arguments", function.get("arguments")),
            ("id", call.get("id")),
        ):
            where = f"{index}.tool{call['index']}.{name}"
            texts[where] = texts.get(where, "") + (value or "")


class Reader:
    """Reads one stream, and can stop to look at what came so far."""

    def __init__(self, gateway: Gateway | int) -> None:
        self._port = gateway if isinstance(gateway, int) else gateway.port
        self.stream = Stream()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, document: Json, headers: str = "") -> Stream:
        """Send the request and read the answer's head."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        self._writer.write(post_bytes(document, path, headers))
        async with asyncio.timeout(DEADLINE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        self.stream.status = int(first.split()[1])
        pairs = (line.partition(":") for line in lines if line)
        self.stream.headers = {name.lower(): value.strip() for name, _, value in pairs}
        return self.stream

    async def events(self, number: int) -> None:
        """Read until so many events came, or the end."""
        while self.stream.body.count(b"data: ") < number and await self._chunk():
            pass

    async def rest(self) -> Stream:
        if length := self.stream.headers.get("content-length"):
            assert self._reader is not None
            async with asyncio.timeout(DEADLINE_S):
                self.stream.body += await self._reader.readexactly(int(length))
            self.stream.done = True
        else:
            while await self._chunk():
                pass
        self.close()
        return self.stream

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    async def _chunk(self) -> bool:
        assert self._reader is not None
        async with asyncio.timeout(DEADLINE_S):
            line = await self._reader.readline()
            if not line:
                return False
            size = int(line, 16)
            self.stream.body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        self.stream.done = self.stream.done or size == 0
        return size > 0


async def streamed(gateway: Gateway | int, path: str, document: Json, headers: str = "") -> Stream:
    """One whole streamed answer."""
    reader = Reader(gateway)
    await reader.ask(path, document, headers)
    return await reader.rest()
