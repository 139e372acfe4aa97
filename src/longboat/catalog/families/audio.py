"""Counts audio towers beside a language model: as with vision towers, every rank of the first stage holds one."""

from __future__ import annotations

from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.weight import Weight

__all__ = ("audio_section", "read_audio")

WHISPER = ("qwen2_audio_encoder", "whisper")
"""Whisper's encoder: two convolutions over time, stored positions, no bias of keys."""
QWEN3 = ("qwen3_asr_audio_encoder", "qwen3_asr_encoder", "qwen3_omni_moe_audio_encoder")
"""Three convolutions over time and pitch, computed positions, two projections."""


def audio_section(whole: Fields) -> Fields:
    """Return the ``audio_config``, also one inside ``thinker_config``; empty where there is none."""
    return whole.section("audio_config") or whole.section("thinker_config").section("audio_config")


def read_audio(fields: Fields, text_hidden: int) -> tuple[Weight, ...]:
    """Return the tower and its projector as one weight; nothing where ``fields`` is empty or of another kind.

    fields: the ``audio_config``; text_hidden: width of the language model
    """
    kind, width, depth = fields.word("model_type"), fields.count("d_model"), fields.count("encoder_layers")
    if kind not in WHISPER + QWEN3 or not width or not depth:
        return ()
    inner = fields.count("encoder_ffn_dim", default=4 * width)
    keys = width if kind in QWEN3 else 0
    block = 4 * width * width + 2 * width * inner + inner + 8 * width + keys
    ends = _whisper_ends if kind in WHISPER else _qwen3_ends
    return (Weight(name="audio_tower", part="vision", rows=depth * block + ends(fields, width, text_hidden)),)


def _whisper_ends(fields: Fields, width: int, text_hidden: int) -> int:
    """Count convolutions, positions, the last norm and the projector."""
    bins, places = fields.count("num_mel_bins", default=80), fields.count("max_source_positions", default=1500)
    return 3 * width * (bins + width) + 2 * width + places * width + 2 * width + (width + 1) * text_hidden


def _qwen3_ends(fields: Fields, width: int, text_hidden: int) -> int:
    """Count convolutions, the last norm and both projections."""
    channels, bins = fields.count("downsample_hidden_size", default=480), fields.count("num_mel_bins", default=128)
    rows = ((((bins + 1) // 2 + 1) // 2) + 1) // 2
    convolutions = channels * (9 + 2 * 9 * channels + 3) + channels * rows * width
    out = fields.count("output_dim", default=text_hidden)
    return convolutions + 2 * width + (width + 1) * width + (width + 1) * out
