"""What one API server knows of its engine's prefixes, and whom it tells: the ledger and the feed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longboat_vllm.prefixes.feed import Load, PrefixFeed
from longboat_vllm.prefixes.header import NamedPrompt
from longboat_vllm.prefixes.held_blocks import Extra
from longboat_vllm.prefixes.ledger import Noted, PrefixLedger

__all__ = ("PrefixBook",)


class PrefixBook:
    """The ledger of an engine, whose changes go to the feed."""

    def __init__(self, block_tokens: int, capacity_tokens: int) -> None:
        self.load: Callable[[], Load] = lambda: (0, 0, -1, 0.0)  # see the feed's LOAD
        hello = {"block_tokens": block_tokens, "capacity_tokens": capacity_tokens}
        self.feed = PrefixFeed(lambda: self.ledger.held_names(), lambda: self.load(), hello)
        self.ledger = PrefixLedger(block_tokens, self.feed.changed)

    def note(self, prompt: NamedPrompt, token_ids: Sequence[int], extra: Extra | None = None) -> Noted:
        """Learn a request's names."""
        return self.ledger.note(prompt, token_ids, extra)

    def found(self, prompt: NamedPrompt, noted: Noted, prompt_tokens: int, cached_tokens: int) -> None:
        """Take what a request found cached, and tell gateways."""
        self.ledger.found(noted, cached_tokens)
        self.feed.found(prompt.tag, prompt_tokens, cached_tokens, noted.expected)

    def clear(self) -> None:
        """Take the event that the cache was cleared."""
        self.ledger.clear()
        self.feed.reset()

    def lose(self) -> None:
        """Start from nothing, because events were lost."""
        self.ledger.reset()
        self.feed.reset()
