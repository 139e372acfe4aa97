"""Turns a gang's plan into the ranks of llama.cpp: one server, or a server with an ``rpc-server`` on each other node.

One host is served by the server inside the wheel ``xllamacpp``. It has no RPC; a gang over nodes runs the
``llama-server`` and ``ggml-rpc-server`` that ``longboat engines install llama.cpp`` builds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import ClassVar

from longboat.core.errors import Problem
from longboat.core.plan import EngineMemory, GangPlan, GangShape, RankPlan
from longboat.core.states import Phase
from longboat.engines.contract import (
    Ability,
    EngineAdapter,
    EngineEnvironment,
    InstallRecipe,
    LoadMetrics,
    Overlay,
    PortRequest,
    RankCommand,
)
from longboat.engines.llamacpp.build import BUILD_RECIPE, RPC_PROGRAM, SERVER_PROGRAM, SOURCE, build_programs
from longboat.engines.llamacpp.flags import CACHE_BITS, HARMLESS_FLAGS, check_args, number_given, text_given

__all__ = ("LlamaCppAdapter",)

LAUNCHER = "longboat_llamacpp.launcher"
_PARALLEL = 4
_UBATCH = 512
_MODEL_DEFAULTS: dict[str, tuple[str, ...]] = {
    # The model thinks on request only.
    "builtin:tiny": ("--chat-template-kwargs", '{"enable_thinking": false}'),
}
_PHASES = (
    ("longboat: loading", Phase.LOADING),
    ("load_model: initializing", Phase.WARMING),
)


class LlamaCppAdapter(EngineAdapter):
    """The adapter of llama.cpp; see ``EngineAdapter``."""

    kind = "llama.cpp"
    abilities: ClassVar[frozenset[Ability]] = frozenset(("pipeline", "nodes", "layers", "stages", "gguf", "hub"))
    divides_layers: ClassVar[bool] = False
    weights = "gguf"
    recipe = InstallRecipe(
        version="2026.10.11549",
        distributions={"cpu": "xllamacpp"},
        free_bytes={"cpu": 3 * 10**9},
        locks=Path(__file__).parent / "locks",
        # The front end needs the first; the others fetch and compile the source of the programs with RPC.
        also=("aiohttp", "cmake<4", "ninja", "pip", "setuptools>=77", "setuptools-scm>=8", "wheel"),
        finish=build_programs,
        finish_recipe=BUILD_RECIPE,
        sources=(SOURCE,),
    )
    overlay = Overlay(packages=("longboat_llamacpp",), entry_points="")
    load_metrics = LoadMetrics(
        running="llamacpp:requests_processing",
        waiting="llamacpp:requests_deferred",
        prompt_tokens="llamacpp:prompt_tokens_total",
        generation_tokens="llamacpp:tokens_predicted_total",
    )
    head_starts_alone = False  # llama-server needs the addresses of all rpc-servers

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Return the command of one rank; ``environment`` is required, since llama.cpp lives in one."""
        if environment is None:
            raise ValueError("llama.cpp is started from an engine environment")
        rank = plan.ranks[node_rank]
        threads = max(1, int(plan.shape.resources.num_cpus * plan.shape.ranks_per_node))
        words = _serve(plan, threads) if node_rank == 0 else _rpc(rank, threads)
        env = {
            "PYTHONPATH": overlay or None,
            "LONGBOAT_ENGINE_API_KEY": (plan.api_key or None) if node_rank == 0 else None,
            "PYTHONHOME": None,
            "VIRTUAL_ENV": None,
            "LLAMA_API_KEY": None,
        }
        if rank.gpu_ids:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(rank.gpu_ids)
        return RankCommand(argv=(environment.python, "-m", LAUNCHER, *words), env=env)

    def ports(self, shape: GangShape) -> tuple[PortRequest, ...]:
        """Return the API of the head, and the port of each ``rpc-server``."""
        others = (PortRequest(purpose="rpc", node_rank=rank) for rank in range(1, shape.num_nodes))
        return (PortRequest(purpose="api", node_rank=0), *others)

    def capacity(self, plan: GangPlan) -> int:
        """Return the number of slots; further requests wait in the engine."""
        return _slots(plan.extra_args)

    def memory(self, args: Sequence[str], platform: str) -> EngineMemory:
        """Return what the arguments say: the cache has room for the whole context of each slot.

        Keys and values may have other types; half of the cache is of each.
        """
        bits = [CACHE_BITS.get(text_given(f"--cache-type-{part}", args).lower(), 16) for part in "kv"]
        return EngineMemory(
            kv_bits=math.ceil(sum(bits) / 2),
            sequences=_slots(args),
            batched_tokens=number_given("--ubatch-size", args) or _UBATCH,
            graphs=False,
        )

    def argument_problems(self, args: Sequence[str]) -> tuple[Problem, ...]:
        return check_args(args)

    def harmless_flags(self) -> frozenset[str]:
        return HARMLESS_FLAGS

    def lacking(self, environment: EngineEnvironment) -> Mapping[Ability, str]:
        """Return ``nodes`` where the programs with RPC were not built."""
        folder = Path(environment.python).parent
        if all((folder / name).exists() for name in (SERVER_PROGRAM, RPC_PROGRAM)):
            return {}
        return {"nodes": "its programs for several nodes were not built: install a C++ compiler (g++) there, and run "
                "`longboat engines install llama.cpp` again"}  # fmt: skip

    def phase_of(self, log_line: str) -> Phase | None:
        """Return loading from the first line on, warming once weights are in memory; the probe shows readiness."""
        return next((phase for words, phase in _PHASES if words in log_line), None)


def _slots(args: Sequence[str]) -> int:
    return number_given("--parallel", args) or _PARALLEL


def _serve(plan: GangPlan, threads: int) -> list[str]:
    """Return the launcher's words for the head. The user's words come last, and win."""
    words = ["serve", *_model(plan.model_path), "--alias", plan.model]
    words += ["--host", plan.head.address, "--port", str(plan.head.ports["api"])]
    words += [*_split(plan), "--parallel", str(_PARALLEL), "--threads", str(threads)]
    words += _context(plan)
    return [*words, *_MODEL_DEFAULTS.get(plan.source, ()), *plan.extra_args]


def _model(path: str) -> list[str]:
    if PurePath(path).is_absolute():
        return ["--model", path]
    repository, _, file = path.partition(":")
    return ["--hf-repo", repository, "--hf-file", file]


def _context(plan: GangPlan) -> list[str]:
    """Return the whole cache: the context of each slot, or what the model can do, shared by all slots."""
    if plan.context_tokens is None:
        return ["--kv-unified"]
    return ["--ctx-size", str(plan.context_tokens * _slots(plan.extra_args))]


def _split(plan: GangPlan) -> list[str]:
    """Return the division of layers: the head computes the first ones itself, each rpc-server its part of the rest.

    llama.cpp counts the output as one more layer, which stands on the last device.
    """
    if plan.shape.num_nodes == 1:
        return []
    addresses = [f"{rank.address}:{rank.ports['rpc']}" for rank in plan.ranks[1:]]
    words = ["--rpc", ",".join(addresses)]
    if not plan.shape.layers:
        return [*words, "--n-gpu-layers", "999"]
    per_node = len(plan.shape.layers) // plan.shape.num_nodes
    layers = [sum(plan.shape.layers[at : at + per_node]) for at in range(0, len(plan.shape.layers), per_node)]
    others = [*layers[1:-1], layers[-1] + 1]
    return [*words, "--tensor-split", ",".join(map(str, others)), "--n-gpu-layers", str(sum(others))]


def _rpc(rank: RankPlan, threads: int) -> list[str]:
    return ["rpc", "--host", rank.address, "--port", str(rank.ports["rpc"]), "--threads", str(threads)]
