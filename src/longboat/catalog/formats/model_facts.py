"""The settings of a model, as its config.json states them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("ModelConfig",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The settings of a model that decide where it fits. None: the config does not say.

    It has more than 12 fields because it mirrors a file, without behaviour.
    """

    model_type: str = ""
    architecture: str = ""
    num_layers: int | None = None
    hidden_size: int | None = None
    num_heads: int | None = None  # query heads
    num_kv_heads: int | None = None  # key and value heads; None where layers differ
    head_dim: int | None = None  # numbers in one head
    vocab_size: int | None = None
    max_position_tokens: int | None = None  # longest request that the engine accepts, after rope scaling
    dtype: str | None = None  # type of the unquantized weights (``bfloat16``)
    quantization: str | None = None  # method (``fp8``)
    num_experts: int = 0  # 0 for a dense model
    num_experts_per_token: int = 0  # 0 for a dense model
    intermediate_size: int | None = None  # inner width of the dense MLP
    moe_intermediate_size: int | None = None  # inner width of one expert
    # width of the latent that multi-head latent attention caches; None for other attention
    kv_lora_rank: int | None = None
    multimodal: bool = False  # the language model is a part of a larger one

    @property
    def uses_latent_attention(self) -> bool:
        """Whether keys and values are cached as one latent, whatever num_kv_heads says."""
        return self.kv_lora_rank is not None
