"""A gang of two ranks on two hosts of the network lab, its cables slowed: step times at each rate."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real_engine import Answer, Api, engine_environment, gang_plan, middle, prompt_of, wait_until_well

from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.vllm.adapter import VllmAdapter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from netlab.lab import Host, Lab

API_PORT, MASTER_PORT = 8100, 8101
END_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangLoad:
    """One request at a time. source: a built-in model; cache_bytes: on each rank; prompt_tokens: one length or more."""

    source: str
    context_tokens: int
    cache_bytes: int
    prompt_tokens: Sequence[int]
    output_tokens: int
    rounds: int


def measured(
    load: GangLoad, *, tensor: int, pipeline: int, rates_bits_per_s: Sequence[int]
) -> Mapping[tuple[int, int], Answer]:
    """(Rate, prompt tokens) → TTFT and ITL over a link of that rate: medians of the rounds.

    One gang serves them all, and every round goes through all rates, so that what the machine does besides counts for
    each alike.
    """
    seen: dict[tuple[int, int], list[Answer]] = defaultdict(list)
    with Lab(2) as lab, _gang(lab, load, tensor, pipeline) as api:
        for length in load.prompt_tokens:
            api.ask(prompt_of(length, length), 2)
        for turn in range(load.rounds):
            for number, rate in enumerate(rates_bits_per_s):
                for host in lab.hosts:
                    lab.set_rate(host, rate)
                for length in load.prompt_tokens:
                    prompt = prompt_of(length, 1000 * (turn + 1) + 100 * number + length)
                    seen[rate, length].append(api.ask(prompt, load.output_tokens))
    return {key: middle(answers) for key, answers in seen.items()}


@contextmanager
def _gang(lab: Lab, load: GangLoad, tensor: int, pipeline: int) -> Iterator[Api]:
    environment = engine_environment()
    overlay = str(build_overlay(lab.folder, environment))
    plan = _plan(lab, load, tensor, pipeline)
    adapter = VllmAdapter()
    with ExitStack() as stack:
        processes, logs = [], []
        for rank, host in enumerate(lab.hosts):
            command = adapter.command(plan, rank, environment, overlay)
            logs.append(lab.folder / f"rank{rank}.log")
            processes.append(_start(stack, host, command.argv, command.env, logs[-1]))
        api = Api(f"http://127.0.0.1:{lab.forward(lab.hosts[0], API_PORT)}", plan.model)
        wait_until_well(api, lambda: any(process.poll() is not None for process in processes), logs[0])
        yield api


def _start(stack: ExitStack, host: Host, argv: Sequence[str], env: Mapping[str, str | None], log: Path) -> Any:
    """One rank; all of it ends with its host. Names whose value is None are taken out of the environment."""
    words = ["env", *(word for name, value in env.items() if value is None for word in ("-u", name)), *argv]
    output = stack.enter_context(log.open("wb"))
    told = {name: value for name, value in env.items() if value is not None}
    process = host.popen(words, env=told, output=output.fileno())

    def end() -> None:
        process.terminate()
        process.wait(END_DEADLINE_S)

    stack.callback(end)
    return process


def _plan(lab: Lab, load: GangLoad, tensor: int, pipeline: int) -> GangPlan:
    ranks = tuple(
        RankPlan(
            node_rank=rank,
            node_id=host.name,
            address=host.address,
            interface="eth0",
            ports={"api": API_PORT, "master": MASTER_PORT} if rank == 0 else {},
        )
        for rank, host in enumerate(lab.hosts)
    )
    shape = GangShape(tensor=tensor, pipeline=pipeline, num_nodes=len(ranks), resources=RankResources())
    extra_args = ("--kv-cache-memory-bytes", str(load.cache_bytes))
    return gang_plan(load.source, shape, ranks, load.context_tokens, extra_args)
