"""What is asked of a replica."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("Load",)

# Requests that each client sends one after the other in a usual benchmark: the first burst is a tenth of all.
USUAL_WAVES = 10.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """A steady load of clients that each send a request when the last one has its response."""

    concurrency: float  # requests under way at once, on one replica
    prompt_tokens: float  # the most; the mean is less by half of ``spread``
    output_tokens: float  # the most, as above
    # Share by which lengths differ: 0.2 for lengths between 80 and 100 %; 0: all equal, so that prompts come in step.
    spread: float = 0.2
    cached: float = 0.0  # share of the prompts' tokens that the prefix cache has already
    waves: float = USUAL_WAVES  # requests of each client; the first ones of all come at the same moment

    @property
    def mean_prompt_tokens(self) -> float:
        return max(1.0, self.prompt_tokens * (1.0 - self.spread / 2.0))

    @property
    def computed_tokens(self) -> float:
        """Tokens of a mean prompt that the engine computes: those that the prefix cache does not have."""
        return max(1.0, self.mean_prompt_tokens * (1.0 - self.cached))

    @property
    def mean_output_tokens(self) -> float:
        return max(1.0, self.output_tokens * (1.0 - self.spread / 2.0))
