"""vLLM's setting for speculative decoding."""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = ("needs_memory", "proposes_from_hub", "speculative_arguments")

_METHODS = {"draft": "draft_model"}
"""Method of the fleet file → vLLM's name, where it differs."""
_LOOKUP = 3


def speculative_arguments(method: str, tokens: int, model: str | None, lookup: int | None) -> tuple[str, ...]:
    """Return the arguments that let vLLM propose ``tokens`` in each step."""
    told: dict[str, str | int] = {"method": _METHODS.get(method, method), "num_speculative_tokens": tokens}
    if model is not None:
        told["model"] = model.removeprefix("hf:")
    if method == "ngram":
        told |= {"prompt_lookup_max": lookup or _LOOKUP, "prompt_lookup_min": 1}
    return (f"--speculative-config={json.dumps(told)}",)


def needs_memory(setting: str) -> bool:
    """Return whether what proposes tokens takes memory of an accelerator, by vLLM's ``--speculative-config``."""
    try:
        return bool(json.loads(setting)["method"] != "ngram")
    except (ValueError, TypeError, KeyError):
        return True


def proposes_from_hub(args: Sequence[str]) -> bool:
    """Return whether the arguments name a model of a hub that proposes tokens."""
    told = [word.partition("=")[2] for word in args if word.startswith("--speculative-config=")]
    models = [json.loads(text).get("model") for text in told]
    return any(model is not None and not model.startswith("/") for model in models)
