"""Which engine is planned for on given machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat.catalog.entries import Engine
from longboat.catalog.library import Library
from longboat.core.errors import UserInputError
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.pools import Pool, pools_of
from longboat.planner.memory.split_shape import EngineKind

__all__ = ("ENGINE_KINDS", "engine_for")

ENGINE_KINDS: Mapping[str, EngineKind] = {"vLLM": "vllm", "SGLang": "sglang", "llama.cpp": "llama.cpp"}


def engine_for(cluster: Cluster, library: Library) -> EngineKind:
    """Return the engine that is asked for, or vLLM on GPUs and llama.cpp elsewhere.

    Raises UserInputError where it does not run on one of the machines, or is not planned for.
    """
    pools = pools_of(cluster)
    name = cluster.engine or ("vLLM" if all(p.platform in ("cuda", "rocm", "xpu") for p in pools) else "llama.cpp")
    entry = library.engines.find(name)
    for pool in pools:
        if not _runs(entry, pool):
            raise UserInputError(
                f"{entry.name} does not run on {pool.entry.name} under {pool.system} ({_platform(pool)}): it runs on "
                f"{', '.join(entry.platforms)}",
                hint=_other_engine(pools, library),
            )
    if entry.name not in ENGINE_KINDS:
        raise UserInputError(
            f"how much memory {entry.name} {entry.version} takes beside weights is not known here: the planner has "
            f"that rule for {len(ENGINE_KINDS)} engines, {', '.join(ENGINE_KINDS)}",
            hint=_other_engine(pools, library),
        )
    return ENGINE_KINDS[entry.name]


def _platform(pool: Pool) -> str:
    return pool.system if pool.system in ("wsl2", "windows") else pool.platform


def _runs(engine: Engine, pool: Pool) -> bool:
    return _platform(pool) in engine.platforms and pool.platform in (*engine.platforms, "other")


def _other_engine(pools: Sequence[Pool], library: Library) -> str:
    """Return a hint that names engines that run on all of the machines and can be planned."""
    able = [name for name in ENGINE_KINDS if all(_runs(library.engines[name], pool) for pool in pools)]
    if able:
        return f"--engine {' or '.join(able)}"
    if any(pool.system == "windows" for pool in pools):
        return "--os wsl2"
    names = dict.fromkeys(pool.entry.name for pool in pools)
    return f"no engine that can be planned runs on {' and '.join(names)}: plan them apart"
