"""The choice of a replica for one request, kept for its timeline: what was compared, and what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from longboat.compiled import mypyc_attr
from longboat.routing.prefixes.prompt import NO_ENDS

if TYPE_CHECKING:
    from longboat.routing.policies.contract import Choice
    from longboat.routing.prefixes.prompt import Prompt
    from longboat.routing.router import Router

__all__ = ("Routed", "explained")

_ROUTED_BYTES: Final = 400
_ROW_BYTES: Final = 240
_MAX_ROWS: Final = 16  # of a timeline: the replicas that cost least, and the chosen one


@mypyc_attr(acyclic=True)
class Routed:
    """One decision. It refers to what the policy computed; nothing is copied for a request."""

    __slots__ = ("choice", "depth", "found_tokens", "keys", "policy", "prompt", "router", "terms")

    def __init__(self, choice: Choice, keys: list[str], router: Router, prompt: Prompt) -> None:
        self.router = router
        self.choice = choice
        self.keys = keys  # of the replicas that were compared, in the order of the choice's rows
        self.policy = router.policy.name
        self.terms = router.policy.terms  # names of the columns of a row
        self.prompt = prompt
        # Leading blocks of the prompt that are expected in the replica's cache, before the request is sent there.
        self.depth = choice.depth if choice.depth >= 0 else router.depth_of(prompt, keys[choice.at])
        self.found_tokens: int | None = None  # cached ones, as the engine tells beside its answer; None: it does not

    @property
    def expected_cached_tokens(self) -> int:
        """The tokens of the prompt that the replica was expected to have in its cache."""
        return self.choice.cached_tokens

    @property
    def key(self) -> str:
        """The key of the chosen replica."""
        return self.keys[self.choice.at]

    def expected_of(self, prompt_tokens: int) -> int:
        """Return the expected cached tokens of a prompt with this number of tokens by the engine's count."""
        estimate = self.prompt.num_tokens
        return self.choice.cached_tokens * prompt_tokens // estimate if estimate else 0

    def compare(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count for the replica what was expected in its cache and what was there, by the engine's count."""
        self.router.answered(
            self.key,
            expected_tokens=self.expected_of(prompt_tokens),
            cached_tokens=cached_tokens,
            prompt_tokens=prompt_tokens,
        )

    def forget_blocks(self) -> None:
        """Free the blocks of the prompt once the request is counted: a long prompt has many."""
        self.prompt.blocks, self.prompt.ends = b"", NO_ENDS

    @property
    def num_bytes(self) -> int:
        """Estimated memory."""
        return _ROUTED_BYTES + _ROW_BYTES * len(self.keys)


def explained(
    routed: Routed, *, waited_s: float | None, prompt_tokens: int | None, cached_tokens: int | None
) -> dict[str, Any]:
    """Return the decision as a document: what was compared, and what was expected beside what happened.

    waited_s: from the moment that the request was sent to its first byte; None: that never came
    """
    choice = routed.choice
    expected_s = choice.ttft_s
    return {
        "policy": routed.policy,
        "replica": _replica_of(routed.keys[choice.at]),
        "why": choice.reason,
        "candidates": _candidates(routed),
        "compared": len(routed.keys),
        "expected": {
            "ttft_ms": None if expected_s is None else round(expected_s * 1e3, 3),
            "prompt_tokens": routed.prompt.num_tokens,
            "cached_tokens": choice.cached_tokens,
        },
        "happened": {
            "ttft_ms": None if waited_s is None else round(waited_s * 1e3, 3),
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
        },
    }


def _candidates(routed: Routed) -> list[dict[str, Any]]:
    """Return one row for each replica that was compared; of many, those that cost least."""
    rows = [dict(zip(routed.terms, row, strict=False)) for row in routed.choice.terms]
    named: list[dict[str, Any]] = [
        {"replica": _replica_of(key), "chosen": at == routed.choice.at, **row}
        for at, (key, row) in enumerate(zip(routed.keys, rows or [{} for _ in routed.keys], strict=False))
    ]
    # Seconds add up; of other terms, the last one says how busy a replica is.
    counted = routed.terms if all(name.endswith("_s") for name in routed.terms) else routed.terms[-1:]
    named.sort(key=lambda row: (not row["chosen"], sum(row.get(name, 0.0) for name in counted)))
    return named[:_MAX_ROWS]


def _replica_of(key: str) -> str:
    return key.partition("/")[0]
