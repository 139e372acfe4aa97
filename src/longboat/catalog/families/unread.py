"""Names fields of a config that seem to be about weights or caches and that no reader asked for."""

from __future__ import annotations

import re

from longboat.catalog.families.defaults import class_fields
from longboat.catalog.formats.config_fields import Fields

__all__ = ("unread_fields", "unread_of")

STRUCTURAL = re.compile(
    r"layer|head|expert|dim|size|rank|width|proj|attn|attention|ffn|mlp|moe|mamba|ssm|conv|kv|mem_|block|window|state"
    r"|latent|group|cross|cla_|altup|laurel|recurrent|lora|share"
)
HARMLESS = re.compile(
    r"dropout|pdrop|drop_prob|_std|eps|rope|rotary|_coef|initializer|token_id|_index$|clip|chunk_size|flash|kernels|softmax"
    r"|init|output_|return_|quantization|norm|image_size|gradient|dtype|implementation|_loss|temperature|scal|logit|implementation"
    r"|pretraining|architectures|sampling|scoring|max_position|max_length|seq_len|context|_fn|alpha|beta|multiplier|bias"
    r"|class|^n_group$|topk_group|dynamic|use_cache|train|penalty|batch_size|cache_dtype|window_layers|use_sliding|num_hash_layers"
    r"|sliding_window_size|time_step|qk_head_dim|full_attention_interval|_parallel|num_logits"
    r"|sliding_window_pattern|mamba_headdim|conv_dim|attention_layers|kv_channels"
)
# Switches whose names say that layers have more weights.
SWITCH = re.compile(r"moe|residual|mlp|attn")
# Fields that say nothing where keys and values are one latent for all heads.
OF_HEADS = {"num_key_value_heads", "head_dim"}


def unread_fields(fields: Fields) -> tuple[str, ...]:
    """Return the names, in order; not those that the code of a checked family has for other purposes."""
    known = fields.seen | class_fields(fields.word("model_type"))
    known |= OF_HEADS if "kv_lora_rank" in fields else set()
    return tuple(
        name
        for name, value in fields.values.items()
        if _says_something(name, value)
        if not (isinstance(value, list) and set(map(str, value)) <= {"0", "1"} and len(set(map(str, value))) < 2)
        if name not in known and STRUCTURAL.search(name) and not HARMLESS.search(name)
    )


def unread_of(section: Fields) -> tuple[str, ...]:
    """Return the names of a section that belongs to layers, whatever they are called, that no reader asked for."""
    return tuple(
        name for name, value in section.values.items() if name not in section.seen and _says_something(name, value)
    )


def _says_something(name: str, value: object) -> bool:
    if value is True:
        return bool(SWITCH.search(name))
    return value not in (None, False, 0, 1, "", [], {}) and not isinstance(value, str | float)
