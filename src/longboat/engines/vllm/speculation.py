"""vLLM's setting for speculative decoding."""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = ("NEEDS_NO_MEMORY", "proposes_from_hub", "speculative_arguments")

_METHODS = {"draft": "draft_model"}
"""Method of the fleet file → vLLM's name, where it differs."""
_LOOKUP = 3
NEEDS_NO_MEMORY = '"method": "ngram"'
"""Part of the setting by which proposals take no memory of an accelerator."""


def speculative_arguments(method: str, tokens: int, model: str | None, lookup: int | None) -> tuple[str, ...]:
    """Return the arguments that let vLLM propose ``tokens`` in each step."""
    told: dict[str, str | int] = {"method": _METHODS.get(method, method), "num_speculative_tokens": tokens}
    if model is not None:
        told["model"] = model.removeprefix("hf:")
    if method == "ngram":
        told |= {"prompt_lookup_max": lookup or _LOOKUP, "prompt_lookup_min": 1}
    return (f"--speculative-config={json.dumps(told)}",)


def proposes_from_hub(args: Sequence[str]) -> bool:
    """Return whether the arguments name a model of a hub that proposes tokens."""
    told = [word.partition("=")[2] for word in args if word.startswith("--speculative-config=")]
    models = [json.loads(text).get("model") for text in told]
    return any(model is not None and not model.startswith("/") for model in models)
