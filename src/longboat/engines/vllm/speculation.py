"""vLLM's setting for speculative decoding."""

from __future__ import annotations

import json

__all__ = ("NEEDS_NO_MEMORY", "speculative_arguments")

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
