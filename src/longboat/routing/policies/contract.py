"""What a routing policy is, and what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from longboat.compiled import mypyc_attr
from longboat.routing.prefixes.accuracy import PrefixAccuracy
from longboat.routing.prefixes.index import PrefixIndex
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("EXTRA_S", "Choice", "EngineReport", "Reason", "ReplicaLoad", "RoutingPolicy", "View")

EXTRA_S: Final = "extra_s"
"""The term of policies that weigh what a replica costs beyond; for the others, the router sees to adapters."""


class EngineReport:
    """What an engine says of itself: all senders' requests, and not only those of this gateway."""

    __slots__ = ("kv_usage", "queued_tokens", "running", "taken_s", "waiting")

    def __init__(
        self, *, taken_s: float, running: int, waiting: int, kv_usage: float = 0.0, queued_tokens: int | None = None
    ) -> None:
        self.taken_s = taken_s  # when it was true, on the router's clock
        self.running = running  # requests that it computes
        self.waiting = waiting  # requests in its queue
        self.kv_usage = kv_usage  # used part of its KV cache, 0 to 1
        self.queued_tokens = queued_tokens  # prompt tokens that it has yet to compute; None: it does not say


class ReplicaLoad:
    """One replica as this gateway process knows it: what was sent there and has not ended, and what its engine says."""

    __slots__ = (
        "accuracy",
        "decode_tokens",
        "key",
        "prefill_tokens",
        "prefills",
        "report",
        "requests",
        "sequences",
        "slot",
        "spread",
        "tells",
    )

    def __init__(self, key: str, slot: int) -> None:
        self.key = key
        self.slot = slot  # in the prefix index
        # Its key as a number below 2**31, which places equal choices; computed once, not for each request.
        self.spread = int.from_bytes(blake2b(key.encode(), digest_size=4).digest()) >> 1
        self.sequences = 0  # that its engine runs at once, by its settings; further ones wait in it; 0: unknown
        self.requests = 0  # sent and not ended
        self.prefills = 0  # of these, those without a first token
        self.prefill_tokens = 0  # uncached prompt tokens of those, as predicted when they were sent
        self.decode_tokens = 0  # tokens that the others hold in the KV cache: prompt and output so far
        self.report: EngineReport | None = None
        self.tells = False  # whether its engine tells what it holds; else that is only guessed
        self.accuracy = PrefixAccuracy()  # of what was expected in its cache


class View:
    """What a policy may use beside the request and the replicas."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.depths, self.place = index.depths, index.place  # compiled code would look them up by name at each call
        self.num_slots = 0  # one more than the highest slot of the replicas


@mypyc_attr(acyclic=True)
class Choice:
    """A policy's decision. As a string, it is its reason."""

    __slots__ = ("_reason", "at", "cached_tokens", "depth", "terms", "ttft_s")

    def __init__(
        self,
        at: int,
        reason: str,
        *,
        cached_tokens: int = 0,
        terms: Sequence[tuple[float, ...]] = (),
        ttft_s: float | None = None,
        depth: int = -1,
    ) -> None:
        self.at = at  # index into the replicas that were offered
        self._reason = reason
        self.cached_tokens = cached_tokens  # tokens of the prompt that it expects to find there
        self.ttft_s = ttft_s  # seconds from sending to the first token that it expects; None: it expects nothing
        self.terms = terms  # one row for each replica that was offered, in the order of ``RoutingPolicy.terms``
        self.depth = depth  # leading blocks of the prompt that it expects there; -1: it did not look

    @property
    def reason(self) -> str:
        """The reason in words."""
        return self._reason

    def __str__(self) -> str:
        return self.reason


Reason = str | Choice
"""Why an endpoint was chosen; ``str`` of it gives the words."""


class RoutingPolicy:
    """Chooses a replica. Same calls, same choices: it reads no clock and draws its own numbers from ``turn``.

    A class and no Protocol, so that compiled callers reach its methods without a look-up by name.
    """

    name = ""
    terms: tuple[str, ...] = ()  # names of the columns of ``Choice.terms``; those in seconds end in ``_s``
    reads_prefixes = False  # whether it needs the blocks of prompts
    explains = True  # whether choices have terms; off where choices are not looked at, which saves time

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose among replicas that may have the request; there is at least one.

        turn: a count that grows with each request
        extra_s: seconds that each of them costs beyond, such as loading an adapter; empty: none does
        """
        raise NotImplementedError

    def sent(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int, now_s: float) -> None:
        """Note that a replica got the request. ``replica`` does not count it yet."""

    def first_token(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int | None, now_s: float) -> None:
        """Note that its first token came. cached_tokens: by the engine's own count; None: it does not say"""

    def ended(self, prompt: Prompt, replica: ReplicaLoad, *, output_tokens: int, now_s: float) -> None:
        """Note that it ended, or left the replica."""

    def left(self, replica: ReplicaLoad) -> None:
        """Note that a replica is gone, and its requests with it: ``ended`` is not called for these."""
