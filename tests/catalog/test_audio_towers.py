"""Audio towers by the configs of published models, and by the weights of our own."""

from __future__ import annotations

from typing import Any

from longboat.builtin import describe
from longboat.catalog.families.audio import read_audio
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.readers.hf_shape import shape_from_config

QWEN2_AUDIO = {
    "model_type": "qwen2_audio_encoder",
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}


def test_whispers_encoder_is_counted_as_in_transformers() -> None:
    encoder, projector = 636_968_960, 5_246_976  # of Transformers' classes, on the device "meta"
    (tower,) = read_audio(Fields(QWEN2_AUDIO), 4096)
    assert tower.num_params == encoder + projector


def test_the_small_audio_model_is_counted_with_its_tower() -> None:
    told = describe("builtin:tiny-audio")
    shape = shape_from_config(told.config, name=told.name)
    assert shape.num_loaded_params == told.num_parameters
    assert shape.num_params < told.num_parameters
    assert shape.estimate == ()


def test_an_unknown_tower_is_said_to_be_left_out() -> None:
    config: dict[str, Any] = dict(describe("builtin:tiny").config) | {"audio_config": {"model_type": "other"}}
    assert "weights: the audio tower is left out" in shape_from_config(config).estimate
