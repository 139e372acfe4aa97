"""Counts vision towers beside a language model: every rank of the first stage holds one."""

from __future__ import annotations

from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.weight import Weight

__all__ = ("image_tokens", "read_vision")

SIDE_PIXELS = 1024
"""Side of the square image for which tokens are counted where a model takes images of any size."""

GATED = ("gemma4_vision", "pixtral")
GLM, LLAVA = "glm4v", "llava"


def read_vision(whole: Fields, text_hidden: int) -> tuple[Weight, ...]:
    """Return the tower and its projector as one weight; nothing where the config has no ``vision_config``.

    text_hidden: width of the language model
    """
    fields, kind = whole.section("vision_config"), whole.word("model_type")
    hidden = fields.count("hidden_size", "vt_hidden_size", "embed_dim")
    depth = fields.count("depth", "num_hidden_layers", "vt_num_hidden_layers") + fields.count("num_global_layers")
    if not hidden or not depth:
        return ()
    out = fields.count("out_hidden_size", default=text_hidden)
    if kind.startswith(GLM):
        return _tower(_glm_tower(fields, hidden, depth, out))
    if embedded := fields.count("embed_dim") if fields.count("mlp_ratio") else 0:  # Qwen2-VL: hidden_size is the text's
        out, hidden = hidden, embedded
    ratio = fields.count("mlp_ratio", default=4)
    width = fields.count("intermediate_size", "vt_intermediate_size", "mlp_dim", default=ratio * hidden)
    inner = fields.count("qkv_hidden_size", default=hidden)
    block = 4 * hidden * inner + _rest_of_block(fields, hidden, width)
    numbers = depth * block + _patches(fields, hidden) + _projector(fields, hidden, out)
    if kind.startswith(LLAVA):
        numbers += out * (out + 1)  # its projector has a second layer
    if between := whole.count("projector_hidden_size"):
        numbers += _two_layers(whole, fields, hidden, width, between, out) - hidden * out
    return _tower(numbers)


def _tower(numbers: int) -> tuple[Weight, ...]:
    return (Weight(name="vision_tower", part="vision", rows=numbers),)


def _glm_tower(fields: Fields, hidden: int, depth: int, out: int) -> int:
    """Count the tower of GLM-4.1V: gated blocks as wide as the text, and a merger that ``intermediate_size`` is of."""
    width, merge = fields.count("intermediate_size"), fields.count("spatial_merge_size", default=2)
    block = 4 * hidden * hidden + 3 * hidden * out + 2 * hidden
    places = (fields.count("image_size") // fields.count("patch_size", default=14)) ** 2
    merger = out * out + 2 * out + 3 * out * width + merge * merge * hidden * out + out
    return depth * block + merger + _patches(fields, hidden) + (places + 2) * hidden


def _two_layers(whole: Fields, fields: Fields, hidden: int, width: int, between: int, out: int) -> int:
    """Count the projector of LFM2-VL, and the pooling head of its tower where the config keeps it."""
    merged = hidden * whole.count("downsample_factor", default=2) ** 2
    projector = 2 * merged + (merged + 1) * between + (between + 1) * out
    pooled = 4 * hidden * hidden + 2 * hidden * width + width + 8 * hidden
    return projector + (pooled if fields.flag("vision_use_head", default=True) else 0)


def image_tokens(fields: Fields) -> int:
    """Return the prompt tokens of one image, of 1024 x 1024 pixels where its size matters; 0: not known.

    fields: the whole config
    Sources: the processors of these models in Transformers 5 and vLLM 0.32.
    """
    vision, kind = fields.section("vision_config"), fields.word("model_type")
    patch, size = vision.count("patch_size"), vision.count("image_size")
    if told := fields.count("mm_tokens_per_image", "image_seq_length"):  # Gemma 3, LLaVA
        return told
    if not patch:
        return 0
    if kind.startswith("llama4") and size:
        tiles = (SIDE_PIXELS // size) ** 2 + 1
        return tiles * round((size // patch) ** 2 * 0.25)
    merge = vision.count("spatial_merge_size", default=fields.count("spatial_merge_size"))
    if merge:  # Qwen-VL, Pixtral, Mistral 3: neighbouring patches become one token
        return (SIDE_PIXELS // (patch * merge)) ** 2
    return (size // patch) ** 2 if kind.startswith("llava") else 0


def _rest_of_block(fields: Fields, hidden: int, width: int) -> int:
    """Count feed-forward network, norms and biases.

    Gated towers have four norms and no bias; others have two norms and all biases. Qwen2.5-VL's is gated, with biases.
    """
    if fields.numbers("fullatt_block_indexes") or fields.count("window_size"):
        return 3 * hidden * width + 2 * width + 7 * hidden
    if _is_gated(fields):
        return 3 * hidden * width + 4 * hidden + 2 * fields.count("head_dim")
    return 2 * hidden * width + width + 9 * hidden


def _is_gated(fields: Fields) -> bool:
    return fields.word("model_type") in GATED


def _patches(fields: Fields, hidden: int) -> int:
    patch = fields.count("patch_size", default=14)
    channels = fields.count("in_channels", "num_channels", default=3)
    pixels = patch * patch * channels * fields.count("temporal_patch_size", default=1)
    grid = fields.count("init_pos_emb_height") * fields.count("init_pos_emb_width")
    if tiles := fields.count("max_num_tiles"):  # Llama 3.2: positions and tiles for each ratio of sides
        sides = 1 + sum(tiles // wide for wide in range(1, tiles + 1))
        places = (fields.count("image_size") // patch) ** 2 + 1
        return hidden * (pixels + places + sides * tiles * (places + 2))
    positions = fields.count("num_position_embeddings", default=grid) or 2 * fields.count("position_embedding_size")
    return hidden * (pixels + (not _is_gated(fields))) + positions * hidden


def _projector(fields: Fields, hidden: int, out: int) -> int:
    """Count the merger and projection of neighbouring patches, once more for each layer of deepstack."""
    merge = fields.count("spatial_merge_size")
    if not merge and (kernel := fields.numbers("merge_kernel_size")):
        merge = kernel[0]
    if wide := fields.count("vision_output_dim"):
        return wide * out + out
    if not merge:
        return hidden * out
    merged = hidden * merge * merge
    one = merged * (merged + 1) + (merged + 1) * out
    deep = len(fields.numbers("deepstack_visual_indexes"))
    return one * (1 + deep) + 2 * hidden + deep * 2 * merged
