"""The defaults of config classes: what a family means where its config.json leaves a field out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

__all__ = ("CORE", "class_fields", "defaults_of")

CORE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Fields without which a config of a language model is broken, although its class has defaults for them."""
CORE_SYNONYMS = (*CORE, "n_layer", "n_layers", "num_layers", "n_head", "n_heads", "n_embd", "d_model")
# Fields that checkpoints leave out although the default is not theirs: they have no window, or a head of their own.
NEWER = {
    "mistral": ("sliding_window",),
    "ministral": ("sliding_window",),
    "mistral3": ("tie_word_embeddings",),
}


def defaults_of(model_type: str, *, inner: bool) -> Mapping[str, object]:
    """Return the values of fields that a config of this type may leave out.

    inner: it is the section of a larger config, whose publishers leave out sizes too
    """
    told = _table().get(model_type)
    if told is None:
        return {}
    left_out = (*NEWER.get(model_type, ()), *(() if inner else CORE_SYNONYMS))
    return {name: value for name, value in told["defaults"].items() if name not in left_out}


def class_fields(model_type: str) -> frozenset[str]:
    """Return the names of all fields of the family's class; none where the family is unknown."""
    told = _table().get(model_type)
    return frozenset((*told["defaults"], *told["others"])) if told else frozenset()


@cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    """Return the table that ``tools/model_truth.py`` writes from transformers' classes."""
    file = resources.files("longboat.catalog") / "data" / "config_defaults.json"
    table: Mapping[str, Mapping[str, Mapping[str, object]]] = json.loads(file.read_text(encoding="utf-8"))
    return table
