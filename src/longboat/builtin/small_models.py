"""Small models of random weights for other tasks than text, with the tokenizer of ``builtin:tiny``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longboat.builtin.random_folder import ensure_folder
from longboat.builtin.safetensors_file import Tensor, matrix, vectors
from longboat.builtin.small_audio import AUDIO_CONFIG, AUDIO_FILES, AUDIO_SETTINGS, AUDIO_TOKENS, audio_tensors
from longboat.builtin.small_vision import IMAGE_ID, IMAGE_MARK, VISION_CONFIG, VISION_FILES, vision_tensors

__all__ = ("SMALL", "SmallModel", "ensure_small")

SEED = 0
_PAD, _VOCABULARY = 3792, 4096
_DEVIATION = 0.2  # of weights of an encoder: large enough that texts differ


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """One model, before it is written."""

    name: str
    config: Mapping[str, Any] = field(repr=False)  # content of config.json
    tensors: Sequence[Tensor] = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)  # further files, by name
    added_tokens: Mapping[str, int] = field(default_factory=dict)  # tokens that the tokenizer gets besides its own
    settings: Mapping[str, str] = field(default_factory=dict)  # of the tokenizer's config, with added tokens
    deviation: float = _DEVIATION  # of the random weights


def ensure_small(model: SmallModel, folder: Path, *, tokenizer_from: Path) -> Path:
    """Return the model's folder under ``folder``, written if missing. Another recipe of it gets another folder."""
    files = {**_with_tokens(model, tokenizer_from), **model.files}
    recipe = json.dumps([model.config, list(model.tensors), files, model.deviation], sort_keys=True)
    target = folder / f"{model.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    return ensure_folder(
        target,
        model.tensors,
        model.config,
        SEED,
        files,
        tokenizer_from=tokenizer_from,
        deviation=model.deviation,
    )


def _with_tokens(model: SmallModel, tokenizer: Path) -> dict[str, str]:
    """Return the tokenizer's files with further tokens in them; none where it stays as it is."""
    if not model.added_tokens:
        return {}
    told = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    settings: dict[str, Any] = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
    first = next(token for token in told["added_tokens"] if token["special"])
    told["added_tokens"] += [{**first, "id": at, "content": text} for text, at in model.added_tokens.items()]
    settings |= model.settings
    return {"tokenizer.json": json.dumps(told), "tokenizer_config.json": json.dumps(settings)}


def _encoder(name: str, architecture: str, *, num_labels: int = 0) -> SmallModel:
    """Return a BERT of two layers; num_labels: classes of its head, 0: it has none."""
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        "attention_probs_dropout_prob": 0.1,
        "dtype": "bfloat16",
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 64,
        "initializer_range": _DEVIATION,
        "intermediate_size": 128,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "pad_token_id": _PAD,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": _VOCABULARY,
    }
    if num_labels:
        config["id2label"] = {str(index): f"LABEL_{index}" for index in range(num_labels)}
        config["label2id"] = {f"LABEL_{index}": index for index in range(num_labels)}
    prefix = "bert." if num_labels else ""
    tensors = [(prefix + part, shape) for part, shape in _encoder_tensors(config)]
    if num_labels:
        tensors += [("classifier.weight", (num_labels, 64)), ("classifier.bias", (num_labels,))]
    return SmallModel(name=name, config=config, tensors=tensors)


def _encoder_tensors(config: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (config["vocab_size"], hidden)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], hidden)
    yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], hidden)
    yield from vectors("embeddings.LayerNorm", hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from matrix(f"{at}.attention.self.{part}", hidden, hidden)
        yield from matrix(f"{at}.attention.output.dense", hidden, hidden)
        yield from vectors(f"{at}.attention.output.LayerNorm", hidden)
        yield from matrix(f"{at}.intermediate.dense", inner, hidden)
        yield from matrix(f"{at}.output.dense", hidden, inner)
        yield from vectors(f"{at}.output.LayerNorm", hidden)
    yield from matrix("pooler.dense", hidden, hidden)


SMALL: Mapping[str, SmallModel] = {
    model.name: model
    for model in (
        _encoder("tiny-embed", "BertModel"),
        _encoder("tiny-rerank", "BertForSequenceClassification", num_labels=1),
        _encoder("tiny-classify", "BertForSequenceClassification", num_labels=3),
        SmallModel(
            name="tiny-vision",
            config=VISION_CONFIG,
            tensors=tuple(vision_tensors()),
            files=VISION_FILES,
            added_tokens={IMAGE_MARK: IMAGE_ID},
            settings={"image_token": IMAGE_MARK, "processor_class": "LlavaProcessor"},
            deviation=0.08,
        ),
        SmallModel(
            name="tiny-audio",
            config=AUDIO_CONFIG,
            tensors=tuple(audio_tensors()),
            files=AUDIO_FILES,
            added_tokens=AUDIO_TOKENS,
            settings=AUDIO_SETTINGS,
            deviation=0.15,
        ),
    )
}
"""The models by name, without the prefix."""
