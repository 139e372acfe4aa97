"""Turns a gang's plan into SGLang's command lines, one per node, and reads its logs and metrics.

Flags and variables are those of SGLang 0.5.23; the CPU settings were measured on two cores with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import ClassVar

from longboat.core.errors import Problem
from longboat.core.plan import EngineMemory, GangPlan, RankPlan
from longboat.core.states import Phase
from longboat.core.tasks import GENERATE
from longboat.engines.contract import (
    Ability,
    EngineAdapter,
    EngineCounters,
    EngineEnvironment,
    EngineLoad,
    Overlay,
    RankCommand,
    ZygoteRequest,
)
from longboat.engines.sglang.adapters import adapter_arguments
from longboat.engines.sglang.counters import LOAD_METRICS, of_first_stage, read_counters
from longboat.engines.sglang.flags import ARGUMENTS, HARMLESS_FLAGS, HUB_FLAGS
from longboat.engines.sglang.memory import CPU_MEMORY, CPU_PAGE, CPU_REQUESTS, CPU_TOKENS, memory_of
from longboat.engines.sglang.recipe import RECIPE

__all__ = ("SglangAdapter",)

LAUNCHER = "longboat_sglang.launcher"
"""Overlay module that runs SGLang's own server, with what it lacks on CPUs."""

_DEFAULTS: tuple[tuple[str, ...], ...] = (
    # The readiness probe and the proof of resuming are the warm-up; SGLang's own does not know the engine's key.
    ("--skip-server-warmup",),
    ("--enable-metrics",),
)
_CPU_DEFAULTS: tuple[tuple[str, ...], ...] = (
    ("--device", "cpu"),
    ("--attention-backend", "torch_native"),
    ("--sampling-backend", "pytorch"),
    ("--dtype", "float32"),
    ("--disable-overlap-schedule",),
    ("--disable-cuda-graph",),
    ("--enable-deterministic-inference",),  # by which seeds have an effect
    ("--max-total-tokens", str(CPU_TOKENS)),  # otherwise the cache takes all memory
    ("--max-running-requests", str(CPU_REQUESTS)),
    ("--page-size", str(CPU_PAGE)),  # with pages of one token, the engine tells nothing of its prefixes
    ("--sleep-on-idle",),  # otherwise each scheduler without requests takes a whole core from those that compute
    ("--watchdog-timeout", "3600"),  # Longboat watches the engine; a machine with many engines may be slow
)
_EMBED_DEFAULTS: tuple[tuple[str, ...], ...] = (
    # Encoders look at a text as a whole: with a cached or separate beginning, they would give another vector.
    ("--disable-radix-cache",),
    ("--chunked-prefill-size", "-1"),
)
_MODEL_DEFAULTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "builtin:tiny": (
        ("--tool-call-parser", "hermes"),
        ("--reasoning-parser", "qwen3"),
        # The model thinks on request only; the parser and the model's template must agree on that.
        ("--default-chat-template-kwargs", '{"enable_thinking": false}'),
    ),
}
_UNABLE_ON: Mapping[str, Mapping[Ability, str]] = {
    "cpu": {
        "data": "write data: 1; SGLang 0.5 divides requests on GPUs only, vLLM on processors too",
        "expert": "write expert: false; tensor cuts each expert instead",
    }
}
"""SGLang's attention for processors fails where requests are divided."""
_PHASES = (
    ("Load weight begin", Phase.LOADING),
    ("Load weight end", Phase.WARMING),
    ("KV Cache is allocated", Phase.WARMING),
    ("Capture", Phase.WARMING),
)


class SglangAdapter(EngineAdapter):
    """The adapter of SGLang, on CPU and CUDA; see ``EngineAdapter``."""

    kind = "sglang"
    abilities: ClassVar[frozenset[Ability]] = frozenset(
        ("tensor", "pipeline", "data", "expert", "nodes", "layers", "stages", "hub", "embed", "adapters")
    )
    unable_on = _UNABLE_ON
    recipe = RECIPE
    overlay = Overlay(
        packages=("longboat_sglang", "longboat_vllm"),  # the second has the keeper, the zygote and the journal
        entry_points="[sglang.srt.plugins]\nlongboat = longboat_sglang.plugin:register\n",
        zygote="longboat_sglang.zygote",
    )
    shares_cards = False
    load_metrics = LOAD_METRICS

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Return the command of one rank; ``environment`` is required, since SGLang lives in one."""
        if environment is None:
            raise ValueError("SGLang is started from an engine environment")
        rank = plan.ranks[node_rank]
        on_cpu = environment.platform == "cpu"
        args = _arguments(plan, rank, on_cpu)
        from_hub = ARGUMENTS.name_hub(HUB_FLAGS, plan.extra_args)
        offline = PurePath(plan.model_path).is_absolute() and not from_hub
        preload = self.preload_env(environment, offline=offline)
        return RankCommand(
            argv=(environment.python, "-m", LAUNCHER, *args),
            env={**preload, **_rank_env(plan, rank, on_cpu), "PYTHONPATH": overlay or None},
            zygote=ZygoteRequest(argv=("sglang", *args), preload_env=preload),
        )

    def preload_env(self, environment: EngineEnvironment, *, offline: bool) -> dict[str, str]:
        """Return what SGLang, torch and the Hugging Face libraries read once, at import.

        A zygote must not start OpenMP's threads.
        """
        on_cpu = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        env = on_cpu if environment.platform == "cpu" else {}
        return {**env, "HF_HUB_OFFLINE": "1"} if offline else env

    def capacity(self, plan: GangPlan) -> int | None:
        """Return the argument's value, else the default on CPUs. On CUDA, SGLang decides by the memory it finds."""
        on_gpu = bool(plan.head.gpu_ids) or plan.shape.resources.num_gpus > 0
        return ARGUMENTS.number("--max-running-requests", plan.extra_args) or (None if on_gpu else CPU_REQUESTS)

    def memory(self, args: Sequence[str], platform: str) -> EngineMemory:
        """Apply the arguments to the defaults; on CPUs those are float32 and room for 8,192 tokens."""
        return memory_of(args, CPU_MEMORY if platform == "cpu" else EngineMemory(block_tokens=1))

    def phase_of(self, log_line: str) -> Phase | None:
        """Return loading from the first weight, warming once weights are in memory; only the probe shows readiness."""
        return next((phase for words, phase in _PHASES if words in log_line), None)

    def counters(self, metrics_text: str) -> EngineCounters:
        return read_counters(metrics_text)

    def load(self, metrics_text: str) -> EngineLoad:
        return super().load(of_first_stage(metrics_text))

    def argument_problems(self, args: Sequence[str]) -> tuple[Problem, ...]:
        return ARGUMENTS.problems(args)

    def compiled_env(self, plan: GangPlan, platform: str, folder: str) -> dict[str, str]:
        """Return the folders of Inductor's code and of Triton's kernels."""
        if platform == "cpu" and "--enable-torch-compile" not in plan.extra_args:
            return {}
        places = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        return {variable: f"{folder}/{name}" for variable, name in places.items()}

    def harmless_flags(self) -> frozenset[str]:
        return HARMLESS_FLAGS


def _arguments(plan: GangPlan, rank: RankPlan, on_cpu: bool) -> list[str]:
    """Return SGLang's arguments. Defaults precede the user's words, which no default repeats."""
    args = ["--model-path", plan.model_path, "--served-model-name", plan.model]
    # Further ranks serve a page about their health, on any free port.
    args += ["--host", rank.address, "--port", str(rank.ports["api"] if rank.node_rank == 0 else 0)]
    args += _split_arguments(plan, rank)
    args += adapter_arguments(plan.adapters, on_cpu)
    args += ["--is-embedding"] if plan.task == "embed" else []
    defaults: list[tuple[str, ...]] = list(_DEFAULTS)
    defaults += [("--context-length", str(plan.context_tokens))] if plan.context_tokens else ()
    defaults += _CPU_DEFAULTS if on_cpu else ()
    defaults += _MODEL_DEFAULTS.get(plan.source, ()) if plan.task == GENERATE else _EMBED_DEFAULTS
    return [*args, *ARGUMENTS.without_given(defaults, plan.extra_args), *plan.extra_args]


def _split_arguments(plan: GangPlan, rank: RankPlan) -> list[str]:
    shape, head = plan.shape, plan.head
    args = ["--tp-size", str(shape.data * shape.tensor), "--pp-size", str(shape.pipeline)]
    if shape.data > 1:
        args += ["--attn-dp-size", str(shape.data)]  # attention is copied; experts are divided over all ranks
    if shape.expert:
        args += ["--ep-size", str(shape.data * shape.tensor)]
    if shape.num_nodes > 1:
        args += ["--nnodes", str(shape.num_nodes), "--node-rank", str(rank.node_rank)]
        args += ["--dist-init-addr", f"{head.address}:{head.ports['master']}"]
    return args


def _rank_env(plan: GangPlan, rank: RankPlan, on_cpu: bool) -> dict[str, str | None]:
    env: dict[str, str | None] = {
        "SGLANG_HOST_IP": rank.address,
        "GLOO_SOCKET_IFNAME": rank.interface,
        "NCCL_SOCKET_IFNAME": rank.interface,
        "LONGBOAT_ENGINE_API_KEY": plan.api_key or None,
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # ``/health`` would otherwise generate a token
        "SGLANG_PLUGINS": None,  # it could leave Longboat's plugin out
        "PYTHONHOME": None,
        "VIRTUAL_ENV": None,
    }
    if plan.shape.layers:
        env["SGLANG_PP_LAYER_PARTITION"] = ",".join(map(str, plan.shape.layers))
    if on_cpu:
        num_cpus = max(1, int(plan.shape.resources.num_cpus))
        # More threads than cores cost an order of magnitude, and the ranks of one machine share the cores.
        env["OMP_NUM_THREADS"] = str(num_cpus)
    if rank.gpu_ids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(rank.gpu_ids)
    return env
