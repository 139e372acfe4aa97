"""How long one step of an engine takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ("COLD_AFTER_S", "StepTime")

COLD_AFTER_S: Final = 0.05
"""Seconds without a step after which an engine is cold: the caches of its processors hold other things."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of a step, as a sum of terms: what it computes of prompts, and what it decodes."""

    base_s: float  # of each step
    prompt_token_s: float  # of each prompt token that the step computes
    prompt_base_s: float = 0.0  # more of each step that computes prompts: decoding alone runs as one CUDA graph
    prompt_pair_s: float = 0.0  # of each pair of a computed prompt token and a token before it
    sequence_s: float = 0.0  # of each sequence that decodes
    kv_token_s: float = 0.0  # of each token in the KV cache that a decoding sequence reads
    wake_s: float = 0.0  # more of the first step of a cold engine

    def mixed_s(self, prompt_tokens: int, prompt_pairs: float, sequences: int, kv_tokens: int) -> float:
        """Return the seconds of a step that computes prompts beside sequences that decode."""
        return (
            self.base_s
            + (self.prompt_base_s if prompt_tokens else 0.0)
            + self.prompt_token_s * prompt_tokens
            + self.prompt_pair_s * prompt_pairs
            + self.sequence_s * sequences
            + self.kv_token_s * kv_tokens
        )

    def decode_s(self, steps: float, sequences: int, kv_tokens: int) -> float:
        """Return the seconds of ``steps`` steps in which ``sequences`` only decode; their KV cache grows by each.

        kv_tokens: that the first of these steps reads
        """
        first_s = self.base_s + self.sequence_s * sequences + self.kv_token_s * kv_tokens
        return steps * first_s + self.kv_token_s * sequences * steps * (steps - 1.0) / 2.0

    def steps_within(self, seconds: float, sequences: int, kv_tokens: int) -> float:
        """Return how many such steps ``seconds`` are, in parts of a step too: the inverse of ``decode_s``."""
        growth_s = self.kv_token_s * sequences / 2.0
        linear_s = self.base_s + self.sequence_s * sequences + self.kv_token_s * kv_tokens - growth_s
        if growth_s * seconds <= 1e-12 * linear_s * linear_s:
            return seconds / linear_s
        return (math.sqrt(linear_s * linear_s + 4.0 * growth_s * seconds) - linear_s) / (2.0 * growth_s)

    def prefill_s(self, tokens: int, cached_tokens: int = 0) -> float:
        """Return the seconds that a prompt takes by itself where ``cached_tokens`` of it are in the cache already."""
        new = tokens - cached_tokens
        base_s = self.base_s + self.prompt_base_s
        return base_s + self.prompt_token_s * new + self.prompt_pair_s * new * (cached_tokens + new / 2.0)
