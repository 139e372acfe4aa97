"""MLX as an engine of Longboat: on Apple machines it computes on the GPU, on others on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from longboat.core.errors import Problem
from longboat.core.plan import GangPlan
from longboat.engines.contract import Ability, EngineAdapter, EngineEnvironment, InstallRecipe, Overlay, RankCommand

__all__ = ("MlxAdapter",)

CAPACITY = 32  # default of --decode-concurrency
OWNED = {
    "--model": "write source",
    "--host": "the node's address is given to the engine",
    "--port": "a free port is found",
    "--draft-model": "leave it out: what it changes is not known",
}


class MlxAdapter(EngineAdapter):
    """The adapter of ``mlx_lm.server``: one process, one host, folders of safetensors or a hub's models."""

    kind = "mlx"
    abilities: ClassVar[frozenset[Ability]] = frozenset(("hub",))
    recipe = InstallRecipe(
        version="0.32.2",
        distributions={"cpu": "mlx-lm"},
        free_bytes={"cpu": 10**9},
        locks=Path(__file__).parent / "locks",
        also=("mlx[cpu]==0.32.4",),
    )
    overlay = Overlay(packages=("longboat_mlx_server",), entry_points="")

    def command(
        self, plan: GangPlan, node_rank: int, environment: EngineEnvironment | None, overlay: str
    ) -> RankCommand:
        """Return the server's command. The key travels in the environment, where no process list shows it."""
        if environment is None:
            raise ValueError("MLX is started from an engine environment")
        head = plan.head
        return RankCommand(
            argv=(
                *(environment.python, "-m", "longboat_mlx_server", "--model", plan.model_path),
                *("--host", head.address, "--port", str(head.ports["api"])),
                *plan.extra_args,
            ),
            env={"PYTHONPATH": overlay or None, "LONGBOAT_ENGINE_API_KEY": plan.api_key or None},
        )

    def capacity(self, plan: GangPlan) -> int:
        """Return how many answers MLX decodes together."""
        return CAPACITY

    def argument_problems(self, args: Sequence[str]) -> tuple[Problem, ...]:
        """Refuse the flags that Longboat sets."""
        return tuple(
            Problem(where=f"[{index}]", what=f"{name} is set by Longboat", hint=OWNED[name])
            for index, word in enumerate(args)
            if (name := word.partition("=")[0]) in OWNED
        )
