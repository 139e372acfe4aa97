"""What an engine that tells nothing probably holds: the prompts that this gateway sent there, the newest ones."""

from __future__ import annotations

from longboat.routing.prefixes.prompt import Prompt
from longboat.routing.prefixes.shared_index import UsedBlocks

__all__ = ("PlacedPrompts",)

_UNKNOWN_CAPACITY_TOKENS = 200_000
_SPARE_PART = 64  # one block of this number goes before its time, so that room is made for several prompts at once
_DOUBTED_PART = 4  # so much goes where an expected prefix was not there


class PlacedPrompts:
    """The blocks that one replica got from this gateway, as a cache of its size keeps them.

    A prompt's blocks are used from its end to its beginning, so that a prefix goes from its end, as engines evict it.
    """

    def __init__(self, capacity_tokens: int = 0) -> None:
        """capacity_tokens: of the replica's KV cache; 0: unknown"""
        self._capacity_tokens = capacity_tokens or _UNKNOWN_CAPACITY_TOKENS
        self._held = UsedBlocks()
        self._use = self._held.use  # compiled code would look the method up by its name each time

    @property
    def num_tokens(self) -> int:
        """Tokens that it takes the replica to hold."""
        return self._held.num_tokens

    def sent(self, prompt: Prompt) -> bytes:
        """Note a prompt that was sent there. Return the blocks that have made room for it."""
        if self._use(prompt.blocks, prompt.ends, prompt.num_tokens) <= self._capacity_tokens:
            return b""
        return self._held.make_room(self._capacity_tokens, _SPARE_PART)

    def found(self, prompt: Prompt, expected_depth: int, cached_tokens: int) -> bytes:
        """Take how many of a prompt's tokens were cached. Return the blocks that were expected to be and were not.

        They are computed now, but those of other prompts that went with them are not: what was used before them goes.
        """
        if cached_tokens >= prompt.tokens_at(expected_depth) * 0.8:
            return b""
        return self._held.forget(_DOUBTED_PART, prompt.blocks)
