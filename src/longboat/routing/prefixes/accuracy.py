"""How well the index knows what replicas hold: cached tokens as expected beside those that engines count."""

from __future__ import annotations

__all__ = ("Accuracy",)


class Accuracy:
    """The sums over the answers of one replica."""

    __slots__ = ("cached_tokens", "expected_tokens", "found_tokens", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.expected_tokens = 0  # that the index expected to be cached
        self.cached_tokens = 0  # that engines found in their caches
        self.found_tokens = 0  # that were expected and found

    def observe(self, expected: int, cached: int, prompt_tokens: int) -> None:
        """Count an answer."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.expected_tokens += expected
        self.cached_tokens += cached
        self.found_tokens += min(expected, cached)

    def snapshot(self) -> dict[str, int]:
        """Return the sums by name. found / expected is the precision, found / cached the recall."""
        return {name: getattr(self, name) for name in self.__slots__}
