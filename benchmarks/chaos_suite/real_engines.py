"""Real engines of the built-in tiny model, for a chaos run without a fleet around them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from chaos_suite.parts import MODEL, EngineOrder
from chaos_suite.stand import Commands
from longboat.builtin.models import ensure
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import ResumeLevel
from longboat.engines.environments.environment import environment_at, find_environment
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.registry import adapter_for
from longboat.folders import home_folder

__all__ = ("REAL_ENGINES", "real_commands")

REAL_ENGINES = {"vllm": "LONGBOAT_TEST_ENGINE_PYTHON", "sglang": "LONGBOAT_TEST_SGLANG_PYTHON"}
"""Engine → the variable that names its interpreter."""

CONTEXT_TOKENS = 2048


def real_commands(
    kind: str, folder: Path, interface: str, *, num_gpus: float = 0.0, args: tuple[str, ...] = ()
) -> Commands:
    """Engines in the environment that the engine's variable names, else in the one that is installed.

    num_gpus: of the first card, for each engine; args: further arguments of each. On a card engines start plainly.

    Raises UserInputError: there is none.
    """
    python, adapter = os.environ.get(REAL_ENGINES[kind]), adapter_for(kind)
    environment = (
        environment_at(kind, Path(python))
        if python
        else find_environment(kind, version=None, path=None, home=home_folder())
    )
    overlay = str(build_overlay(folder, environment))
    model_path = str(ensure("builtin:tiny", folder))
    resources, gpu_ids = RankResources(num_gpus=num_gpus), ("0",) if num_gpus else ()
    zygote = {"environment": dataclasses.asdict(environment), "overlay": overlay, "run": str(folder / "run")}

    def command(number: int, address: str, port: int, key: str, folder: Path) -> EngineOrder:
        head = RankPlan(
            node_rank=0, node_id="n0", address=address, interface=interface, ports={"api": port}, gpu_ids=gpu_ids
        )
        plan = GangPlan(
            fleet="chaos", model=MODEL, source="builtin:tiny", model_path=model_path, replica=f"e{number}",
            generation=1, shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=resources), ranks=(head,),
            context_tokens=CONTEXT_TOKENS, api_key=key, extra_args=args,
        )  # fmt: skip
        made = adapter.command(plan, 0, environment, overlay)
        return EngineOrder(
            command=made, url=f"http://{address}:{port}", key=key, log=folder / f"engine-{port}.log", address=address,
            resume=ResumeLevel.REPLAY if kind == "sglang" else ResumeLevel.CARRIED,
            zygote=None if num_gpus else zygote,
        )  # fmt: skip

    return command
