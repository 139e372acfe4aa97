"""Real vLLM engines on this machine for benchmarks: started from a warm zygote, asked, and looked at.

What is read of an engine: weight bytes as it counted them when they were loaded (its log), blocks of its cache
(``/metrics``), and the memory that it added to the machine (proportional set sizes of ``/proc``).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loop_thread import loop_in_thread

from longboat.builtin.models import ensure
from longboat.core.errors import EngineError
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.contract import EngineEnvironment
from longboat.engines.environments.environment import environment_at
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.launch.process import RankProcess, start_rank
from longboat.engines.launch.zygote_client import ZygoteClient, ensure_zygote, stop_all
from longboat.engines.metrics import read_samples
from longboat.engines.vllm.adapter import VllmAdapter
from longboat.folders import home_folder

MIB = 2**20
IMPORT_DEADLINE_S, READY_DEADLINE_S, END_DEADLINE_S, ANSWER_DEADLINE_S = 240.0, 400.0, 60.0, 600.0
TOLD_WEIGHTS = re.compile(r"Longboat: weights: (\d+) bytes in (\d+) tensors, tables: (\d+) bytes")
VOCABULARY = 4096
SPREAD = 0.2
WRITTEN = ("Pss_Anon", "Pss_Shmem")
# Tokens that no prompt of these benchmarks holds: end of text and the like are among the first.
FIRST_TOKEN = 64


def engine_environment() -> EngineEnvironment:
    """The engine environment that tests use, else the only one under ``LONGBOAT_HOME``."""
    told = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
    found = sorted((home_folder() / "engines").glob("vllm-*/bin/python"))
    if not told and not found:
        raise SystemExit("no engine environment: make engine")
    return environment_at("vllm", Path(told) if told else found[-1])


def free_port() -> int:
    """A TCP port of loopback that nobody has right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer: seconds to the first token, and between the tokens after it (their mean)."""

    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class Api:
    """An engine's HTTP API. url: without a path; model: its name there."""

    url: str
    model: str

    def is_well(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:  # noqa: S310
            return str(answer.read().decode())

    def num_blocks(self) -> int:
        """Blocks of the cache, as the engine made them."""
        return self._of_cache("num_gpu_blocks")

    def block_tokens(self) -> int:
        """Tokens of a block of the cache."""
        return self._of_cache("block_size")

    def _of_cache(self, name: str) -> int:
        infos = [sample for sample in read_samples(self.metrics()) if sample.name == "vllm:cache_config_info"]
        return int(infos[0].labels[name])

    def ask(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """A greedy completion of exactly ``max_tokens``, streamed."""
        body = {"model": self.model, "prompt": list(prompt), "max_tokens": max_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True, "detokenize": False}
        request = urllib.request.Request(  # noqa: S310
            f"{self.url}/v1/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        began_s, times = time.monotonic(), []
        with urllib.request.urlopen(request, timeout=ANSWER_DEADLINE_S) as answer:  # noqa: S310
            times += [time.monotonic() for line in answer if line.startswith(b"data: {")]
        if len(times) < 1:
            raise RuntimeError("an answer without a token")
        # Tokens may share a chunk: the mean counts tokens, not chunks.
        itl_s = (times[-1] - times[0]) / (max_tokens - 1) if max_tokens > 1 else 0.0
        return Answer(ttft_s=times[0] - began_s, itl_s=itl_s)


def prompt_of(num_tokens: int, number: int) -> list[int]:
    """A prompt that begins otherwise than those of other numbers, so that nothing of it is cached."""
    span = VOCABULARY - FIRST_TOKEN
    return [FIRST_TOKEN + (number * 7919 + place * 31 + place * place * number) % span for place in range(num_tokens)]


def middle(answers: Sequence[Answer]) -> Answer:
    """Medians."""
    return Answer(
        ttft_s=statistics.median(answer.ttft_s for answer in answers),
        itl_s=statistics.median(answer.itl_s for answer in answers),
    )


def closed_loop(
    api: Api,
    *,
    concurrency: int,
    prompt_tokens: int,
    output_tokens: int,
    waves: int,
    seed: int,
    spread: float = SPREAD,
    least_s: float = 0.0,
) -> Answer:
    """Mean TTFT and ITL of all answers; each client sends ``waves`` requests, one after the other, and goes on so.

    spread: by how much lengths are less than those given, at most, as a fraction; with 0 all clients stay in step
    least_s: no client ends before that
    """

    def ask(number: int) -> Answer:
        prompt_share, output_share = (1.0 - spread * (number * step % 1.0) for step in (0.618034, 0.754878))
        return api.ask(prompt_of(round(prompt_tokens * prompt_share), number), round(output_tokens * output_share))

    def client(place: int) -> list[Answer]:
        answers: list[Answer] = []
        while not answers or len(answers) % waves or time.monotonic() < until_s:
            answers.append(ask(seed + place + concurrency * len(answers)))
        return answers

    until_s = time.monotonic() + least_s
    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        seen = [answer for answers in pool.map(client, range(concurrency)) for answer in answers]
    return Answer(
        ttft_s=statistics.fmean(answer.ttft_s for answer in seen),
        itl_s=statistics.fmean(answer.itl_s for answer in seen),
    )


def told_weights(log: Path) -> tuple[int, int]:
    """Bytes of weights and of tables that the engine's rank loaded, from its log."""
    found = TOLD_WEIGHTS.search(log.read_text(errors="replace"))
    if found is None:
        raise RuntimeError(f"{log} does not say how many bytes of weights were loaded")
    return int(found[1]), int(found[3])


def processes_of(pid: int) -> list[int]:
    """A process and all that it started, which still run."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            waiting += [int(child) for child in task.read_text().split()]
    return found


def memory_bytes(pids: Sequence[int], kinds: Sequence[str]) -> int:
    """Sum over processes of what ``/proc`` tells of their memory, by its names (``Pss_Anon``, ``Private_Clean`` …)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.partition(":")[0] in kinds:
                total += int(line.split()[1]) * 1024
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One running replica of one rank."""

    api: Api
    log: Path
    pid: int
    node: Bench

    def added_bytes(self) -> int:
        """Memory that the replica added: PSS of its processes and of the zygote, less that of the zygote alone.

        Of files (libraries) only pages count that nobody else maps: of others each has a part, which changes when a
        stranger ends.
        """
        own = processes_of(self.pid)
        written = memory_bytes([*own, self.node.zygote_pid], WRITTEN) - self.node.zygote_written_bytes
        return written + memory_bytes(own, ("Private_Clean",))


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine environment with its zygote.

    folder: for logs and sockets
    zygote_pid, zygote_written_bytes: before its first fork; 0 without one
    """

    folder: Path
    environment: EngineEnvironment
    overlay: str
    adapter: VllmAdapter
    zygote: ZygoteClient | None
    zygote_pid: int
    zygote_written_bytes: int

    @contextmanager
    def running(
        self, source: str, *, context_tokens: int, cache_bytes: int, api_key: str = "", args: tuple[str, ...] = ()
    ) -> Iterator[Engine]:
        """A replica of a built-in model, which serves until the end of the block.

        api_key: that it asks for; args: further arguments of vLLM
        """
        words = ("--kv-cache-memory-bytes", str(cache_bytes), *args)
        plan = replace(single_plan(source, context_tokens, free_port(), words), api_key=api_key)
        log = self.folder / f"{source.replace(':', '-')}.log"
        with loop_in_thread() as loop:
            rank = asyncio.run_coroutine_threadsafe(self._start(plan, log), loop).result(END_DEADLINE_S)
            try:
                api = Api(f"http://127.0.0.1:{plan.head.ports['api']}", plan.model)
                wait_until_well(api, lambda: rank.ended, log)
                yield Engine(api=api, log=log, pid=rank.pid, node=self)
            finally:
                loop.call_soon_threadsafe(rank.close)
                asyncio.run_coroutine_threadsafe(rank.wait(), loop).result(END_DEADLINE_S)

    async def _start(self, plan: GangPlan, log: Path) -> RankProcess:
        command = self.adapter.command(plan, 0, self.environment, self.overlay)
        marks = {"LONGBOAT_GANG": f"{plan.model}/{plan.replica}", "LONGBOAT_GENERATION": str(plan.generation)}
        return await start_rank(command, env_tags=marks, log_path=log, zygote=self.zygote)


def await_zygote(starting: Coroutine[Any, Any, ZygoteClient | None]) -> ZygoteClient | None:
    """The zygote; None where this environment cannot have one, as on a GPU whose driver starts threads."""
    try:
        zygote = asyncio.run(starting)
    except EngineError as error:
        print(f"engines start without a zygote: {error}: {error.log_tail[-1:]}", file=sys.stderr)
        return None
    if zygote is None:
        raise SystemExit("the zygote takes too long to import vLLM")
    return zygote


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """The environment with a warm zygote, which ends with the block."""
    environment, adapter = engine_environment(), VllmAdapter()
    overlay = str(build_overlay(folder, environment))
    preload_env = adapter.preload_env(environment, offline=True)
    starting = ensure_zygote(environment, overlay, preload_env, folder, os.getpid(), wait_s=IMPORT_DEADLINE_S)
    try:
        zygote = await_zygote(starting)
        pid = asyncio.run(zygote.ping()).pid if zygote else 0
        written_bytes = memory_bytes([pid], WRITTEN) if pid else 0
        yield Bench(folder, environment, overlay, adapter, zygote, pid, written_bytes)
    finally:
        stop_all(folder)


def single_plan(source: str, context_tokens: int, port: int, extra_args: tuple[str, ...]) -> GangPlan:
    """A gang of one rank on loopback."""
    rank = RankPlan(node_rank=0, node_id="n0", address="127.0.0.1", interface="lo", ports={"api": port})
    shape = GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources())
    return gang_plan(source, shape, (rank,), context_tokens, extra_args)


def gang_plan(
    source: str, shape: GangShape, ranks: tuple[RankPlan, ...], context_tokens: int, extra_args: tuple[str, ...]
) -> GangPlan:
    """A gang of a built-in model, whose folder is written where it is missing."""
    return GangPlan(
        fleet="bench",
        model="m",
        source=source,
        model_path=str(ensure(source, home_folder())),
        replica="r0",
        generation=1,
        shape=shape,
        ranks=ranks,
        context_tokens=context_tokens,
        extra_args=extra_args,
    )


def wait_until_well(api: Api, ended: Any, log: Path) -> None:
    """Until ``/health`` answers. Raises RuntimeError with the end of the log where it does not."""
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while not api.is_well():
        if (ended() if callable(ended) else ended) or time.monotonic() > deadline_s:
            raise RuntimeError(f"the engine does not serve:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


def machine_facts() -> Mapping[str, str]:
    """Processor, cores and memory of this machine, in words."""
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    kib = int(re.findall(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)[0])
    return {"processor": names[0] if names else "?", "cores": str(len(names)), "memory": f"{kib / 2**20:.1f} GiB"}
