"""The fake engine's account of named prefixes: the code that runs inside vLLM, fed with the fake engine's events."""

from __future__ import annotations

from longboat_fake.engine.blocks import BlockStored, KvEvent, extras_of
from longboat_vllm.prefixes.book import PrefixBook
from longboat_vllm.prefixes.header import NamedPrompt
from longboat_vllm.prefixes.ledger import Noted

__all__ = ("Prefixes",)


class Prefixes:
    """The named prefixes of one fake engine."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.book = PrefixBook(block_tokens, num_blocks * block_tokens)
        self._num_to_lose = 0

    def lose(self, num_events: int) -> None:
        """Lose the next events, as a full queue does, and notice it with the one after."""
        self._num_to_lose = num_events + 1

    def take(self, event: KvEvent) -> None:
        """Take an event of the engine's KV memory."""
        if self._num_to_lose:
            self._num_to_lose -= 1
            if not self._num_to_lose:
                self.book.lose()
            return
        if isinstance(event, BlockStored):
            ledger = self.book.ledger
            ledger.stored(event.hashes, event.parent, event.token_ids, event.block_tokens, event.extras)
        else:
            self.book.ledger.removed(event.hashes)

    @property
    def unsure(self) -> bool:
        """Whether requests should tell of the cached blocks that they use again."""
        return self.book.ledger.unsure

    def note(self, named: NamedPrompt | None, prompt: tuple[int, ...], adapter: str, salt: str) -> Noted | None:
        """Learn the names of a request's prompt, before it gets blocks."""
        if named is None:
            return None
        return self.book.note(named, prompt, lambda start, _end: extras_of(start, adapter, salt))

    def found(self, named: NamedPrompt | None, noted: Noted | None, prompt_tokens: int, cached_tokens: int) -> None:
        """Tell gateways what a request found cached."""
        if named is not None and noted is not None:
            self.book.found(named, noted, prompt_tokens, cached_tokens)
