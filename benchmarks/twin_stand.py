"""Engines and a gateway for ``bench_twin.py``, and the load that both the gateway and the twin get."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from real_engine import FIRST_TOKEN, bench, free_port, processes_of

from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.traces.sessions import Sessions, generate_sessions
from longboat.simulator.traces.trace_request import TraceRequest

MODEL = "m"
KEY_VARIABLE = "LONGBOAT_BENCH_ENGINE_KEY"
LAST_TOKEN = 3700
READY_DEADLINE_S, ANSWER_DEADLINE_S = 180.0, 300.0


@dataclass
class Seen:
    """What a client saw of one answer."""

    began_s: float = 0.0  # on the client's clock
    ttft_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    num_tokens: int = 0


@contextmanager
def fake_engines(count: int, flags: Sequence[str]) -> Iterator[list[str]]:
    """Addresses of fake engines, which end with the block."""
    ports = [free_port() for _ in range(count)]
    told = [(sys.executable, "-m", "longboat_fake", "--model", MODEL, "--port", str(port), *flags) for port in ports]
    with _processes(told):
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url in urls:
            wait_until_well(url)
        yield urls


@dataclass(frozen=True, kw_only=True)
class RealEngine:
    """What real vLLM engines serve, and how. ``--args`` of a benchmark are further arguments of vLLM."""

    model: str = "builtin:tiny"
    context_tokens: int = 4096
    cache_bytes: int = 256 << 20
    batched_tokens: int = 2048
    sequences: int = 64
    real_time: bool = False  # whether engines, gateways and client go before all else on the machine
    args: tuple[str, ...] = ()

    @classmethod
    def told(cls, options: argparse.Namespace) -> RealEngine:
        """As the options of a command say."""
        words = tuple(options.args.split())
        return cls(
            model=options.model,
            cache_bytes=options.cache_mib << 20,
            batched_tokens=options.batched_tokens,
            real_time=options.real_time,
            args=words,
        )

    @contextmanager
    def running(self, folder: Path, count: int = 1, api_key: str = "") -> Iterator[tuple[list[str], EngineLimits]]:
        """Addresses of engines with empty caches, which end with the block, and their limits."""
        with ExitStack() as stack:
            node = stack.enter_context(bench(folder))
            bounds = ("--max-num-batched-tokens", str(self.batched_tokens), "--max-num-seqs", str(self.sequences))
            args = (*bounds, *self.args)
            engines = [
                stack.enter_context(
                    node.running(
                        self.model,
                        context_tokens=self.context_tokens,
                        cache_bytes=self.cache_bytes,
                        api_key=api_key,
                        args=args,
                    )
                )
                for _ in range(count)
            ]
            if self.real_time:
                go_first([os.getpid(), *(pid for engine in engines for pid in processes_of(engine.pid))])
            limits = EngineLimits(
                kv_blocks=engines[0].api.num_blocks(),
                block_tokens=engines[0].api.block_tokens(),
                max_num_seqs=self.sequences,
                max_num_batched_tokens=self.batched_tokens,
            )
            yield [one.api.url for one in engines], limits


def go_first(pids: Sequence[int]) -> None:
    """Let processes, and those that they start from now on, run before all others: what else runs does not count."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """The options that ``RealEngine.told`` reads."""
    plain = RealEngine()
    parser.add_argument("--model", default=plain.model, help="a built-in model of real engines")
    parser.add_argument("--cache-mib", type=int, default=plain.cache_bytes >> 20, help="KV cache of a real engine")
    parser.add_argument("--batched-tokens", type=int, default=plain.batched_tokens, help="of a step of a real engine")
    parser.add_argument(
        "--real-time", action="store_true", help="run engines, gateways and client with real-time priority (needs root)"
    )
    parser.add_argument("--args", default="", help="further arguments of vLLM, by space")


@contextmanager
def gateway(urls: Sequence[str], policy: str = "least_requests", api_key: str = "") -> Iterator[str]:
    """The address of a gateway in front of engines, which ends with the block.

    policy: of its routing; api_key: that the engines ask for
    """
    port = free_port()
    settings = {
        "upstreams": [{"model": MODEL, "url": url, "api_key_env": KEY_VARIABLE if api_key else None} for url in urls],
        "gateway": {"port": port, "routing": {"policy": policy}},
    }
    start = "from longboat.cli.app import main; main()"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps(settings))
        file.flush()
        words = [sys.executable, "-c", start, "gateway", "run", "--config", file.name]
        with _processes([words], {KEY_VARIABLE: api_key}):
            address = f"http://127.0.0.1:{port}"
            wait_until_well(address, "/v1/models", MODEL)
            yield address


@contextmanager
def _processes(told: Sequence[Sequence[str]], env: Mapping[str, str] | None = None) -> Iterator[None]:
    whole = {**os.environ, **(env or {})}
    running = [subprocess.Popen(words, stdout=subprocess.DEVNULL, env=whole) for words in told]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def wait_until_well(url: str, path: str = "/health", word: str = "") -> None:
    """Until an address answers, with ``word`` in its answer."""
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline_s:
        with suppress(OSError), urllib.request.urlopen(f"{url}{path}", timeout=5) as answer:  # noqa: S310
            if word in answer.read().decode():
                return
        time.sleep(0.1)
    raise SystemExit(f"{url} did not come up in {READY_DEADLINE_S:g} s")


def conversations(settings: Sessions, count: int, seed: int) -> list[TraceRequest]:
    """Return requests of generated sessions, whose outputs are not shared: engines write tokens of their own."""
    requests = list(islice(generate_sessions(settings, seed), count))
    for request in requests:
        request.answer_blocks, request.answer_ends = b"", ()
    return requests


def token_ids(request: TraceRequest) -> list[int]:
    """Return a prompt with as many tokens, in which equal names of blocks are equal tokens."""
    ids: list[int] = []
    for at, end in enumerate(request.ends):
        draw = random.Random(request.blocks[8 * at : 8 * at + 8])
        ids += [draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(end - len(ids))]
    return ids


async def ask(url: str, ids: Sequence[int], output_tokens: int, seen: Seen | None = None) -> Seen:
    """Ask for a completion, and note when each of its tokens comes. seen: takes the notes from the beginning"""
    seen = seen or Seen()
    host, port = url.removeprefix("http://").split(":")
    settings = {"max_tokens": output_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    body = json.dumps({"model": MODEL, "prompt": list(ids), **settings}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    seen.began_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    try:
        await _note(reader, seen)
    finally:
        writer.close()
    return seen


async def _note(reader: asyncio.StreamReader, seen: Seen) -> None:
    last_s = 0.0
    while line := await reader.readline():
        if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
            raise SystemExit(f"refused: {line.decode()} {(await reader.read(2000)).decode()}")
        if not line.startswith(b"data: {"):
            continue
        choices = json.loads(line[6:]).get("choices") or []
        if not choices or (choices[0].get("text") == "" and choices[0].get("finish_reason")):
            continue
        now_s = time.perf_counter()
        if not seen.num_tokens:
            seen.ttft_s = now_s - seen.began_s
        else:
            seen.gaps_s.append(now_s - last_s)
        seen.num_tokens += 1
        last_s = now_s


async def play(url: str, requests: Sequence[TraceRequest]) -> list[Seen]:
    """Ask each request at its time."""
    prompts = [token_ids(request) for request in requests]
    began_s = time.perf_counter()

    async def one(request: TraceRequest, ids: Sequence[int]) -> Seen:
        await asyncio.sleep(max(0.0, began_s + request.at_s - time.perf_counter()))
        return await asyncio.wait_for(ask(url, ids, request.output_tokens), ANSWER_DEADLINE_S)

    return await asyncio.gather(*(one(request, ids) for request, ids in zip(requests, prompts, strict=True)))
