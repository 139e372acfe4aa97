"""``builtin:tiny-audio``: a Qwen3-ASR of random weights (two layers each), for transcription and chats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from longboat.builtin.safetensors_file import Tensor, matrix, vectors

__all__ = ("AUDIO_CONFIG", "AUDIO_FILES", "AUDIO_SETTINGS", "AUDIO_TOKENS", "audio_tensors")

_AUDIO_ID, _END, _PAD, _VOCABULARY = 3801, 3794, 3792, 4096
_MEL_BINS = 32

AUDIO_TOKENS = {"<|audio_pad|>": _AUDIO_ID, "<|audio_start|>": 3802, "<|audio_end|>": 3803}
AUDIO_SETTINGS = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "processor_class": "Qwen3ASRProcessor",
}
"""Settings of the tokenizer's config."""

_TOWER: dict[str, Any] = {
    "model_type": "qwen3_asr_audio_encoder",
    "d_model": 64,
    "downsample_hidden_size": 16,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "encoder_layers": 2,
    "n_window": 50,
    "n_window_infer": 800,
    "num_mel_bins": _MEL_BINS,
    "output_dim": 128,
}
_TEXT: dict[str, Any] = {
    "model_type": "qwen3_asr_text",
    "eos_token_id": _END,
    "head_dim": 32,
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": _PAD,
    "tie_word_embeddings": False,
    "vocab_size": _VOCABULARY,
}
AUDIO_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ASRForConditionalGeneration"],
    "model_type": "qwen3_asr",
    "dtype": "bfloat16",
    "thinker_config": {
        "model_type": "qwen3_asr_thinker",
        "audio_config": _TOWER,
        "audio_token_id": _AUDIO_ID,
        "dtype": "bfloat16",
        "text_config": _TEXT,
    },
}
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% else %}<|audio_start|><|audio_pad|><|audio_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
_EXTRACTOR = {
    "chunk_length": 30,
    "feature_extractor_type": "Qwen3ASRFeatureExtractor",
    "feature_size": _MEL_BINS,
    "hop_length": 160,
    "n_fft": 400,
    "sampling_rate": 16000,
}
AUDIO_FILES: dict[str, str] = {
    "chat_template.jinja": _TEMPLATE,
    "preprocessor_config.json": json.dumps(_EXTRACTOR | {"processor_class": "Qwen3ASRProcessor"}),
    "processor_config.json": json.dumps({"feature_extractor": _EXTRACTOR, "processor_class": "Qwen3ASRProcessor"}),
}
"""Files beside the tokenizer's."""


def audio_tensors() -> Iterator[Tensor]:
    """Yield the name and shape of every weight."""
    yield from _tower()
    width, hidden = _TOWER["d_model"], _TEXT["hidden_size"]
    yield from matrix("thinker.audio_tower.proj1", width, width)
    yield from matrix("thinker.audio_tower.proj2", hidden, width)
    yield from _language(hidden)


def _tower() -> Iterator[Tensor]:
    at, width, channels = "thinker.audio_tower", _TOWER["d_model"], _TOWER["downsample_hidden_size"]
    for number, inputs in ((1, 1), (2, channels), (3, channels)):
        yield f"{at}.conv2d{number}.weight", (channels, inputs, 3, 3)
        yield f"{at}.conv2d{number}.bias", (channels,)
    yield f"{at}.conv_out.weight", (width, channels * _MEL_BINS // 8)
    for layer in range(_TOWER["encoder_layers"]):
        block = f"{at}.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from matrix(f"{block}.self_attn.{part}", width, width)
        yield from vectors(f"{block}.self_attn_layer_norm", width)
        yield from matrix(f"{block}.fc1", _TOWER["encoder_ffn_dim"], width)
        yield from matrix(f"{block}.fc2", width, _TOWER["encoder_ffn_dim"])
        yield from vectors(f"{block}.final_layer_norm", width)
    yield from vectors(f"{at}.ln_post", width)


def _language(hidden: int) -> Iterator[Tensor]:
    inner, size = _TEXT["intermediate_size"], _TEXT["head_dim"]
    queries, kv = size * _TEXT["num_attention_heads"], size * _TEXT["num_key_value_heads"]
    at = "thinker.model"
    yield f"{at}.embed_tokens.weight", (_VOCABULARY, hidden)
    for layer in range(_TEXT["num_hidden_layers"]):
        block = f"{at}.layers.{layer}"
        yield f"{block}.input_layernorm.weight", (hidden,)
        for part, rows in (("q", queries), ("k", kv), ("v", kv)):
            yield f"{block}.self_attn.{part}_proj.weight", (rows, hidden)
        yield f"{block}.self_attn.q_norm.weight", (size,)
        yield f"{block}.self_attn.k_norm.weight", (size,)
        yield f"{block}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{block}.post_attention_layernorm.weight", (hidden,)
        yield f"{block}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{block}.mlp.up_proj.weight", (inner, hidden)
        yield f"{block}.mlp.down_proj.weight", (hidden, inner)
    yield f"{at}.norm.weight", (hidden,)
    yield "thinker.lm_head.weight", (_VOCABULARY, hidden)
