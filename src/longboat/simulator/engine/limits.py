"""The settings of a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.simulator.engine.job_blocks import blocks_of

__all__ = ("EngineLimits",)


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The settings of an engine that bound its batches and its cache.

    Data parts take their steps together, and each computes prompts of its own: a step has the tokens of all parts, and
    of one prompt those of one part.
    """

    kv_blocks: int  # blocks of its KV cache, of all data parts
    block_tokens: int = 16
    max_num_seqs: int = 256  # of all data parts
    max_num_batched_tokens: int = 8192  # of one data part
    data_parts: int = 1
    prefix_caching: bool = True

    def holds(self, tokens: int) -> bool:
        """Return whether a request with these tokens of prompt and output can ever run."""
        return blocks_of(tokens, self.block_tokens) <= self.kv_blocks
