"""The fake engine's steps, where its tokens cost what they cost an engine that batches continuously.

A step gives one token to each response that has its prompt computed, and beside that computes chunks of prompts, first
come, first served, within a budget of tokens. All of them come at the end of the step.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

__all__ = ("StepCosts", "StepLoop", "StepStream")

_BEHIND_S = 0.1  # a step that ended so late does not shorten the next ones


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What a step takes."""

    base_s: float  # each step, above 0
    prompt_token_s: float = 0.0  # each prompt token that it computes
    sequence_s: float = 0.0  # each response that gets a further token
    batched_tokens: int = 2048  # most tokens in one step


class StepStream:
    """One response among those that the steps serve."""

    def __init__(self, uncached_tokens: int, num_tokens: int) -> None:
        self.uncached_tokens = uncached_tokens  # of the prompt, yet to be computed
        self.num_tokens = num_tokens  # yet to be made
        self._made: asyncio.Queue[None] = asyncio.Queue()

    async def token(self) -> None:
        """Wait until the next token is made."""
        await self._made.get()

    def make(self) -> None:
        """Make a token."""
        self.num_tokens -= 1
        self._made.put_nowait(None)


class StepLoop:
    """Makes steps as long as a response needs one."""

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self.num_steps = 0
        self.slow_factor = 1.0
        self._streams: dict[StepStream, None] = {}  # in the order in which they came
        self._task: asyncio.Task[None] | None = None

    def open(self, uncached_tokens: int, num_tokens: int) -> StepStream:
        """Add a response to the next step."""
        stream = StepStream(max(1, uncached_tokens), num_tokens)
        self._streams[stream] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return stream

    def close(self, stream: StepStream) -> None:
        """Take a response out, whether it has all of its tokens or not."""
        self._streams.pop(stream, None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while self._streams:
            decoding = [stream for stream in self._streams if not stream.uncached_tokens]
            chunks = self._chunks(self.costs.batched_tokens - len(decoding))
            costs, tokens = self.costs, sum(chunks.values())
            step_s = costs.base_s + costs.prompt_token_s * tokens + costs.sequence_s * len(decoding)
            now_s = loop.time()
            due_s = (due_s if now_s - due_s < _BEHIND_S else now_s) + step_s * self.slow_factor
            await asyncio.sleep(max(0.0, due_s - now_s))
            self.num_steps += 1
            for stream, chunk in chunks.items():
                stream.uncached_tokens -= chunk
            for stream in (*decoding, *(stream for stream in chunks if not stream.uncached_tokens)):
                stream.make()
                if not stream.num_tokens:
                    self.close(stream)

    def _chunks(self, budget: int) -> dict[StepStream, int]:
        """Return how much of each prompt the step computes."""
        chunks: dict[StepStream, int] = {}
        for stream in self._streams:
            if stream.uncached_tokens and budget > 0:
                chunks[stream] = min(stream.uncached_tokens, budget)
                budget -= chunks[stream]
        return chunks
