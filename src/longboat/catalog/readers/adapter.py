"""Reads a LoRA adapter in PEFT's format, and says whether it fits a model.

A folder holds ``adapter_config.json`` (rank, scaling, features) and ``adapter_model.safetensors`` with two matrices for
each adapted one: ``base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight`` (rank x inputs) and ``…lora_B…``
(outputs x rank).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import UserInputError

__all__ = (
    "ADAPTER_FILES",
    "CONFIG",
    "COPY_AGAIN",
    "WEIGHTS",
    "AdaptedMatrix",
    "AdapterFacts",
    "misfit",
    "read_adapter",
)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_FILES = (CONFIG, WEIGHTS)

_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
_UNUSED = ("use_dora", "lora_bias", "layer_replication", "alora_invocation_tokens", "use_bdlora", "use_qalora")
"""Features of PEFT that no engine here has; an adapter that uses one would answer wrongly without it."""
_PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Ways to begin training that leave the base model's weights as they are."""
_MAX_RANK = 4096
COPY_AGAIN = "copy the adapter's folder again: it is not whole"
"""Hint where files of an adapter are cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedMatrix:
    """One matrix of the model that the adapter changes."""

    module: str  # its name in its layer (``self_attn.q_proj``), or its whole name where it is in none
    layer: int | None  # None: it is in no layer
    rank: int
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """What an adapter's files say."""

    rank: int  # highest of its matrices
    matrices: tuple[AdaptedMatrix, ...]
    num_bytes: int  # of its weights
    base: str = ""  # the model that it was trained on, as its config names it; empty: it names none
    revision: str = ""  # digest of both files

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the matrices that it changes, without their layers."""
        return tuple(sorted({matrix.module for matrix in self.matrices}))


def read_adapter(config: str, tensors: Iterable[Tensor], origin: str, revision: str = "") -> AdapterFacts:
    """Read an adapter from the text of its config and the header of its weights.

    Raises UserInputError where one of them is malformed, or the adapter has a feature that engines lack.
    """
    told = _config(config, origin)
    tensors = tuple(tensors)
    halves: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        found = _TENSOR.fullmatch(tensor.name)
        if found is None:
            raise UserInputError(
                f"{origin}/{WEIGHTS} holds {tensor.name}, which is not half of a LoRA pair",
                hint="train the adapter without modules_to_save, DoRA and new tokens, or serve a merged model",
            )
        halves.setdefault(found["module"], {})[found["half"]] = tensor
    if not halves:
        raise UserInputError(f"{origin}/{WEIGHTS} holds no LoRA weights", hint="is it the folder of an adapter?")
    matrices = tuple(_matrix(module, pair, origin) for module, pair in halves.items())
    base = told.get("base_model_name_or_path")
    return AdapterFacts(
        rank=max(matrix.rank for matrix in matrices),
        matrices=matrices,
        num_bytes=sum(tensor.num_bytes for tensor in tensors),
        base=base if isinstance(base, str) else "",
        revision=revision,
    )


def misfit(facts: AdapterFacts, shape: ModelShape) -> str:
    """Return why the adapter does not fit the model; empty where it does, as far as both are known."""
    known = _known(shape)
    names = {module for _, module in known}
    for matrix in facts.matrices:
        what = matrix.module if matrix.layer is None else f"layer {matrix.layer}'s {matrix.module}"
        if matrix.layer is not None and matrix.layer >= len(shape.layers):
            return f"it adapts {what}, and the model has {len(shape.layers)} layers"
        if matrix.layer is None or not names:
            continue
        size = known.get((matrix.layer, matrix.module))
        if size is not None and size != (matrix.outputs, matrix.inputs):
            return f"its {what} is {matrix.outputs} x {matrix.inputs}, the model's is {size[0]} x {size[1]}"
        if size is None and not _may_exist(matrix.module, names):
            return f"it adapts {what}, which the model does not have"
    return ""


def _known(shape: ModelShape) -> dict[tuple[int, str], tuple[int, int]]:
    """Return the size of each matrix whose name is that of the publisher's files."""
    return {
        (index, weight.name): (weight.rows, weight.columns)
        for index, layer in enumerate(shape.layers)
        for weight in layer.weights
        if weight.columns > 1 and weight.count == 1
    }


def _may_exist(module: str, names: Iterable[str]) -> bool:
    """Return whether the model may have this matrix although its shape does not name it: experts, fused matrices."""
    part = module.partition(".")[0]
    return "expert" in module or not any(name.startswith(f"{part}.") for name in names)


def _config(text: str, origin: str) -> Mapping[str, object]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserInputError(f"{origin}/{CONFIG} is not JSON ({error})", hint=COPY_AGAIN) from None
    if not isinstance(told, dict):
        raise UserInputError(f"{origin}/{CONFIG} is not a JSON object", hint=COPY_AGAIN)
    if (kind := told.get("peft_type", "LORA")) != "LORA":
        raise UserInputError(f"{origin} is an adapter of the kind {kind}, not LORA", hint="serve a merged model")
    rank = told.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank <= _MAX_RANK:
        what = f"{origin}/{CONFIG}: r is {rank!r}, not a rank of 1 to {_MAX_RANK}"
        raise UserInputError(what, hint="save the adapter again with PEFT")
    features = [name for name in _UNUSED if told.get(name)]
    features += ["bias"] if told.get("bias", "none") != "none" else []
    features += ["modules_to_save"] if told.get("modules_to_save") else []
    start = told.get("init_lora_weights", True)
    features += [f"init_lora_weights={start}"] if isinstance(start, str) and start.lower() not in _PLAIN_STARTS else []
    if features:
        what = f"{origin}/{CONFIG} asks for {', '.join(features)}, which engines do not have"
        raise UserInputError(what, hint="serve a merged model, or train a plain LoRA adapter")
    return told


def _matrix(module: str, pair: Mapping[str, Tensor], origin: str) -> AdaptedMatrix:
    if len(pair) != 2:
        raise UserInputError(f"{origin}/{WEIGHTS} holds only one half of {module}", hint=COPY_AGAIN)
    first, second = pair["A"].shape, pair["B"].shape
    if len(first) != 2 or len(second) != 2 or first[0] != second[1] or not first[0]:
        what = f"{origin}/{WEIGHTS}: the halves of {module} do not fit each other ({list(first)}, {list(second)})"
        raise UserInputError(what, hint=COPY_AGAIN)
    layer = _LAYER.search(module)
    return AdaptedMatrix(
        module=layer[2] if layer else module,
        layer=int(layer[1]) if layer else None,
        rank=first[0],
        inputs=first[1],
        outputs=second[0],
    )
