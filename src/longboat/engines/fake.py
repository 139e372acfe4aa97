"""The adapter of the fake engine: a process for tests that answers like an engine and fails on request."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

import orjson

from longboat.core.plan import GangPlan, GangShape
from longboat.core.states import Phase
from longboat.engines.contract import EngineCounters, EngineEnvironment, EngineLoad, PortRequest, Probe, RankCommand
from longboat.engines.vllm.counters import read_counters, read_load
from longboat.engines.vllm.flags import number_given

__all__ = ("FAKE_OPTIONS", "FakeAdapter")

FAKE_OPTIONS = ("ttft_ms", "itl_ms", "max_num_seqs", "kv_blocks", "start_s", "block_size")
"""Options of the fleet file that the fake engine understands; each becomes a flag of the same name."""

DEFAULT_CAPACITY = 256
"""Default of ``fake_server``."""

_PHASES = {"loading": Phase.LOADING, "warming": Phase.WARMING}
_PHASE = re.compile(r"^phase=(\w+) ")


class FakeAdapter:
    """The adapter of the fake engine, which runs in this process's interpreter; see ``EngineAdapter``."""

    kind = "fake"
    starts_processes = True
    head_starts_alone = True

    def ports(self, shape: GangShape) -> tuple[PortRequest, ...]:
        api = PortRequest(purpose="api", node_rank=0)
        return (api,) if shape.num_nodes == 1 else (api, PortRequest(purpose="master", node_rank=0))

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        rank = plan.ranks[node_rank]
        argv = [sys.executable, "-m", "longboat_fake", "--model", plan.model, "--host", rank.address]
        if node_rank == 0:
            argv += ["--port", str(plan.head.ports["api"])]
        argv += [*_gang_flags(plan, node_rank), *_option_flags(plan), *plan.extra_args]
        return RankCommand(argv=tuple(argv), env={"LONGBOAT_ENGINE_API_KEY": plan.api_key or None})

    def preload_env(self, environment: EngineEnvironment, *, offline: bool) -> dict[str, str]:
        return {}

    def probe(self, plan: GangPlan) -> Probe:
        body = orjson.dumps({"model": plan.model, "prompt": "row", "max_tokens": 1})
        headers = {"content-type": "application/json"}
        if plan.api_key:
            headers["authorization"] = f"Bearer {plan.api_key}"
        return Probe(path="/v1/completions", body=body, headers=headers)

    def capacity(self, plan: GangPlan) -> int:
        """Return the argument that overrides the option, the option, or the fake engine's own default."""
        given = plan.options.get("max_num_seqs")
        return number_given("--max-num-seqs", plan.extra_args) or (
            given if isinstance(given, int) else DEFAULT_CAPACITY
        )

    def memory(self, args: Sequence[str], platform: str) -> None:
        """Return None: the fake engine has no model."""

    def phase_of(self, log_line: str) -> Phase | None:
        found = _PHASE.match(log_line)
        return _PHASES.get(found.group(1)) if found else None

    def counters(self, metrics_text: str) -> EngineCounters:
        return read_counters(metrics_text)

    def load(self, metrics_text: str) -> EngineLoad:
        return read_load(metrics_text)


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
