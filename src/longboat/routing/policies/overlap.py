"""What replicas hold of a prompt, in tokens."""

from __future__ import annotations

from collections.abc import Sequence

from longboat.routing.policies.contract import ReplicaLoad, View
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("cached_tokens",)


def cached_tokens(prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View) -> list[int]:
    """Return, for each of the replicas, how many leading tokens of the prompt it holds."""
    if not prompt.blocks:
        return [0] * len(replicas)
    depths = view.index.depths(prompt.blocks, view.num_slots)
    tokens = {depth: prompt.tokens_at(depth) for depth in set(depths)}
    return [tokens[depths[replica.slot]] for replica in replicas]
