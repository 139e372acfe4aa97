"""What an engine that tells nothing probably holds: the prompts that this gateway sent there, the newest ones."""

from __future__ import annotations

from collections import OrderedDict

from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt

__all__ = ("PlacedPrompts",)

_UNKNOWN_CAPACITY_TOKENS = 200_000


class PlacedPrompts:
    """The blocks that one replica got from this gateway, as a cache of its size keeps them.

    A prompt's blocks are used from its end to its beginning, so that a prefix goes from its end, as engines evict it.
    """

    def __init__(self, capacity_tokens: int = 0) -> None:
        """capacity_tokens: of the replica's KV cache; 0: unknown"""
        self._capacity_tokens = capacity_tokens or _UNKNOWN_CAPACITY_TOKENS
        self._tokens: OrderedDict[bytes, int] = OrderedDict()  # block → its tokens, the one used least recently first
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it takes the replica to hold."""
        return self._num_tokens

    def sent(self, prompt: Prompt) -> bytes:
        """Note a prompt that was sent there. Return the blocks that have made room for it."""
        for depth in range(prompt.num_blocks, 0, -1):
            name = prompt.blocks[(depth - 1) * BLOCK_BYTES : depth * BLOCK_BYTES]
            tokens = prompt.tokens_at(depth) - prompt.tokens_at(depth - 1)
            self._num_tokens += tokens - self._tokens.pop(name, 0)
            self._tokens[name] = tokens
        gone = []
        while self._num_tokens > self._capacity_tokens and len(self._tokens) > 1:
            name, tokens = self._tokens.popitem(last=False)
            self._num_tokens -= tokens
            gone.append(name)
        return b"".join(gone)

    def found(self, prompt: Prompt, expected_depth: int, cached_tokens: int) -> bytes:
        """Take how many of a prompt's tokens were cached. Return the blocks that were expected to be and were not.

        They are computed now, but those of other prompts that went with them are not: what was used before them goes.
        """
        if cached_tokens >= prompt.tokens_at(expected_depth) * 0.8:
            return b""
        own = {prompt.blocks[at : at + BLOCK_BYTES] for at in range(0, len(prompt.blocks), BLOCK_BYTES)}
        gone = []
        for name in tuple(self._tokens)[: max(1, len(self._tokens) // 4)]:
            if name not in own:
                self._num_tokens -= self._tokens.pop(name)
                gone.append(name)
        return b"".join(gone)
