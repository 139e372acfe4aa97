"""Maps architectures to readers; unknown ones are read as common decoders, and marked as estimates."""

from __future__ import annotations

from collections.abc import Callable

from longboat.catalog.families.architectures.classic import CLASSIC, read_classic
from longboat.catalog.families.architectures.cross_attention import read_mllama
from longboat.catalog.families.architectures.deepseek_v4 import read_deepseek_v4
from longboat.catalog.families.architectures.encoder import ENCODERS, read_encoder
from longboat.catalog.families.architectures.gemma import read_gemma
from longboat.catalog.families.architectures.gpt_oss import read_gpt_oss
from longboat.catalog.families.architectures.hybrids import (
    read_bamba,
    read_falcon_h1,
    read_jamba,
    read_lfm2,
    read_mamba,
    read_minimax,
    read_zamba2,
)
from longboat.catalog.families.architectures.kimi_linear import read_kimi_linear
from longboat.catalog.families.architectures.llama4 import read_llama4
from longboat.catalog.families.architectures.mimo_v2 import read_mimo_v2
from longboat.catalog.families.architectures.minimax_m3 import read_minimax_m3
from longboat.catalog.families.architectures.nemotron import read_nemotron_h, read_nemotron_nas
from longboat.catalog.families.checked import CHECKED
from longboat.catalog.families.decoder import read_decoder
from longboat.catalog.families.parts import Stack
from longboat.catalog.formats.config_fields import Fields

__all__ = ("Reader", "is_known", "reader_of")

Reader = Callable[[Fields], Stack]

READERS: dict[str, Reader] = {
    **dict.fromkeys(sorted(ENCODERS), read_encoder),
    "DeciLMForCausalLM": read_nemotron_nas,
    "DeepseekV4ForCausalLM": read_deepseek_v4,
    "Gemma2ForCausalLM": read_gemma,
    "Gemma3ForCausalLM": read_gemma,
    "Gemma3ForConditionalGeneration": read_gemma,
    "Gemma4ForCausalLM": read_gemma,
    "Gemma4ForConditionalGeneration": read_gemma,
    "GemmaForCausalLM": read_gemma,
    "GptOssForCausalLM": read_gpt_oss,
    "KimiK3ForConditionalGeneration": read_kimi_linear,
    "KimiLinearForCausalLM": read_kimi_linear,
    "Llama4ForCausalLM": read_llama4,
    "Llama4ForConditionalGeneration": read_llama4,
    "MiMoV2FlashForCausalLM": read_mimo_v2,
    "MiniMaxM3ForCausalLM": read_minimax_m3,
    "NemotronHForCausalLM": read_nemotron_h,
    "NemotronHPuzzleForCausalLM": read_nemotron_h,
}

# Readers by ``model_type``, which names a family more surely than the class where a repository has code of its own.
BY_TYPE: dict[str, Reader] = {
    **dict.fromkeys(CLASSIC, read_classic),
    "bamba": read_bamba,
    "falcon_h1": read_falcon_h1,
    "falcon_mamba": read_mamba,
    "gemma3n_text": read_gemma,
    "gemma4_text": read_gemma,
    "gemma3_text": read_gemma,
    "gemma2": read_gemma,
    "gemma": read_gemma,
    "granitemoehybrid": read_bamba,
    "jamba": read_jamba,
    "lfm2": read_lfm2,
    "lfm2_moe": read_lfm2,
    "llama4_text": read_llama4,
    "mamba": read_mamba,
    "mamba2": read_mamba,
    "minimax": read_minimax,
    "minimax_m1": read_minimax,
    "minimax_text_01": read_minimax,
    "mllama_text_model": read_mllama,
    "nemotron_h": read_nemotron_h,
    "zamba2": read_zamba2,
}

# Common decoders whose parameter counts were checked against a published figure or the publisher's code.
COMMON = frozenset(
    {
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiK2ForCausalLM",
        "MiMoForCausalLM",
        "Mistral3ForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Step3p7FlashForCausalLM",
    }
)


# Classes with a tower for images or audio that were checked with one sort of language model, by its type: counts are
# exact with that one, and with any other whose own class was checked.
TOWERS = {
    "Cohere2VisionForConditionalGeneration": "cohere2",
    "Cosmos3OmniForConditionalGeneration": "qwen3_vl_text",
    "Glm4vForConditionalGeneration": "glm4v_text",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe_text",
    "InternVLForConditionalGeneration": "qwen2",
    "Lfm2VlForConditionalGeneration": "lfm2",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "llama",
    "LlavaNextVideoForConditionalGeneration": "llama",
    "PaddleOCRVLForConditionalGeneration": "paddleocr_vl_text",
    "PaliGemmaForConditionalGeneration": "gemma",
    "Qwen2AudioForConditionalGeneration": "qwen2",
    "Qwen2VLForConditionalGeneration": "qwen2_vl_text",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl_text",
    "Qwen3ASRForConditionalGeneration": "qwen3_asr_text",
}


def reader_of(architecture: str, model_type: str = "") -> Reader:
    """Return the reader for a class name of ``architectures`` in config.json, else for its ``model_type``."""
    return READERS.get(architecture) or BY_TYPE.get(model_type, read_decoder)


def is_known(architecture: str, model_type: str = "") -> bool:
    """Return whether counts for this architecture are exact; by its type where the config names no class."""
    if not architecture:
        return model_type in CHECKED.values()
    if architecture in TOWERS:
        text = TOWERS[architecture]
        return model_type in (text, text.removesuffix("_text")) or model_type in CHECKED.values()
    return architecture in READERS or architecture in COMMON or architecture in CHECKED
