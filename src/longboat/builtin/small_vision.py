"""``builtin:tiny-vision``: a LLaVA of random weights for small images (CLIP and Qwen2, two layers each)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from longboat.builtin.safetensors_file import Tensor, matrix, vectors

__all__ = ("IMAGE_ID", "IMAGE_MARK", "VISION_CONFIG", "VISION_FILES", "vision_tensors")

IMAGE_MARK = "<image>"
IMAGE_ID = 3801
_END, _PAD, _VOCABULARY = 3794, 3792, 4096
_PIXELS, _PATCH = 56, 14

_TOWER: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "image_size": _PIXELS,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "patch_size": _PATCH,
    "projection_dim": 64,
}
_TEXT: dict[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "eos_token_id": _END,
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
VISION_CONFIG: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "dtype": "bfloat16",
    "image_seq_length": (_PIXELS // _PATCH) ** 2,
    "image_token_id": IMAGE_ID,
    "image_token_index": IMAGE_ID,
    "projector_hidden_act": "gelu",
    "text_config": _TEXT,
    "tie_word_embeddings": False,
    "vision_config": _TOWER,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% else %}<image>{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
VISION_FILES: dict[str, str] = {
    "chat_template.jinja": _TEMPLATE,
    "preprocessor_config.json": json.dumps(
        {
            "crop_size": {"height": _PIXELS, "width": _PIXELS},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "CLIPImageProcessor",
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "LlavaProcessor",
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"shortest_edge": _PIXELS},
        }
    ),
    "processor_config.json": json.dumps(
        {
            "image_token": IMAGE_MARK,
            "num_additional_image_tokens": 1,
            "patch_size": _PATCH,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "default",
        }
    ),
}
"""Files beside the tokenizer's."""


def vision_tensors() -> Iterator[Tensor]:
    """Yield the name and shape of every weight."""
    yield from _tower()
    hidden, width = _TOWER["hidden_size"], _TEXT["hidden_size"]
    yield from matrix("multi_modal_projector.linear_1", width, hidden)
    yield from matrix("multi_modal_projector.linear_2", width, width)
    yield from _language(width)


def _tower() -> Iterator[Tensor]:
    at, hidden, inner = "vision_tower.vision_model", _TOWER["hidden_size"], _TOWER["intermediate_size"]
    yield f"{at}.embeddings.class_embedding", (hidden,)
    yield f"{at}.embeddings.patch_embedding.weight", (hidden, 3, _PATCH, _PATCH)
    yield f"{at}.embeddings.position_embedding.weight", ((_PIXELS // _PATCH) ** 2 + 1, hidden)
    yield from vectors(f"{at}.pre_layrnorm", hidden)
    for layer in range(_TOWER["num_hidden_layers"]):
        block = f"{at}.encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from matrix(f"{block}.self_attn.{part}", hidden, hidden)
        yield from vectors(f"{block}.layer_norm1", hidden)
        yield from matrix(f"{block}.mlp.fc1", inner, hidden)
        yield from matrix(f"{block}.mlp.fc2", hidden, inner)
        yield from vectors(f"{block}.layer_norm2", hidden)
    yield from vectors(f"{at}.post_layernorm", hidden)


def _language(hidden: int) -> Iterator[Tensor]:
    inner, kv = _TEXT["intermediate_size"], hidden // _TEXT["num_attention_heads"] * _TEXT["num_key_value_heads"]
    yield "language_model.model.embed_tokens.weight", (_VOCABULARY, hidden)
    for layer in range(_TEXT["num_hidden_layers"]):
        block = f"language_model.model.layers.{layer}"
        yield f"{block}.input_layernorm.weight", (hidden,)
        for part, rows in (("q_proj", hidden), ("k_proj", kv), ("v_proj", kv)):
            yield from matrix(f"{block}.self_attn.{part}", rows, hidden)
        yield f"{block}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{block}.post_attention_layernorm.weight", (hidden,)
        yield f"{block}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{block}.mlp.up_proj.weight", (inner, hidden)
        yield f"{block}.mlp.down_proj.weight", (hidden, inner)
    yield "language_model.model.norm.weight", (hidden,)
    yield "language_model.lm_head.weight", (_VOCABULARY, hidden)
