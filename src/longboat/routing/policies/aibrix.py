"""AIBrix's prefix-cache."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.policies.overlap import cached_tokens
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("Aibrix",)

IMBALANCE_FACTOR: Final = 2.0  # the busiest has more than this times one more than the mean requests
IMBALANCE_GAP: Final = 8  # and this many requests more than the idlest
DEVIATIONS: Final = 1.0  # a match may have this many standard deviations above the mean requests


class Aibrix(RoutingPolicy):
    """Takes the best match whose load is at most one standard deviation above the mean, otherwise the least busy.

    Source: ``pkg/plugins/gateway/algorithms/prefix_cache.go`` of AIBrix with its default settings: matches in whole
    percents, the gate on imbalanced loads (only the idlest replicas are matched then). Requests are this gateway's own
    in flight, which is fresher than AIBrix's metric. Left out: its indexer, which holds what was sent and not what is
    there; the index here knows more.
    """

    name = "aibrix"
    terms: tuple[str, ...] = ("cached_percent", "requests")
    reads_prefixes = True

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the best match within the load bound, or the least busy."""
        count = len(replicas)
        cached = cached_tokens(prompt, replicas, view)
        requests = [replica.requests for replica in replicas]
        mean = sum(requests) / count
        bound = mean + DEVIATIONS * sqrt(sum([(number - mean) ** 2 for number in requests]) / count)
        matched = [at for at in _gate(requests, mean) if cached[at] and requests[at] <= bound]
        if matched:
            percents = [100 * tokens // max(1, prompt.num_tokens) for tokens in cached]
            best = min(matched, key=lambda at: (-percents[at], requests[at], (at - turn) % count))
            return Choice(best, _MATCH, cached_tokens=cached[best])
        best = min(range(count), key=lambda at: (requests[at], (at - turn) % count))
        return Choice(best, _FEWEST, cached_tokens=cached[best])


def _gate(requests: list[int], mean: float) -> list[int]:
    least, most = min(requests), max(requests)
    if most > IMBALANCE_FACTOR * (mean + 1) and most - least >= IMBALANCE_GAP:
        return [at for at, number in enumerate(requests) if number == least]
    return list(range(len(requests)))


_MATCH: Final = "best match"
_FEWEST: Final = "fewest requests"
