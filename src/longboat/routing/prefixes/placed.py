"""What an engine that tells nothing probably holds: the prompts that this gateway sent there, the newest ones."""

from __future__ import annotations

from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt
from longboat.routing.prefixes.shared_index import use_blocks

__all__ = ("PlacedPrompts",)

_UNKNOWN_CAPACITY_TOKENS = 200_000
_SPARE_PART = 64  # one block of this number goes before its time, so that room is made for several prompts at once


class PlacedPrompts:
    """The blocks that one replica got from this gateway, as a cache of its size keeps them.

    A prompt's blocks are used from its end to its beginning, so that a prefix goes from its end, as engines evict it.
    """

    def __init__(self, capacity_tokens: int = 0) -> None:
        """capacity_tokens: of the replica's KV cache; 0: unknown"""
        self._capacity_tokens = capacity_tokens or _UNKNOWN_CAPACITY_TOKENS
        self._tokens: dict[bytes, int] = {}  # block → its tokens, the one used least recently first
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it takes the replica to hold."""
        return self._num_tokens

    def sent(self, prompt: Prompt) -> bytes:
        """Note a prompt that was sent there. Return the blocks that have made room for it."""
        self._num_tokens += use_blocks(self._tokens, prompt.blocks, prompt.ends, prompt.num_tokens)
        return self._make_room() if self._num_tokens > self._capacity_tokens else b""

    def _make_room(self) -> bytes:
        held, gone = self._tokens, list[bytes]()
        spare = len(held) // _SPARE_PART
        for name, tokens in held.items():
            if self._num_tokens <= self._capacity_tokens:
                spare -= 1
            if spare < 0 or len(gone) == len(held) - 1:
                break
            self._num_tokens -= tokens
            gone.append(name)
        for name in gone:
            del held[name]
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
