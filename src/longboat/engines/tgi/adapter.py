"""Turns a gang's plan into the command of TGI's launcher, and reads its log and metrics.

Flags, variables and paths are those of TGI 3.3; each flag is also a variable in capitals. No package holds the server,
so the fleet file names the folder of the user's own build: ``engine: {kind: tgi, environment: /srv/tgi}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import ClassVar

from longboat.core.errors import Problem
from longboat.core.plan import GangPlan, GangShape
from longboat.core.states import Phase
from longboat.engines.card_parts import part_of_card
from longboat.engines.contract import (
    Ability,
    EngineAdapter,
    EngineEnvironment,
    LoadMetrics,
    PortRequest,
    Probe,
    RankCommand,
)
from longboat.engines.extra_arguments import ExtraArguments

__all__ = ("LAUNCHER", "TgiAdapter")

LAUNCHER = "text-generation-launcher"
_CAPACITY = 128  # default of --max-concurrent-requests; further requests are refused with 429
_OWNED = {
    "--api-key": "the fleet's own key is given to the engine",
    "--hostname": "the node's address is given to the engine",
    "--master-addr": "one host runs all shards",
    "--master-port": "a free port is found",
    "--max-total-tokens": "write context",
    "--model-id": "write source",
    "--num-shard": "write split: {tensor: N}",
    "--port": "a free port is found",
    "-p": "a free port is found",
    "--prometheus-port": "a free port is found",
    "--shard-uds-path": "each replica has its own",
    "--sharded": "write split: {tensor: N}",
}
_LONGEST_PROMPT = ("--max-input-tokens", "--max-input-length")
"""Two names of one setting; the launcher refuses both together."""
ARGUMENTS = ExtraArguments(
    lambda word: word.partition("=")[0] if word.startswith("-") else None,
    lambda flag: flag if flag in _OWNED else None,
    _OWNED,
    units={},
)
_PHASES = (
    ("Starting shard", Phase.LOADING),
    ("Shard ready", Phase.WARMING),
    ("Warming up model", Phase.WARMING),
)


class TgiAdapter(EngineAdapter):
    """The adapter of TGI; see ``EngineAdapter``. It never resumes: the engine takes text and no token ids."""

    kind = "tgi"
    program = LAUNCHER
    abilities: ClassVar[frozenset[Ability]] = frozenset(("tensor", "hub"))
    memory_flag = "--cuda-memory-fraction"
    load_metrics = LoadMetrics(
        running="tgi_batch_current_size",
        waiting="tgi_queue_size",
        prompt_tokens="tgi_request_input_length_sum",
        generation_tokens="tgi_request_generated_tokens_sum",
    )

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Return the launcher's command; ``environment`` is required, and nothing is put on an import path."""
        if environment is None:
            raise ValueError("TGI is started from the user's own environment")
        return RankCommand(argv=(environment.python, *_arguments(plan), *self._part(plan)), env=_environment(plan))

    def _part(self, plan: GangPlan) -> tuple[str, ...]:
        """Return the limit of memory on a card that others share, unless the user set it."""
        found = part_of_card(self, plan.shape.resources.num_gpus)
        is_given = self.memory_flag in ARGUMENTS.flags(plan.extra_args)
        return () if is_given else tuple(word for pair in found for word in pair)

    def ports(self, shape: GangShape) -> tuple[PortRequest, ...]:
        """Return the ports of the API, of the metrics and of the shards' meeting."""
        return tuple(PortRequest(purpose=purpose, node_rank=0) for purpose in ("api", "metrics", "master"))

    def probe(self, plan: GangPlan) -> Probe:
        """Return a request for one greedy token: ``/health`` does not make every shard compute."""
        body = {"inputs": "Hello", "parameters": {"max_new_tokens": 1, "do_sample": False}}
        headers = {"content-type": "application/json"}
        if plan.api_key:
            headers["authorization"] = f"Bearer {plan.api_key}"
        return Probe(path="/generate", body=json.dumps(body).encode(), headers=headers)

    def capacity(self, plan: GangPlan) -> int:
        """Return the argument's value, else the launcher's default."""
        return ARGUMENTS.number("--max-concurrent-requests", plan.extra_args) or _CAPACITY

    def phase_of(self, log_line: str) -> Phase | None:
        return next((phase for words, phase in _PHASES if words in log_line), None)

    def argument_problems(self, args: Sequence[str]) -> tuple[Problem, ...]:
        """Refuse flags that Longboat sets."""
        return ARGUMENTS.problems(args)


def _arguments(plan: GangPlan) -> Iterator[str]:
    head = plan.head
    yield from ("--model-id", plan.model_path, "--hostname", head.address, "--port", str(head.ports["api"]))
    yield from ("--prometheus-port", str(head.ports["metrics"]))
    yield from ("--shard-uds-path", f"/tmp/longboat-tgi-{head.ports['api']}")  # noqa: S108 (the launcher's own sockets)
    if plan.shape.tensor > 1:
        yield from ("--sharded", "true", "--num-shard", str(plan.shape.tensor))
        yield from ("--master-addr", head.address, "--master-port", str(head.ports["master"]))
    if plan.context_tokens is not None:
        yield from ("--max-total-tokens", str(plan.context_tokens))
        if ARGUMENTS.flags(plan.extra_args).isdisjoint(_LONGEST_PROMPT):
            yield from ("--max-input-tokens", str(max(1, plan.context_tokens - 1)))
    yield from plan.extra_args


def _environment(plan: GangPlan) -> dict[str, str | None]:
    env: dict[str, str | None] = {
        "API_KEY": plan.api_key or None,
        "USAGE_STATS": "off",
        "NCCL_SOCKET_IFNAME": plan.head.interface,
        "PYTHONPATH": None,
        "PYTHONHOME": None,
        "VIRTUAL_ENV": None,
    }
    if PurePath(plan.model_path).is_absolute():
        env["HF_HUB_OFFLINE"] = "1"
    if plan.head.gpu_ids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(plan.head.gpu_ids)
    return env
