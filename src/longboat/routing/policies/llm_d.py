"""llm-d's default: a filter on cache affinity, then the load in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.policies.overlap import cached_tokens
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("LlmD",)

AFFINITY: Final = 0.80  # a replica that holds at least this part of the prompt is sticky
MAX_PENALTY_S: Final = 18.0  # seconds of TTFT that stickiness may cost
PREFILL_TOKENS_S: Final = 15_928.0  # tokens a second of one replica, as llm-d assumes


class LlmD(RoutingPolicy):
    """Keeps the replicas that hold most of the prompt, unless they are far behind; of the rest, the least loaded one.

    Source: ``prefix-cache-affinity-filter`` and ``token-load-scorer`` of llm-d-router with the parameters of its
    default profile. The load is the uncached prompt tokens of all requests in flight, until their ends, plus those of
    this request. Left out: exploration, which is off by default, and the limit on matched tokens.
    """

    name = "llm_d"
    terms: tuple[str, ...] = ("cached_tokens", "inflight_tokens")
    reads_prefixes = True

    def __init__(self) -> None:
        self._inflight: dict[str, int] = {}  # uncached prompt tokens in flight of each replica
        self._requests: dict[str, tuple[str, int]] = {}  # replica of each request, and its part of these tokens

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the least loaded of the replicas that the filter keeps."""
        count = len(replicas)
        cached = cached_tokens(prompt, replicas, view)
        inflight = [self._inflight.get(replica.key, 0) for replica in replicas]
        kept, reason = self._filter(cached, inflight, prompt.num_tokens)
        best = min(kept, key=lambda at: (inflight[at] - cached[at], (at - turn) % count))
        return Choice(best, reason, cached_tokens=cached[best])

    @staticmethod
    def _filter(cached: list[int], inflight: list[int], num_tokens: int) -> tuple[list[int], str]:
        everything = list(range(len(cached)))
        sticky = [at for at in everything if cached[at] >= AFFINITY * num_tokens > 0]
        if not sticky:
            return everything, _COLD
        others = [inflight[at] for at in everything if cached[at] < AFFINITY * num_tokens]
        behind = min([inflight[at] for at in sticky]) - min(others) if others else 0
        if behind / PREFILL_TOKENS_S > MAX_PENALTY_S:
            return everything, _OVERLOADED
        return sticky, _STICKY

    def sent(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int, now_s: float) -> None:
        """Count its uncached tokens."""
        tokens = max(0, prompt.num_tokens - cached_tokens)
        self._requests[prompt.key] = (replica.key, tokens)
        self._inflight[replica.key] = self._inflight.get(replica.key, 0) + tokens

    def ended(self, prompt: Prompt, replica: ReplicaLoad, *, output_tokens: int, now_s: float) -> None:
        """Take its tokens off."""
        key, tokens = self._requests.pop(prompt.key, ("", 0))
        if key in self._inflight:
            self._inflight[key] -= tokens

    def left(self, replica: ReplicaLoad) -> None:
        """Forget what it had in flight."""
        self._inflight.pop(replica.key, None)
        self._requests = {name: sent for name, sent in self._requests.items() if sent[0] != replica.key}


_COLD: Final = "least load: no replica holds most of it"
_OVERLOADED: Final = "least load: those that hold it are too far behind"
_STICKY: Final = "least loaded of those that hold it"
