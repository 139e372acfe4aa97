"""Which files a planned model is loaded from: those of its name, or a checkpoint in the format of the plan."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from longboat.builtin import is_builtin
from longboat.catalog.library import Library
from longboat.catalog.names import find_name
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_notes import is_distilled
from longboat.core.errors import UserInputError
from longboat.planner.compare.choices import known_checkpoint
from longboat.planner.memory.engine import engine_traits
from longboat.planner.search.forecast import Forecast

__all__ = ("ModelFiles", "files_of")

HUB = "hf:"
CONVERTED = ("fp8", "fp8-tensor")
"""Formats that vLLM and SGLang make of weights of 16 bits while they load them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The source of a model's weights, and how the engine converts them."""

    source: str  # as a fleet file has it
    args: tuple[str, ...] = ()  # that convert the weights

    @property
    def name(self) -> str:
        """The name by which engines load them."""
        return self.source.removeprefix(HUB)


def files_of(
    model: str, stored: ModelShape, group: Forecast, library: Library, *, any_gguf: bool = False
) -> ModelFiles:
    """Return the files of a plan. Raises UserInputError where the catalog knows none in its format.

    any_gguf: a GGUF file may be left to the reader
    """
    source, own = _source(model, stored, library), group.shape.quantization
    gguf = engine_traits(group.engine).gguf
    if gguf and any_gguf:
        return ModelFiles(source=source)
    if gguf and not source.endswith(".gguf") and not is_builtin(source):
        raise UserInputError(
            f"{group.engine} needs one GGUF file, and {source} names none",
            hint="plan the file itself: longboat plan FILE.gguf …, or take --engine vllm",
        )
    if own == stored.quantization or (stored.quantization == "" and own in ("bf16", "fp16")):
        return ModelFiles(source=source)
    if source.startswith(HUB) and (known := known_checkpoint(source.removeprefix(HUB), own)):
        return ModelFiles(source=f"{HUB}{known}")
    if own in CONVERTED and not stored.quantization and not gguf:
        return ModelFiles(source=source, args=("--quantization", "fp8"))
    raise UserInputError(
        f"the plan has weights in {own}, and no files of {stored.name} in that format are known",
        hint="name the files: longboat plan OWNER/NAME …, or keep the stored format: --quantization stored",
    )


def _source(model: str, stored: ModelShape, library: Library) -> str:
    if is_builtin(model) or model.startswith(HUB):
        return model
    if os.path.exists(model):
        path = Path(model).resolve()
        return str(path.parent if path.name == "config.json" else path)
    if "/" in model:
        return f"{HUB}{model}"
    name = find_name(model, library.models.known)
    if name is None or is_distilled(model, stored):
        raise UserInputError(
            f"{model!r} is counted from {stored.name}, and its files are not known", hint="name the files: OWNER/NAME"
        )
    return f"{HUB}{library.models[name].hub}"
