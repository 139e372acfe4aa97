"""From a model's entry in the fleet file to what runs on this node: environment, overlay, command, zygote."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cluster.host.hardware import accelerator_name, processor_name
from longboat.cluster.protocol.messages import WarmEnvironment
from longboat.cluster.protocol.model import EngineSettings, ServedModel
from longboat.core.plan import GangPlan
from longboat.engines.contract import EngineEnvironment, RankCommand
from longboat.engines.launch.zygote_client import ZygoteClient, ensure_zygote
from longboat.engines.registry import adapter_for
from longboat.folders import home_folder
from longboat.telemetry import logger

if TYPE_CHECKING:
    from longboat.engines.launch.compiled import CompiledFolder

__all__ = (
    "compiled_folder",
    "engine_environment",
    "rank_command",
    "rank_marks",
    "reap_rank",
    "warm_environment",
    "zygote_for",
)

log = logger("launch")

ZYGOTE_WAIT_S = 120.0
"""How long a start waits for a zygote that is still importing: a plain start would import the same, and more often."""


def engine_environment(engine: EngineSettings) -> EngineEnvironment | None:
    """Find the Python environment that ``engine`` names on this node; None if the engine needs none.

    Raises UserInputError or ClusterError when it is not here.
    """
    from longboat.engines.environments.environment import find_environment

    if (adapter := adapter_for(engine.kind)).recipe is None and not adapter.program:
        return None
    return find_environment(engine.kind, version=engine.version, path=engine.environment, home=home_folder())


def rank_command(model: ServedModel, plan: GangPlan, node_rank: int) -> tuple[RankCommand, EngineEnvironment | None]:
    """Make the command of one rank on this node, with the environment it runs in."""
    environment = engine_environment(model.engine)
    overlay = overlay_folder(environment) if environment else ""
    command = adapter_for(model.engine.kind).command(plan, node_rank, environment, overlay)
    return replace(command, env={**command.env, **model.engine.env}), environment


def compiled_folder(plan: GangPlan, environment: EngineEnvironment | None) -> CompiledFolder | None:
    """Return the node's folder for what this engine compiles; None where it compiles nothing. Blocks."""
    if environment is None or not adapter_for(environment.kind).compiled_env(plan, environment.platform, ""):
        return None
    from longboat.engines.launch.compiled import CompiledFolder, compiled_key

    hardware = (accelerator_name() if plan.head.gpu_ids else "") or processor_name()
    try:
        return CompiledFolder(home_folder(), compiled_key(environment, plan, hardware))
    except OSError as error:  # the engine has a folder of its own
        log.warning("nothing compiled is kept: %s", error)
        return None


def overlay_folder(environment: EngineEnvironment) -> str:
    """Build the folder that is put first on the engine's import path, and return it; empty where it needs none."""
    from longboat.engines.launch.overlay import build_overlay

    if adapter_for(environment.kind).overlay is None:
        return ""
    return str(build_overlay(home_folder(), environment))


def rank_marks(plan: GangPlan, node_rank: int, run: Path) -> dict[str, str]:
    """Return the environment marks by which every process of a rank is found again."""
    return {
        "LONGBOAT_FLEET": plan.fleet,
        "LONGBOAT_GANG": f"{plan.model}/{plan.replica}",
        "LONGBOAT_GENERATION": str(plan.generation),
        "LONGBOAT_NODE_RANK": str(node_rank),
        "LONGBOAT_RUN": str(run),
    }


async def reap_rank(marks: Mapping[str, str]) -> None:
    """End what is left of a rank: without its keeper it may not have ended whole."""
    from longboat.engines.launch.process import reap

    await reap({name: marks[name] for name in ("LONGBOAT_RUN", "LONGBOAT_GANG", "LONGBOAT_NODE_RANK")})


async def zygote_for(
    engine: EngineSettings, environment: EngineEnvironment | None, preload_env: Mapping[str, str] | None, run: Path
) -> ZygoteClient | None:
    """Return the node's zygote for this environment, started when there is none; None where a rank starts plainly.

    preload_env: variables of the import; None: the engine cannot fork from a zygote
    The zygote hangs on the raylet, the parent of every Ray worker, and so outlives this actor but not the node.
    """
    if environment is None or preload_env is None or engine.startup == "plain":
        return None
    # Variables of the fleet file are set before the engine is imported, unless the file asks for a zygote.
    if engine.startup == "auto" and (environment.platform != "cpu" or engine.env):
        return None
    overlay = overlay_folder(environment)
    return await ensure_zygote(environment, overlay, preload_env, run, lifeline_pid=os.getppid(), wait_s=ZYGOTE_WAIT_S)


async def warm_environment(wanted: WarmEnvironment, run: Path, *, lifeline_pid: int) -> str:
    """Keep one environment's zygote warm on this node; returns its title.

    Raises UserInputError when the environment is not installed here.
    """
    engine = EngineSettings(kind=wanted.kind, version=wanted.version, environment=wanted.path)
    environment = await asyncio.to_thread(engine_environment, engine)
    adapter = adapter_for(wanted.kind)
    if environment is None or environment.platform != "cpu" or adapter.overlay is None or not adapter.overlay.zygote:
        return "none needed"
    preload = adapter.preload_env(environment, offline=wanted.offline)
    overlay = await asyncio.to_thread(overlay_folder, environment)
    client = await ensure_zygote(environment, overlay, preload, run, lifeline_pid=lifeline_pid, wait_s=60.0)
    return f"{environment.distribution} {environment.version}" if client else "still importing"
