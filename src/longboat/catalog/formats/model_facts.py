"""What a model is, as its config.json tells."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("ModelFacts",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Shape of a model. None: the config does not say.

    num_heads, num_kv_heads: attention heads of queries, and of keys and values; kv None where layers differ in it
    head_dim: numbers in one head
    max_position_tokens: longest request that the engine accepts, after rope scaling
    dtype: type of the unquantized weights (``bfloat16``); quantization: method (``fp8``), None where there is none
    num_experts, num_experts_per_token: 0 for a dense model
    intermediate_size, moe_intermediate_size: inner width of the dense MLP, and of one expert
    kv_lora_rank: width of the latent that multi-head latent attention caches; None where attention is not of this kind
    multimodal: the language model is a part of a larger one
    """

    model_type: str = ""
    architecture: str = ""
    num_layers: int | None = None
    hidden_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_position_tokens: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    num_experts: int = 0
    num_experts_per_token: int = 0
    intermediate_size: int | None = None
    moe_intermediate_size: int | None = None
    kv_lora_rank: int | None = None
    multimodal: bool = False

    @property
    def uses_latent_attention(self) -> bool:
        """Whether keys and values are cached as one latent, whatever num_kv_heads says."""
        return self.kv_lora_rank is not None
