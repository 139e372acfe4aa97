"""Compares plans over parts of the machines and formats of the weights, so that more machines never make it worse.

A search lays replicas over all machines that it is given. That is not always best: an engine that runs on every
machine may be slower than one that runs on most of them, and a wide node may hide a split that narrow ones allow. So
each part that may be better alone is searched too. A replica that crosses a network may be slower than several in fewer
bits that do not: sets of few nodes say where that must be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.machines.cluster import Cluster, NodeKind
from longboat.planner.machines.pools import PLATFORMS
from longboat.planner.memory.formats import lacks_kernels
from longboat.planner.search.demand import Demand
from longboat.planner.search.ranking import MAX_PLANS, Plan, distinct, ranked
from longboat.planner.search.search import SearchResult

__all__ = (
    "best_of",
    "checkpoint",
    "crosses",
    "format_reason",
    "groups_of",
    "known_checkpoint",
    "parts_of",
    "with_kernels",
    "within_kinds",
)

GIB = 1024**3
# Nodes of one kind whose best plan as stored is looked at, to see whether it crosses them.
GROUPS = (2, 3, 4, 6, 8)
# Beginnings of names whose publishers have quantized files besides, with the format at the end: maker/model-FP8.
PUBLISHED = {
    "fp8": ("Qwen/Qwen3", "zai-org/GLM-4."),
    "awq": ("Qwen/Qwen2.5-", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B"),
}


def best_of(cluster: Cluster, demand: Demand, found: Iterable[SearchResult]) -> SearchResult:
    """Return all searches' plans, ranked together, and the first's refusals without what another format allows."""
    results = list(found)
    every = [_idle(plan, cluster, one.cluster) for one in results for plan in one.plans]
    plans = distinct(ranked(every, demand))
    kept, behind = plans[:MAX_PLANS], plans[MAX_PLANS:]
    titles = {plan.title for plan in kept}
    rejected = tuple(one for one in results[0].rejected if one.what not in titles) if results else ()
    return SearchResult(cluster=cluster, demand=demand, plans=tuple(kept), rejected=rejected, behind=tuple(behind))


def _idle(plan: Plan, cluster: Cluster, part: Cluster) -> Plan:
    """Return the plan with the nodes that its part of the machines leaves out."""
    used = {kind.key for kind in part.kinds}
    left = (kind for kind in cluster.kinds if kind.key not in used)
    names = tuple(f"{kind.count} x ({kind.title})" if kind.count > 1 else kind.title for kind in left)
    return replace(plan, idle=plan.idle + names) if names else plan


def parts_of(cluster: Cluster) -> Iterator[Cluster]:
    """Yield all machines, then the parts of them that may be better alone.

    These are the machines of one platform, for which there may be a faster engine; those with the same cards, which may
    need another format; and nodes that have more or fewer of the same cards than others: a search counts such nodes as
    one pool.
    """
    yield cluster
    if len(cluster.kinds) < 2:
        return
    tried = [[kind.key for kind in cluster.kinds]]
    for key in (_platforms, _cards, _node):
        for found in dict.fromkeys(map(key, cluster.kinds)):
            kinds = tuple(kind for kind in cluster.kinds if key(kind) == found)
            names = [kind.key for kind in kinds]
            if names not in tried:
                tried.append(names)
                yield replace(cluster, kinds=kinds)


def _node(kind: NodeKind) -> object:
    return kind.key


def _platforms(kind: NodeKind) -> object:
    return frozenset(PLATFORMS[cards.entry.vendor] for cards in kind.cards)


def _cards(kind: NodeKind) -> object:
    """Return what the nodes of one pool have in common."""
    return tuple((cards.entry.name, cards.memory_bytes) for cards in kind.cards), kind.network.name, kind.os


def with_kernels(cluster: Cluster, quantization: str) -> Cluster:
    """Return the nodes whose cards multiply weights of a format; all where none does."""
    kinds = tuple(kind for kind in cluster.kinds if not any(lacks_kernels(c.entry, quantization) for c in kind.cards))
    return replace(cluster, kinds=kinds or cluster.kinds)


def within_kinds(cluster: Cluster, group: Cluster) -> Cluster:
    """Return all nodes of the kinds that a group of them has."""
    keys = {kind.key for kind in group.kinds}
    return replace(cluster, kinds=tuple(kind for kind in cluster.kinds if kind.key in keys))


def groups_of(cluster: Cluster, holding: Mapping[object, bool]) -> Iterator[Cluster]:
    """Yield a few nodes of each kind, and pairs of unlike ones: the sets of nodes that may ask for fewer bits.

    Whether a set is yielded does not depend on the other nodes: a larger cluster yields all that a smaller one does.

    holding: by a kind's key, whether one node holds all requests; kinds whose node has no room for the weights are not
        in it: formats with fewer bits are tried for these anyway
    """
    kinds = [kind for kind in cluster.kinds if kind.key in holding]
    for kind in kinds:
        for count in GROUPS[:1] if holding[kind.key] else GROUPS:
            if count <= kind.count:
                yield replace(cluster, kinds=(replace(kind, count=count),))
    full = (kind for kind in kinds if not holding[kind.key])
    for pair in combinations(full, 2):
        yield replace(cluster, kinds=tuple(replace(kind, count=1) for kind in pair))


def crosses(plan: Plan) -> bool:
    """Return whether a replica of the plan needs the network between nodes."""
    return any(group.layout.crosses_nodes for group in plan.groups)


def format_reason(plan: Plan, stored: ModelShape, other: Plan | None, hub: str) -> str:
    """Return why the best plan has the format that it has, in words, beside the best in other formats.

    stored: the model as it is stored; other: None where nothing fits in the stored format
    """
    changed = plan.groups[0].shape.quantization != stored.quantization
    was = f"{stored.quantization or stored.dtype}, {stored.weight_bytes / GIB:.1f} GiB"
    if not changed:
        return f"weights as stored ({was}); {_other(other)} (--quantization {other.format})" if other else ""
    shape = plan.groups[0].shape
    told = f"weights in {shape.quantization}, {shape.weight_bytes / GIB:.1f} GiB, not as stored ({was}): "
    why = f"{_other(other)}, not {plan.tokens_per_s:.0f}" if other else "those do not fit"
    return f"{told}{why}. Load {checkpoint(hub or shape.name, shape.quantization)}"


def _other(plan: Plan) -> str:
    network = " across nodes" if crosses(plan) else ""
    return f"in {plan.format} the best is {plan.title}{network} with {plan.tokens_per_s:.0f} tokens/s"


def known_checkpoint(hub: str, quantization: str) -> str:
    """Return the name on the hub of the publisher's own files in that format; ``""`` where none is known."""
    return f"{hub}-{quantization.upper()}" if hub.startswith(PUBLISHED.get(quantization, ())) else ""


def checkpoint(hub: str, quantization: str) -> str:
    """Return in words which files have the model in that format."""
    ending, base = quantization.upper(), hub.rsplit("/", 1)[-1]
    if known := known_checkpoint(hub, quantization):
        return known
    if quantization == "nvfp4":
        return f"nvidia/{base}-NVFP4, or another checkpoint in nvfp4"
    files = f"a checkpoint in {quantization} (named like {base}-{ending})"
    return f"{files}, or let the engine convert: --quantization fp8" if quantization == "fp8" else files
