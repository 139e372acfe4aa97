"""From a layout of the search to a gang on the actual nodes, beside what other models have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from longboat.core.plan import GangShape
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.node_pools import NodePools
from longboat.planner.fleet.pack import GangDemand, Packing, pack
from longboat.planner.fleet.place import NoShape
from longboat.planner.fleet.placement_context import PlacementContext
from longboat.planner.search.layouts import REPLICAS, Layout

__all__ = ("MAX_REPLICAS", "gang_demand", "gangs_of", "packed", "room_for")

MAX_REPLICAS = 1000


def room_for(context: PlacementContext, wanted: WantedModel, gang: GangShape, taken: Sequence[GangDemand]) -> int:
    """Return how many replicas find room: the file's number at most, or one for each user."""
    count = min(wanted.load.users, MAX_REPLICAS) if wanted.replicas is None else wanted.replicas
    while count:
        packing = pack([*taken, gang_demand(replace(wanted, replicas=count), gang)], context.inputs.nodes)
        if packing.complete:
            return count
        found = count - packing.unplaced[wanted.name]
        # Where all of these found room, and others not: as many fewer as one of the usual numbers.
        count = found if found < count else max((fewer for fewer in REPLICAS if fewer < count), default=0)
    return 0


def gang_demand(wanted: WantedModel, gang: GangShape) -> GangDemand:
    """Return what all replicas of a model take."""
    return GangDemand(model=wanted.name, shape=gang, replicas=wanted.num_replicas, labels=wanted.placement.labels)


def packed(
    context: PlacementContext, wanted: WantedModel, gang: GangShape, taken: Sequence[GangDemand]
) -> Packing | None:
    """Return where all replicas find room; None where they do not."""
    packing = pack([*taken, gang_demand(wanted, gang)], context.inputs.nodes)
    return packing if packing.complete else None


def gangs_of(context: PlacementContext, layout: Layout, way: NodePools) -> Iterator[tuple[WantedModel, GangShape]]:
    """Yield gangs for one replica of the layout, and the model written so.

    First on as few nodes as have room, where ranks reach each other quickest; then spread as is usual.
    """
    placement = context.wanted.placement
    wanted = replace(
        context.wanted,
        tensor=layout.cut,
        pipeline=len(layout.places),
        data=layout.data,
        expert=layout.expert_parallel,
        replicas=layout.replicas,
        layers=(),
    )
    if len(layout.pools) == 1 and way.pools:
        labels = {**placement.labels, **way.labels[layout.pools[0]]}
        wanted = replace(wanted, placement=replace(placement, labels=labels))
    elif way.pools:
        yield from _bound(context, wanted, layout, way)
        return
    usual = context.gang(wanted)
    if isinstance(usual, NoShape):
        if len(layout.places) > 1 and context.wanted.split_is_open and not (placement.stages or placement.nodes):
            yield from _bound(context, wanted, layout, way)
        return
    if placement.nodes is None and not placement.stages:
        yield from _on_fewer_nodes(context, wanted, usual)
    yield wanted, usual


def _on_fewer_nodes(
    context: PlacementContext, wanted: WantedModel, usual: GangShape
) -> Iterator[tuple[WantedModel, GangShape]]:
    for count in (count for count in range(1, usual.num_nodes) if usual.num_ranks % count == 0):
        fewer = replace(wanted, placement=replace(wanted.placement, nodes=count))
        gang = context.gang(fewer)
        if not isinstance(gang, NoShape) and gang.ranks_per_node % gang.tensor == 0:
            yield fewer, gang
            return


def _bound(
    context: PlacementContext, wanted: WantedModel, layout: Layout, way: NodePools
) -> Iterator[tuple[WantedModel, GangShape]]:
    """Yield gangs with stages bound to the nodes of their pools: first each on its own node, where there are enough.

    Then several may share one, unless the engine needs a node for each.
    """
    numbers = [place.pool for place in layout.places]
    labels = tuple(dict(way.labels[number]) if len(layout.pools) > 1 else {} for number in numbers)
    spread = [sum(slots >= layout.tensor for slots in way.pools[number].slots) for number in layout.pools]
    apart = all(numbers.count(number) <= nodes for number, nodes in zip(layout.pools, spread, strict=True))
    ways = (len(numbers),) if apart else ()
    for nodes in (*ways, None) if wanted.splits.divides_layers else ways:
        bound = replace(wanted, placement=replace(wanted.placement, nodes=nodes, stages=labels))
        gang = context.gang(bound)
        if not isinstance(gang, NoShape):
            yield bound, gang
