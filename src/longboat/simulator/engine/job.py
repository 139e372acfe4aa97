"""A request on its way through the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from longboat.routing.prefixes.prompt import Prompt
from longboat.routing.queue.fair_queue import Ticket
from longboat.routing.router import Trip
from longboat.simulator.engine.block_cache import Segment

__all__ = ("Job", "JobListener")


class Job:  # size: a plain record of one request; the engine that has it keeps its own columns here
    """A request in the twin: what it asks for, how far it is, and what its engine keeps of it."""

    __slots__ = (
        "answer_blocks", "answer_ends", "arrived_s", "cached_tokens", "chunk", "computed", "decoding", "entry_step",
        "expected_tokens", "finish_step", "first_s", "gateway", "generated", "granted_s", "last_s", "output_tokens",
        "passed", "preemptions", "prompt", "replica", "reserved", "retries", "segments", "target", "ticket", "trip",
    )  # fmt: skip

    def __init__(self, prompt: Prompt, output_tokens: int, arrived_s: float) -> None:
        self.prompt = prompt  # its ``ends`` are tokens
        self.output_tokens = output_tokens  # that it will have when it ends; at least 1
        self.answer_blocks = b""  # names of the blocks that end within its output
        self.answer_ends: Sequence[int] = ()  # tokens from the prompt's start to the end of each
        self.arrived_s = arrived_s  # at the gateway
        self.granted_s = arrived_s  # when the gateway's queue let it go
        self.first_s = -1.0  # when its first token came; below 0: it did not come yet
        self.last_s = -1.0  # when its last token before an interruption came; below 0: there was none
        self.cached_tokens = -1  # of its prompt, found in the cache when an engine first took it; below 0: not yet
        self.expected_tokens = 0  # of its prompt that its gateway expected in the cache
        self.generated = 0  # output tokens; while it decodes, those from before
        self.preemptions = 0
        self.retries = 0  # replicas that failed under it
        self.gateway = 0
        self.replica = -1
        self.ticket: Ticket | None = None  # in the gateway's queue
        self.trip: Trip | None = None  # in the gateway's account of the replica that has it
        # What its engine keeps:
        self.segments: list[Segment] = []  # named blocks that it uses
        self.passed = 0  # blocks of its prompt that are computed and have their names
        self.reserved = 0  # all blocks that it got when it was taken in, with those of the segments
        self.target = 0  # tokens to compute before it decodes: the prompt, and output from before an interruption
        self.computed = 0  # of these
        self.chunk = 0  # tokens of it that the step under way computes
        self.decoding = False
        self.entry_step = 0  # the engine's count of steps when it began to decode
        self.finish_step = 0  # the engine's count of steps when it will end


class JobListener(Protocol):
    """What an engine tells of its jobs."""

    def first_token(self, job: Job, now_s: float) -> None:
        """Note the first token of its output."""

    def ended(self, job: Job, now_s: float) -> None:
        """Note that it has all of its output."""

    def gaps(self, first_s: float, growth_s: float, steps: int, sequences: int) -> None:
        """Note the times between tokens: of ``sequences`` tokens in each of ``steps`` steps.

        first_s: seconds of the first step; each further one takes ``growth_s`` more
        """
