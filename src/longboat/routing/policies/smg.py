"""SMG's cache_aware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.policies.overlap import cached_tokens
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("Smg",)

BALANCE_ABS: Final = 64  # requests between the busiest and the idlest replica
BALANCE_REL: Final = 1.5  # and the ratio of their requests: both together mean imbalance


class Smg(RoutingPolicy):
    """Takes the replica with the longest overlap, unless loads are imbalanced: then the least busy one.

    Source: ``cache_aware`` of the SGLang Model Gateway (SMG) in its event-driven mode with default thresholds; ties go
    to the less busy replica, then to the one with the smaller tree. Left out: the thresholds of KV usage, which are off
    by default, and the approximate trees of text, which know less than the index here. The size of a tree is the number
    of tokens that were sent to compute.
    """

    name = "smg"
    terms: tuple[str, ...] = ("cached_tokens", "requests")
    reads_prefixes = True

    def __init__(self) -> None:
        self._trees: dict[str, int] = {}  # tokens computed by each replica

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose by overlap, or by load where that is imbalanced."""
        cached = cached_tokens(prompt, replicas, view)
        requests = [replica.requests for replica in replicas]
        least, most = min(requests), max(requests)
        imbalanced = most - least > BALANCE_ABS and most > BALANCE_REL * least
        best = min(
            range(len(replicas)),
            key=lambda at: (
                0 if imbalanced else -cached[at],
                requests[at],
                self._trees.get(replicas[at].key, 0),
                (at - turn) % len(replicas),
            ),
        )
        reason = _IMBALANCED if imbalanced else _OVERLAP if cached[best] else _COLD
        return Choice(best, reason, cached_tokens=cached[best])

    def sent(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int, now_s: float) -> None:
        """Add to the size of its tree."""
        self._trees[replica.key] = self._trees.get(replica.key, 0) + max(0, prompt.num_tokens - cached_tokens)

    def left(self, replica: ReplicaLoad) -> None:
        """Forget its tree."""
        self._trees.pop(replica.key, None)


_IMBALANCED: Final = "fewest requests: loads are imbalanced"
_OVERLAP: Final = "longest overlap"
_COLD: Final = "fewest requests: no replica holds its beginning"
