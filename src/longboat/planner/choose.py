"""Which split and how many replicas serve a model's load best, on what other models leave of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from longboat.core.plan import GangShape
from longboat.planner.divide import tensor_degrees
from longboat.planner.ground import accelerator_of
from longboat.planner.mixed import mixed_gangs
from longboat.planner.outlook import Asked, Outlook, look_ahead
from longboat.planner.pack import GangDemand, Packing, pack
from longboat.planner.place import NoShape, shape_gang
from longboat.planner.search import equal_step
from longboat.planner.site import Site, ground_of, matching_nodes, slots_of
from longboat.spec.types.fleet import MAX_RANKS, ModelSpec, SplitSpec

__all__ = ("Choice", "choose", "gangs_of", "room_for", "smallest", "suffices")

COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000)
STAGES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
TENSOR = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64)
# A split must bring this much more than whole replicas: what ranks cost each other is the least certain of all.
SPLIT_WORTH = 1.1
# Lengths that nobody stated may be too long for a small cache.
LENGTH_RATIOS = (1.0, 0.5, 0.25, 0.125, 0.0625)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """best: None where no layout finds room; it may be one that does not fit. others: that fit too, best first.

    equal: where the best has stages on several sorts of nodes, the best without; None where none of those fits
    """

    best: Outlook | None
    spec: ModelSpec
    others: tuple[Outlook, ...] = ()
    tried: int = 0
    equal: Outlook | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    spec: ModelSpec
    outlook: Outlook


def choose(asked: Asked, site: Site, taken: Sequence[GangDemand]) -> Choice:
    """The best layout that fits; where none does, the one that lacks least.

    Stages on several sorts of nodes are tried where no layout on equal ones holds the load within its limits.
    taken: what other models have. Raises UserInputError where nobody knows what the nodes' accelerators are.
    """
    tried: list[_Candidate] = []
    for ratio in LENGTH_RATIOS if _lengths_are_free(asked.spec) else (1.0,):
        now = replace(asked, lengths_ratio=ratio)
        tried = list(_candidates(now, gangs_of(now.spec, site), site, taken))
        equal = _ranked(tried)
        if equal and suffices(equal[0].outlook):
            return _chosen(equal, len(tried))
        apart = list(_candidates(now, mixed_gangs(now.spec, site), site, taken))
        tried += apart
        mixed = _ranked(apart)
        if mixed and (not equal or _beats(mixed[0].outlook, equal[0].outlook)):
            found = _chosen([mixed[0], *equal, *mixed[1:]], len(tried))
            return replace(found, equal=equal[0].outlook if equal else None)
        if equal:
            return _chosen([*equal, *mixed], len(tried))
    if not tried:
        return Choice(best=None, spec=asked.spec)
    nearest = min(tried, key=lambda one: _shortage(one.outlook))
    return Choice(best=nearest.outlook, spec=nearest.spec, tried=len(tried))


def suffices(outlook: Outlook) -> bool:
    """Whether it holds all requests of the load at once, within the limits."""
    slo, told = outlook.asked.demand.slo, outlook.prediction
    return outlook.fit.holds and told is not None and not slo.missed(told.ttft_s.value, told.itl_s.value)


def _beats(mixed: Outlook, equal: Outlook) -> bool:
    """Holding the load, and as quick, is worth stages on several sorts of nodes; else it must be better."""
    if suffices(mixed) and equal_step(mixed.tokens_per_s) >= equal_step(equal.tokens_per_s):
        return True
    return _order(mixed) < _order(equal)


def _ranked(tried: Sequence[_Candidate]) -> list[_Candidate]:
    return sorted((one for one in tried if one.outlook.fit.fits), key=lambda one: _order(one.outlook))


def _chosen(ranked: Sequence[_Candidate], tried: int) -> Choice:
    best, *others = ranked
    return Choice(best=best.outlook, spec=best.spec, others=tuple(one.outlook for one in others), tried=tried)


def smallest(asked: Asked, site: Site, taken: Sequence[GangDemand]) -> GangDemand | None:
    """One replica of the fewest ranks that fit: what is kept free for a model that is decided later."""
    one = replace(asked, spec=asked.spec.model_copy(update={"replicas": 1}))
    equal, mixed = (sorted(found, key=_size) for found in (gangs_of(one.spec, site), mixed_gangs(one.spec, site)))
    for spec, gang in (*equal, *mixed):
        packing = _packed(spec, gang, 1, site, taken)
        if (
            packing is not None
            and look_ahead(one, gang, 1, ground_of(spec, gang, packing, site), site.calibration).fit.fits
        ):
            return _demand(spec, gang, 1)
    return None


def _size(found: tuple[ModelSpec, GangShape]) -> tuple[int, int]:
    gang = found[1]
    return gang.tensor * gang.pipeline, gang.pipeline


def gangs_of(spec: ModelSpec, site: Site) -> Iterator[tuple[ModelSpec, GangShape]]:
    """Every split that the file allows with a gang that one replica could have, and the model written so.

    Ranks are on nodes of one sort, or on whichever of them: the weakest counts.
    """
    for placed in _kinds(spec, site):
        for split in _splits(spec, site):
            yield from _gangs(placed.model_copy(update={"split": split}), site)


def room_for(spec: ModelSpec, gang: GangShape, site: Site, taken: Sequence[GangDemand]) -> int:
    """Replicas that find room beside what is taken, as many as are useful at most: one for each user."""
    wanted = min(spec.load.users, COUNTS[-1]) if spec.replicas == "auto" else spec.num_replicas
    for count in sorted({wanted, *(count for count in COUNTS if count < wanted)}, reverse=True):
        if _packed(spec, gang, count, site, taken) is not None:
            return count
    return 0


def _lengths_are_free(spec: ModelSpec) -> bool:
    return spec.context is None and not {"prompt_tokens", "output_tokens"} & spec.load.model_fields_set


def _candidates(
    asked: Asked, gangs: Iterable[tuple[ModelSpec, GangShape]], site: Site, taken: Sequence[GangDemand]
) -> Iterator[_Candidate]:
    degrees, parts = set(tensor_degrees(asked.shape)), asked.spec.parts
    for spec, gang in gangs:
        known = parts.tensor != "auto" or gang.tensor in degrees
        known &= parts.pipeline != "auto" or gang.pipeline <= len(asked.shape.layers)
        most = room_for(spec, gang, site, taken) if known else 0
        for count in _counts(asked.spec, most):
            packing = _packed(spec, gang, count, site, taken)
            if packing is None:
                continue
            ground = ground_of(spec, gang, packing, site)
            outlook = look_ahead(asked, gang, count, ground, site.calibration)
            yield _Candidate(spec=_written(spec, outlook), outlook=outlook)


def _counts(spec: ModelSpec, most: int) -> list[int]:
    if spec.replicas != "auto":
        return [spec.num_replicas] if most >= spec.num_replicas else []
    return [count for count in COUNTS if count < most] + ([most] if most else [])


def _written(spec: ModelSpec, outlook: Outlook) -> ModelSpec:
    """The model with the numbers that were found."""
    layers = outlook.gang.layers or outlook.layers or None
    split = SplitSpec(tensor=spec.ranks.tensor, pipeline=spec.ranks.pipeline, layers=layers)
    return spec.model_copy(update={"split": split, "replicas": outlook.replicas})


def _kinds(spec: ModelSpec, site: Site) -> Iterator[ModelSpec]:
    """The model on the nodes of each sort of accelerator that labels tell apart; where there is one sort, on all."""
    if spec.placement.stages is not None or spec.is_decided:
        yield spec
        return
    told = [accelerator_of(node, site.accelerators) for node in matching_nodes(spec, site) if node.num_gpus]
    on_gpu = site.rank(spec).num_gpus > 0
    kinds = dict.fromkeys(told)
    if not on_gpu or len({name for name, _ in kinds}) < 2 or not all(label for _, label in kinds):
        yield spec
        return
    for name, label in kinds:
        labels = {**spec.placement.labels, label: name}
        yield spec.model_copy(update={"placement": spec.placement.model_copy(update={"labels": labels})})


def _splits(spec: ModelSpec, site: Site) -> Iterator[SplitSpec]:
    """A part that is a number is held."""
    parts = spec.parts
    if parts.ranks is not None:
        yield parts
        return
    rank = site.rank(spec)
    slots = sum(slots_of(node, rank) for node in matching_nodes(spec, site))
    for tensor in TENSOR if parts.tensor == "auto" else (parts.tensor,):
        for stages in STAGES if parts.pipeline == "auto" else (parts.pipeline,):
            if tensor * stages <= min(slots, MAX_RANKS):
                yield SplitSpec(tensor=tensor, pipeline=stages, layers=parts.layers)


def _gangs(spec: ModelSpec, site: Site) -> Iterator[tuple[ModelSpec, GangShape]]:
    """On as few nodes as have room, where ranks reach each other quickest; and spread as it is where nobody chooses."""
    usual = shape_gang(spec, site.facts, site.nodes, site.platform)
    if isinstance(usual, NoShape):
        return
    yield spec, usual
    ranks = usual.tensor * usual.pipeline
    if spec.placement.nodes is not None or spec.placement.stages is not None:
        return
    for count in (count for count in range(1, usual.num_nodes) if ranks % count == 0):
        fewer = spec.model_copy(update={"placement": spec.placement.model_copy(update={"nodes": count})})
        shape = shape_gang(fewer, site.facts, site.nodes, site.platform)
        if not isinstance(shape, NoShape) and shape.ranks_per_node % shape.tensor == 0:
            yield fewer, shape
            return


def _demand(spec: ModelSpec, gang: GangShape, count: int) -> GangDemand:
    return GangDemand(model=spec.name, shape=gang, replicas=count, labels=spec.placement.labels)


def _packed(spec: ModelSpec, gang: GangShape, count: int, site: Site, taken: Sequence[GangDemand]) -> Packing | None:
    """None where they do not all find room."""
    packing = pack([*taken, _demand(spec, gang, count)], site.nodes)
    return packing if packing.complete else None


def _order(outlook: Outlook) -> tuple[object, ...]:
    """Limits first, and how far they are missed; then tokens per second, then the fewest ranks."""
    assert outlook.prediction is not None
    slo, told = outlook.asked.demand.slo, outlook.prediction
    ttft_s, itl_s = told.ttft_s.value, told.itl_s.value
    gang = outlook.gang
    worth = SPLIT_WORTH if gang.tensor * gang.pipeline > 1 else 1.0
    return (
        bool(slo.missed(ttft_s, itl_s)),
        equal_step(slo.excess(ttft_s, itl_s)),
        -equal_step(max(1e-9, outlook.tokens_per_s / worth)),
        gang.tensor * gang.pipeline * outlook.replicas,
        bool(outlook.layers),
        gang.num_nodes,
        -outlook.fit.max_sequences,
    )


def _shortage(outlook: Outlook) -> tuple[float, int]:
    """How many times too much is needed; what cannot be divided at all comes last."""
    short = outlook.fit.shortage
    ranks = outlook.gang.tensor * outlook.gang.pipeline
    if short is None or not short.available_bytes:
        return float("inf"), ranks
    return short.needed_bytes / short.available_bytes, ranks
