"""Maps architectures to readers; unknown ones are read as common decoders, and marked as estimates."""

from __future__ import annotations

from collections.abc import Callable

from longboat.catalog.families.architectures.deepseek_v4 import read_deepseek_v4
from longboat.catalog.families.architectures.encoder import ENCODERS, read_encoder
from longboat.catalog.families.architectures.gemma import read_gemma
from longboat.catalog.families.architectures.gpt_oss import read_gpt_oss
from longboat.catalog.families.architectures.kimi_linear import read_kimi_linear
from longboat.catalog.families.architectures.llama4 import read_llama4
from longboat.catalog.families.architectures.mimo_v2 import read_mimo_v2
from longboat.catalog.families.architectures.minimax_m3 import read_minimax_m3
from longboat.catalog.families.architectures.nemotron import read_nemotron_h, read_nemotron_nas
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
}

# Common decoders whose parameter counts were checked against a published figure or the publisher's code.
COMMON = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiK2ForCausalLM",
        "LlamaForCausalLM",
        "MiMoForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Step3p7FlashForCausalLM",
    }
)


def reader_of(architecture: str) -> Reader:
    """Return the reader for a class name of ``architectures`` in config.json."""
    return READERS.get(architecture, read_decoder)


def is_known(architecture: str) -> bool:
    """Return whether counts for this architecture are exact."""
    return architecture in READERS or architecture in COMMON
