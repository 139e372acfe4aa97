"""The adapter of the fake engine: a process for tests that answers like an engine and fails on request."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import ClassVar

from longboat.core.plan import GangPlan
from longboat.core.states import Phase
from longboat.core.tasks import POOLING_TASKS
from longboat.engines.contract import Ability, EngineAdapter, EngineCounters, EngineEnvironment, RankCommand
from longboat.engines.vllm.counters import LOAD_METRICS, read_counters
from longboat.engines.vllm.flags import ARGUMENTS

__all__ = ("FAKE_OPTIONS", "FakeAdapter")

FAKE_OPTIONS = ("ttft_ms", "itl_ms", "max_num_seqs", "kv_blocks", "start_s", "block_size", "poison")
"""Options of the fleet file that the fake engine understands; each becomes a flag of the same name."""

DEFAULT_CAPACITY = 256
"""Default of ``fake_server``."""

_PHASES = {"loading": Phase.LOADING, "warming": Phase.WARMING}
_PHASE = re.compile(r"^phase=(\w+) ")


class FakeAdapter(EngineAdapter):
    """The adapter of the fake engine, which runs in this process's interpreter; see ``EngineAdapter``."""

    kind = "fake"
    abilities: ClassVar[frozenset[Ability]] = frozenset(
        (
            *("tensor", "pipeline", "nodes", "layers", "stages", "hub", "options", "media", "adapters"),
            *POOLING_TASKS,
        )
    )
    load_metrics = LOAD_METRICS

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        rank = plan.ranks[node_rank]
        argv = [sys.executable, "-m", "longboat_fake", "--model", plan.model, "--host", rank.address]
        if node_rank == 0:
            argv += ["--port", str(plan.head.ports["api"])]
        argv += [*_gang_flags(plan, node_rank), *_option_flags(plan), *plan.extra_args]
        return RankCommand(argv=tuple(argv), env={"LONGBOAT_ENGINE_API_KEY": plan.api_key or None})

    def capacity(self, plan: GangPlan) -> int:
        """Return the argument that overrides the option, the option, or the fake engine's own default."""
        given = plan.options.get("max_num_seqs")
        return ARGUMENTS.number("--max-num-seqs", plan.extra_args) or (
            given if isinstance(given, int) else DEFAULT_CAPACITY
        )

    def phase_of(self, log_line: str) -> Phase | None:
        found = _PHASE.match(log_line)
        return _PHASES.get(found.group(1)) if found else None

    def counters(self, metrics_text: str) -> EngineCounters:
        return read_counters(metrics_text)


def _gang_flags(plan: GangPlan, node_rank: int) -> Iterator[str]:
    if plan.shape.num_nodes == 1:
        return
    yield from ("--nnodes", str(plan.shape.num_nodes), "--node-rank", str(node_rank))
    yield from ("--master-addr", plan.head.address, "--master-port", str(plan.head.ports["master"]))
    if node_rank > 0:
        yield "--headless"


def _option_flags(plan: GangPlan) -> Iterator[str]:
    if plan.context_tokens is not None:
        yield from ("--max-model-len", str(plan.context_tokens))
    for name in FAKE_OPTIONS:
        if name in plan.options:
            yield from (f"--{name.replace('_', '-')}", str(plan.options[name]))
    if plan.adapters is not None:
        yield from ("--adapters-held", str(plan.adapters.held))
