"""Which layout of one model the nodes take: the search's ranking, and room beside what other models have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from longboat.catalog.quantization.requantize import widened
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.plan import EngineMemory
from longboat.core.tasks import GENERATE
from longboat.core.wanted import WantedLoad, WantedModel
from longboat.planner.fleet.gang_layouts import MAX_REPLICAS, gang_demand, gangs_of, packed, room_for
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.fleet.node_pools import NodePools, node_pools
from longboat.planner.fleet.pack import GangDemand, Packing
from longboat.planner.fleet.place import NoShape
from longboat.planner.fleet.placement_context import PlacementContext
from longboat.planner.memory.divide import tensor_degrees
from longboat.planner.memory.split_shape import AskedSplit
from longboat.planner.search.demand import Demand, Slo
from longboat.planner.search.forecast import Forecast, Forecaster
from longboat.planner.search.ranking import Plan, ranked, speed_step
from longboat.planner.search.search import Search
from longboat.planner.search.tasks import shape_for

__all__ = ("Choice", "KnownModel", "choose", "demand_of", "model_of", "smallest")

STORED_BITS = 16
# Lengths that the file does not state may be too long for a small cache.
LENGTH_RATIOS = (1.0, 0.5, 0.25, 0.125, 0.0625)
NO_POOLS = NodePools(pools=(), labels=())


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be planned: what is wanted, its layers as stored, and the settings of its engine."""

    context: PlacementContext
    shape: ModelShape
    settings: EngineMemory

    @property
    def wanted(self) -> WantedModel:
        return self.context.wanted

    def written(self, wanted: WantedModel) -> KnownModel:
        """Return the same model with other wishes."""
        return replace(self, context=replace(self.context, wanted=wanted))

    def forecaster(self, ratio: float = 1.0) -> Forecaster:
        """Return a forecaster under the load of the file. ratio: part of its lengths that is planned for."""
        shape = widened(self.shape) if self.settings.weight_bits == 32 else self.shape
        demand = demand_of(self.wanted, self.shape, self.settings, ratio)
        if not self.context.rank.num_gpus:  # a processor has no ratio: its whole memory may be taken
            demand = replace(demand, settings=replace(demand.settings, memory_ratio=1.0))
        demand = replace(demand, draft=self.context.inputs.drafts.get(self.wanted.name))
        divides = self.context.divides_experts
        demand = replace(demand, expert_parallel=divides, data_attention=divides, as_set=True)
        return Forecaster(shape, demand, self.context.engine, self.context.inputs.calibration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best layout that finds room; it may be one that does not fit."""

    wanted: WantedModel  # with the numbers that were found
    best: Forecast | None = None  # None where no layout finds room
    others: tuple[Forecast, ...] = ()  # that fit too, best first
    tried: int = 0
    equal: Forecast | None = None  # the best on equal nodes, where ``best`` is on several sorts of them

    @property
    def is_mixed(self) -> bool:
        """Whether stages are bound to several sorts of nodes."""
        return self.best is not None and len({place.card for place in self.best.layout.places}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    wanted: WantedModel
    forecast: Forecast


def model_of(wanted: WantedModel, inputs: PlannerInputs) -> KnownModel | None:
    """Return the model with what is known of it; None where its layers or its engine's settings are not."""
    shape, settings = inputs.shapes.get(wanted.name), inputs.memory.get(wanted.name)
    if shape is None or settings is None:
        return None
    return KnownModel(PlacementContext(wanted, inputs), shape_for(wanted, shape), settings)


ASSUMED_IMAGE_TOKENS = 1024
"""Prompt tokens of an image, for models that do not say."""


def demand_of(wanted: WantedModel, shape: ModelShape, settings: EngineMemory, ratio: float = 1.0) -> Demand:
    """Return the load of the file, with lengths that the model can do. ratio: of the lengths."""
    load, limit = wanted.load, wanted.context or shape.max_context_tokens
    asked = load.prompt_tokens + load.images * (shape.image_tokens or ASSUMED_IMAGE_TOKENS)
    prompt, output = asked * ratio, load.output_tokens * ratio if wanted.task == GENERATE else 1.0
    if limit and prompt + output > limit:
        prompt, output = (length * limit / (prompt + output) for length in (prompt, output))
    one = 1 if 0 < (wanted.rank.num_gpus or 0) < 1 else 0  # a rank on a part of a card is a replica of its own
    return Demand(
        users=load.users,
        prompt_tokens=max(1, int(prompt)),
        output_tokens=max(1, int(output)),
        context_tokens=wanted.context or 0,
        settings=replace(settings, weight_bits=settings.weight_bits or STORED_BITS),
        slo=_slo(load),
        split=AskedSplit(
            tensor=wanted.tensor or one,
            pipeline=wanted.pipeline or one,
            data=wanted.data or one,
            expert_parallel=wanted.expert,
            layers=wanted.layers,
            even=wanted.pipeline is not None,
        ),
    )


def _slo(load: WantedLoad) -> Slo:
    ttft_s, itl_s = (None if value is None else value / 1e3 for value in (load.ttft_ms, load.itl_ms))
    return Slo(ttft_s=ttft_s, itl_s=itl_s)


def choose(model: KnownModel, taken: Sequence[GangDemand]) -> Choice:
    """Return the layout that the search ranks first among those that find room; where none fits, the nearest.

    taken: what other models have. Raises UserInputError where the nodes' accelerators are not known.
    """
    found: list[Forecast] = []
    for ratio in LENGTH_RATIOS if _lengths_are_free(model.wanted) else (1.0,):
        forecaster = model.forecaster(ratio)
        seen = list(_forecasts(model, forecaster))
        fitting = ranked((_plan(one) for _, one in seen if one.fit.fits), forecaster.demand)
        ways = {id(one): way for way, one in seen}
        found = [one for _, one in seen]
        if choice := _first_with_room(model, forecaster, [plan.groups[0] for plan in fitting], ways, taken):
            return replace(choice, tried=len(seen))
    return _nearest(model, forecaster, sorted(found, key=_shortage), ways, taken)


def _forecasts(model: KnownModel, forecaster: Forecaster) -> Iterator[tuple[NodePools, Forecast]]:
    """Yield every layout on the nodes as if they were empty, with the pools that it was found on."""
    if model.wanted.placement.stages:
        yield from ((NO_POOLS, one) for one in _bound_by_hand(model, forecaster))
        return
    for way in node_pools(model.context):
        found = Search(way.pools, forecaster).alone(model.wanted.replicas, equal=way.equal, mixed=way.mixed)
        yield from ((way, one) for one in found)


def _bound_by_hand(model: KnownModel, forecaster: Forecaster) -> Iterator[Forecast]:
    """Yield forecasts of stages that the file binds to nodes: only ranks of a stage are left to decide."""
    wanted = model.wanted
    for tensor in tensor_degrees(model.shape) if wanted.tensor is None else (wanted.tensor,):
        pipeline = wanted.pipeline or len(wanted.placement.stages)
        one = replace(wanted, tensor=tensor, pipeline=pipeline, replicas=wanted.replicas or 1)
        gang = model.context.gang(one)
        if isinstance(gang, NoShape) or pipeline > len(model.shape.layers):
            continue
        count = wanted.replicas or min(wanted.load.users, MAX_REPLICAS)
        layout = model.context.layout(one, gang, Packing(placed={}, unplaced={}))
        yield Search((), forecaster).best(replace(layout, replicas=count))


def _first_with_room(
    model: KnownModel,
    forecaster: Forecaster,
    fitting: Sequence[Forecast],
    ways: Mapping[int, NodePools],
    taken: Sequence[GangDemand],
) -> Choice | None:
    """Return the best that finds room and fits there; None where none does."""

    def with_room(one: Forecast) -> Iterator[_Placed]:
        found = _placed(model, forecaster, one, ways[id(one)], taken)
        return (now for now in found if now.forecast.fit.fits)

    def chosen(now: _Placed, others: Sequence[Forecast]) -> Choice:
        choice = Choice(wanted=now.wanted, best=now.forecast, others=tuple(others))
        if not choice.is_mixed:
            return choice
        equal = (one for one in fitting if len({place.card for place in one.layout.places}) == 1)
        return replace(choice, equal=next((now.forecast for one in equal for now in with_room(one)), None))

    placed: list[_Placed] = []
    for one in fitting:
        for now in with_room(one):
            placed.append(now)
            if _is_as_good(now.forecast, one):
                return chosen(now, [other for other in fitting if other is not one])
    if not placed:
        return None
    by_id = {id(now.forecast): now for now in placed}
    first, *others = ranked((_plan(now.forecast) for now in placed), forecaster.demand)
    return chosen(by_id[id(first.groups[0])], [plan.groups[0] for plan in others])


def _is_as_good(placed: Forecast, hoped: Forecast) -> bool:
    """Return whether the nodes give what the search assumed."""
    same = speed_step(placed.tokens_per_s) >= speed_step(hoped.tokens_per_s)
    return same and (placed.fit.holds or not hoped.fit.holds) and bool(placed.missed) == bool(hoped.missed)


def _nearest(
    model: KnownModel,
    forecaster: Forecaster,
    found: Sequence[Forecast],
    ways: Mapping[int, NodePools],
    taken: Sequence[GangDemand],
) -> Choice:
    """Return the layout with room that lacks least memory."""
    for one in found:
        for now in _placed(model, forecaster, one, ways[id(one)], taken):
            return Choice(wanted=now.wanted, best=now.forecast, tried=len(found))
    return Choice(wanted=model.wanted)


def smallest(model: KnownModel, taken: Sequence[GangDemand]) -> GangDemand | None:
    """Return one replica of the fewest ranks that fit: what is kept free for a model that is decided later."""
    one = model.written(replace(model.wanted, replicas=1))
    forecaster = one.forecaster()
    seen = list(_forecasts(one, forecaster))
    for way, forecast in sorted(seen, key=lambda pair: (pair[1].layout.num_ranks, len(pair[1].layout.places))):
        if not forecast.fit.fits:
            continue
        for now in _placed(one, forecaster, forecast, way, taken):
            gang = one.context.gang(now.wanted)
            if now.forecast.fit.fits and not isinstance(gang, NoShape):
                return gang_demand(now.wanted, gang)
    return None


def _lengths_are_free(wanted: WantedModel) -> bool:
    return wanted.context is None and not wanted.load.lengths_given


def _plan(forecast: Forecast) -> Plan:
    return Plan(groups=(forecast,), missed=forecast.missed)


def _placed(
    model: KnownModel, forecaster: Forecaster, forecast: Forecast, way: NodePools, taken: Sequence[GangDemand]
) -> Iterator[_Placed]:
    """Yield the layout on the actual nodes, with what its ranks get there: for each way to spread a replica."""
    context, fixed = model.context, model.wanted.replicas is not None
    for wanted, gang in gangs_of(context, forecast.layout, way):
        count = room_for(context, replace(wanted, replicas=forecast.layout.replicas), gang, taken)
        if not count or (fixed and count < forecast.layout.replicas):
            continue
        counted = replace(wanted, replicas=count)
        packing = packed(context, counted, gang, taken)
        if packing is not None:
            now = Search((), forecaster).best(context.layout(counted, gang, packing))
            yield _Placed(wanted=replace(counted, layers=model.wanted.layers or now.layers), forecast=now)


def _shortage(forecast: Forecast) -> tuple[float, int]:
    """Return how many times too much is needed; what cannot be divided at all comes last."""
    short = forecast.fit.shortage
    if short is None or not short.available_bytes:
        return float("inf"), forecast.layout.num_ranks
    return short.needed_bytes / short.available_bytes, forecast.layout.num_ranks
