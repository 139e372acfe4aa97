"""Reads what an engine lists at ``/v1/models``: names, and how many tokens a request may have. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ("listed_models",)

MAX_LISTED = 100


def listed_models(body: bytes) -> dict[str, int]:
    """Return the listed models: name → tokens of prompt and response together; 0 where the engine does not say.

    vLLM, SGLang and the fake engine say it in ``max_model_len``, llama.cpp in ``meta.n_ctx``. A body of another form
    lists no models.
    """
    try:
        cards = json.loads(body)["data"][:MAX_LISTED]
        return {str(card["id"]): _context_tokens(card) for card in cards}
    except (ValueError, TypeError, KeyError):
        return {}


def _context_tokens(card: Mapping[str, Any]) -> int:
    meta = card.get("meta")
    for found in (card.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if type(found) is int and found > 0:
            return found
    return 0
