"""Real vLLM engines of the built-in tiny model, for a chaos run without a fleet around them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from chaos_suite.parts import MODEL, EngineOrder
from chaos_suite.stand import Commands
from longboat.builtin.models import ensure
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.environments.environment import environment_at, find_environment
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.vllm.adapter import VllmAdapter
from longboat.folders import home_folder

__all__ = ("vllm_commands",)

CONTEXT_TOKENS = 2048


def vllm_commands(folder: Path, interface: str) -> Commands:
    """Engines in the environment that LONGBOAT_TEST_ENGINE_PYTHON names, else in the one that is installed.

    Raises UserInputError: there is none.
    """
    python = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON")
    environment = (
        environment_at("vllm", Path(python))
        if python
        else find_environment("vllm", version=None, path=None, home=home_folder())
    )
    overlay = str(build_overlay(folder, environment))
    model_path = str(ensure("builtin:tiny", folder))

    def command(number: int, address: str, port: int, key: str, folder: Path) -> EngineOrder:
        head = RankPlan(node_rank=0, node_id="n0", address=address, interface=interface, ports={"api": port})
        plan = GangPlan(
            fleet="chaos", model=MODEL, source="builtin:tiny", model_path=model_path, replica=f"e{number}",
            generation=1, shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources()), ranks=(head,),
            context_tokens=CONTEXT_TOKENS, api_key=key,
        )  # fmt: skip
        made = VllmAdapter().command(plan, 0, environment, overlay)
        return EngineOrder(
            command=made, url=f"http://{address}:{port}", key=key, log=folder / f"engine-{port}.log", address=address,
            zygote={"environment": dataclasses.asdict(environment), "overlay": overlay, "run": str(folder / "run")},
        )  # fmt: skip

    return command
