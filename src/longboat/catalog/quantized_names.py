"""Understands names of published quantizations: ``Qwen3-32B-AWQ`` is the catalog's Qwen3-32B in AWQ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from longboat.catalog.entries import ModelEntry
from longboat.catalog.library import Library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.names import find_name, nearest_names, normal_name
from longboat.catalog.quantization.requantize import GGUF_MIXES, requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError

__all__ = ("QuantizedName", "named_model", "quantized_name")

# Endings of published names → the quantization that they mean; longer ones first.
ENDINGS: Mapping[str, str] = {
    "gptq-int8": "gptq-int8",
    "gptq-8bit": "gptq-int8",
    "gptq-int4": "gptq",
    "gptq-4bit": "gptq",
    "awq-int4": "awq",
    "awq-4bit": "awq",
    "mlx-4bit": "mlx-4bit",
    "mlx-8bit": "mlx-8bit",
    "bnb-4bit": "bitsandbytes",
    "bitsandbytes": "bitsandbytes",
    "w4a16": "gptq",
    "w8a8": "int8",
    "w8a16": "gptq-int8",
    "int4": "awq",
    "int8": "int8",
    "4bit": "mlx-4bit",
    "8bit": "mlx-8bit",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "fp4": "nvfp4",
    "fp8": "fp8",
    "gptq": "gptq",
    "awq": "awq",
    "bnb": "bitsandbytes",
    "nf4": "bitsandbytes",
    "bf16": "bf16",
    "fp16": "fp16",
    "f16": "fp16",
}
# Words beside these that change no bytes (unsloth's UD mixes are close to llama.cpp's own).
EMPTY_ENDINGS = ("gguf", "dynamic", "block", "quantized", "instruct", "chat", "it", "hf", "ud", "imatrix", "i1", "mlx")
GGUF_ENDING = re.compile(r"(?:^|-)((?:i?q)\d(?:-[a-z0-9]+){0,2})$")
# Words in names of models that generate no text.
SPEECH = ("whisper", "tts", "parakeet")
NO_GENERATORS = re.compile(
    rf"(?:^|[^a-z])({'|'.join(SPEECH)}|embed(?:ding|dings|der)?|rerank(?:er)?|bge|all-minilm|gte|e5|colbert)(?:[^a-z]|$)"
)
# Names of mixes that llama.cpp does not have → its mix of about the same size.
NEAR_MIXES = {"q3_k_xl": "q3_k_l", "q4_k_xl": "q4_k_m", "q5_k_xl": "q5_k_m", "q6_k_xl": "q6_k", "q2_k_l": "q2_k"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedName:
    """A model's name without its quantization, and that quantization as ``requantized`` takes it."""

    base: str
    quantization: str


def quantized_name(name: str) -> QuantizedName | None:
    """Split a name into model and quantization, without the owner before a slash; None where it names none."""
    rest = re.sub(r"[\s_.:]*[-_:\s]+", "-", name.rsplit("/", 1)[-1].lower().removesuffix(".gguf"))
    rest, found = rest.replace(".w", "-w"), ""
    while (cut := _cut(rest)) is not None:
        rest, told = cut
        found = found or told
    return QuantizedName(base=rest, quantization=found) if found and rest else None


def _cut(name: str) -> tuple[str, str] | None:
    """Split off the last word, and return what it says of the quantization (maybe nothing); None for any other word."""
    for word in EMPTY_ENDINGS:
        if name.endswith(f"-{word}"):
            return name.removesuffix(f"-{word}"), ""
    for word, told in ENDINGS.items():
        if name.endswith(f"-{word}"):
            return name.removesuffix(f"-{word}"), told
    found = GGUF_ENDING.search(name)
    mix = _mix(found[1].replace("-", "_")) if found else ""
    return (name[: found.start()], mix) if found and mix else None


def _mix(word: str) -> str:
    mix = NEAR_MIXES.get(word, word)
    return mix if mix in GGUF_MIXES else ""


def named_model(name: str, library: Library) -> ModelShape:
    """Return the catalog's model of that name, in the quantization that the name mentions.

    Raises UserInputError with the nearest names where there is none.
    """
    entry = find_entry(name, library)
    if entry is not None:
        return shape_of_entry(entry)
    told = quantized_name(name)
    base = find_entry(told.base, library) if told else None
    if told is None or base is None:
        raise _unknown(name, told, library)
    shape = shape_of_entry(base)
    if told.quantization in (shape.quantization, *(("bf16", "fp16") if not shape.quantization else ())):
        return shape
    counted = requantized(shape, told.quantization)
    reason = f"weights: {name} is counted as {base.name} in {told.quantization}: none of its files was read"
    return replace(counted, estimate=(*counted.estimate, reason))


def find_entry(name: str, library: Library) -> ModelEntry | None:
    """Return the catalog's entry by its name, an alias, or its name on the hub; None where there is none."""
    hubs = {normal_name(entry.hub): entry.name for entry in library.models.values() if entry.hub}
    found = find_name(name.lower().removeprefix("meta-"), {**hubs, **library.models.known})
    return library.models[found] if found else None


def _unknown(name: str, told: QuantizedName | None, library: Library) -> UserInputError:
    """Return the error, with what the name says of the model where that is for something else than text."""
    if found := NO_GENERATORS.search(name.lower()):
        what = "speech" if found[1] in SPEECH else "embeddings or scores"
        return UserInputError(
            f"{name!r} is by its name a model for {what}, and a plan is for models that generate text",
            hint="serve it by a fleet file, with its name on the hub and task: embed or task: rerank"
            if what != "speech"
            else "plan a model that generates text: longboat plan list models",
        )
    wanted = told.base if told else name
    near = nearest_names(wanted, library.models)
    hint = f"did you mean {' or '.join(near)}?" if near else "give a folder, a GGUF file or a config.json"
    if told and near:
        hint += f" With --quantization {told.quantization}"
    return UserInputError(f"unknown model {name!r}", hint=hint)
