"""Prompt tokens of an image, by the configs of published models."""

from __future__ import annotations

from typing import Any

import pytest

from longboat.builtin import describe
from longboat.catalog.families.vision import image_tokens
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.readers.hf_shape import shape_from_config


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"model_type": "llava", "vision_config": {"image_size": 336, "patch_size": 14}}, 576),
        ({"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {"patch_size": 14}}, 256),
        ({"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}, 36 * 36),
        ({"model_type": "qwen3_vl", "vision_config": {"patch_size": 16, "spatial_merge_size": 2}}, 1024),
        ({"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14}}, 36 * 36),
        ({"model_type": "llama4", "vision_config": {"image_size": 336, "patch_size": 14}}, 10 * 144),
        ({"model_type": "qwen3"}, 0),
    ],
)
def test_tokens_follow_from_the_config(config: dict[str, Any], tokens: int) -> None:
    assert image_tokens(Fields(config)) == tokens


def test_the_small_vision_model_is_counted_with_its_tower() -> None:
    told = describe("builtin:tiny-vision")
    shape = shape_from_config(told.config, name=told.name)
    assert shape.image_tokens == 16
    assert shape.num_params == pytest.approx(told.num_parameters, rel=0.1)
