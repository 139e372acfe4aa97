"""A request's stay at one replica, as routing counts it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longboat.routing.prefixes.prompt import Prompt
    from longboat.routing.router import Router

__all__ = ("Trip",)


class Trip:
    """One request at one replica, from the moment that it was sent to the moment that it left."""

    __slots__ = ("_prompt", "_router", "num_output_tokens")

    def __init__(self, router: Router, prompt: Prompt, key: str, *, cached_tokens: int) -> None:
        """key: of the replica; cached_tokens: those that it is expected to have"""
        self._router = router
        self._prompt = prompt
        self.num_output_tokens = 0
        router.sent(prompt, key, cached_tokens=cached_tokens, now_s=time.monotonic())

    def first_token(self, now_s: float) -> None:
        """Note that the first token came."""
        self._router.first_token(self._prompt, cached_tokens=None, now_s=now_s)

    def progressed(self, output_tokens: int) -> None:
        """Note how many tokens of output there are."""
        if output_tokens != self.num_output_tokens:
            self.num_output_tokens = output_tokens
            self._router.progressed(self._prompt, output_tokens)

    def end(self) -> None:
        """Note that the request ended there."""
        self._router.ended(self._prompt, output_tokens=self.num_output_tokens, now_s=time.monotonic())
