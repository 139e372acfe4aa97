"""What one layout of a model will do on the cluster: bytes on each rank, seconds under the load of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from longboat.catalog.quantization.requantize import widened
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.plan import EngineMemory, GangShape
from longboat.planner.demand import Demand, Slo
from longboat.planner.fit import Fit, plan_fit
from longboat.planner.ground import Ground
from longboat.planner.partition import Place, StageTimes, partitions
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment, Stage
from longboat.planner.predict.engine import engine_traits
from longboat.planner.predict.machine import LOOPBACK, Fabric, Machine, machine_for
from longboat.planner.predict.serving import Prediction, predict
from longboat.planner.search import sequences_held
from longboat.planner.split_shape import Card, EngineKind, Load, Split, even_stages
from longboat.spec.types.fleet import LoadSpec, ModelSpec

__all__ = ("Asked", "Outlook", "demand_of", "look_ahead", "with_curve")

CURVE_USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENGINE: EngineKind = "vllm"
STORED_BITS = 16
# Uneven stages must bring this much more than the engine's own.
WORTH = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A model of the file, with what is known of it.

    shape: as it is stored; memory: what its engine's settings say
    lengths_ratio: part of the load's lengths that is planned for
    """

    spec: ModelSpec
    shape: ModelShape
    memory: EngineMemory
    lengths_ratio: float = 1.0

    @property
    def computed(self) -> ModelShape:
        """The model in the bits that the engine computes with."""
        if self.memory.weight_bits == 32:
            return widened(self.shape)
        return self.shape

    @property
    def demand(self) -> Demand:
        return demand_of(self.spec.load, self.limit, self.spec.context, self.memory, self.lengths_ratio)

    @property
    def limit(self) -> int:
        """Tokens of the longest request; 0: nobody says."""
        return self.spec.context or self.shape.max_context_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """users: of one replica; prediction: for them; curve: (users, ITL, TTFT) of one replica, in seconds

    prediction and curve are empty where it does not fit.
    """

    asked: Asked
    gang: GangShape
    replicas: int
    ground: Ground
    fit: Fit
    users: float
    link: Fabric = LOOPBACK
    hop: Fabric = LOOPBACK
    prediction: Prediction | None = None
    curve: tuple[tuple[int, float, float], ...] = ()

    @property
    def cards(self) -> list[Card]:
        """Of each rank, stage by stage."""
        return _cards(self.gang, self.ground)

    @property
    def busy(self) -> int:
        """Replicas that have a user."""
        return max(1, min(self.replicas, self.asked.spec.load.users))

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all replicas; 0 where nothing is predicted."""
        return self.busy * self.prediction.total_tokens_per_s.value if self.prediction else 0.0

    @property
    def layers(self) -> tuple[int, ...]:
        """What the engine must be told of stages; empty where it divides them so by itself."""
        stages = self.fit.split.stages
        return () if stages == even_stages(sum(stages), len(stages)) else stages

    @property
    def kv_blocks(self) -> int | None:
        """That the engine makes; None where layers share blocks, or nothing fits."""
        return self.fit.num_kv_blocks(self.asked.memory.block_tokens) if self.fit.ranks else None

    @property
    def rank_bytes(self) -> int:
        """Of the fullest rank; where the cache is not told, the cache is what is left."""
        return max((rank.used_bytes for rank in self.fit.ranks), default=0)


def demand_of(load: LoadSpec, limit: int, context: int | None, memory: EngineMemory, ratio: float = 1.0) -> Demand:
    """The load, with lengths that the model can do. limit: its longest request, 0 for none; ratio: of the lengths."""
    prompt, output = load.prompt_tokens * ratio, load.output_tokens * ratio
    if limit and prompt + output > limit:
        prompt, output = (length * limit / (prompt + output) for length in (prompt, output))
    return Demand(
        users=load.users,
        prompt_tokens=max(1, int(prompt)),
        output_tokens=max(1, int(output)),
        context_tokens=context or 0,
        kv_bits=memory.kv_bits,
        memory_ratio=memory.memory_ratio,
        slo=Slo(ttft_s=_seconds(load.ttft_ms), itl_s=_seconds(load.itl_ms)),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def look_ahead(asked: Asked, gang: GangShape, replicas: int, ground: Ground, calibration: Calibration) -> Outlook:
    """What ``replicas`` gangs of this shape will do. A gang that tells no layers gets those that serve best."""
    users = max(1.0, asked.demand.users / max(1, replicas))
    link, hop = _links(gang, ground)
    load = _load(asked, ground, users)
    found: list[Outlook] = []
    for stages in _stages(asked, gang, ground, load):
        fit = plan_fit(asked.computed, _cards(gang, ground), _split(gang, stages), load)
        one = Outlook(
            asked=asked, gang=gang, replicas=replicas, ground=ground, fit=fit, users=users, link=link, hop=hop
        )
        found.append(_predicted(one, calibration) if fit.fits else one)
    return max(found, key=lambda one: (one.fit.fits, one.tokens_per_s / (WORTH if one.layers else 1.0)))


def _split(gang: GangShape, stages: Sequence[int]) -> Split:
    return Split(tensor=gang.tensor, stages=tuple(stages))


def _links(gang: GangShape, ground: Ground) -> tuple[Fabric, Fabric]:
    """Between the ranks of a stage, and between stages."""
    torn = gang.ranks_per_node % gang.tensor != 0
    link = LOOPBACK if gang.tensor == 1 else ground.network if torn else ground.bus
    hop = LOOPBACK if gang.pipeline == 1 else ground.bus if gang.num_nodes == 1 else ground.network
    return link, hop


def _load(asked: Asked, ground: Ground, users: float) -> Load:
    memory, demand = asked.memory, asked.demand
    sequences = min(ceil(users), memory.sequences) if memory.sequences else ceil(users)
    return Load(
        context_tokens=demand.context,
        num_sequences=max(1, sequences),
        batched_tokens=memory.batched_tokens,
        engine_sequences=memory.sequences,
        kv_bits=memory.kv_bits,
        weight_bits=memory.weight_bits or STORED_BITS,
        # A processor has no ratio: its whole memory may be taken.
        memory_ratio=1.0 if ground.on_cpu else memory.memory_ratio,
        cache_bytes=memory.cache_bytes,
        graphs=memory.graphs,
        engine=ENGINE,
    )


def _cards(gang: GangShape, ground: Ground) -> list[Card]:
    return [ground.seat(stage).card for stage in range(gang.pipeline) for _ in range(gang.tensor)]


def _stage_link(gang: GangShape, ground: Ground, stage: int) -> Fabric:
    """Between the ranks of one stage: of a bound stage they are within a node."""
    return ground.seat(stage).bus if ground.seats and gang.tensor > 1 else _links(gang, ground)[0]


def _stages(asked: Asked, gang: GangShape, ground: Ground, load: Load) -> tuple[tuple[int, ...], ...]:
    num_layers = len(asked.shape.layers)
    even = even_stages(num_layers, gang.pipeline)
    if gang.layers or gang.pipeline == 1 or asked.spec.parts.pipeline != "auto" or min(even) < 1:
        return (gang.layers or even,)
    seats = [(ground.seat(stage), _stage_link(gang, ground, stage)) for stage in range(gang.pipeline)]
    places = [Place(pool=0, card=seat.card, machine=_used(asked, seat.machine), link=link) for seat, link in seats]
    times = StageTimes(asked.computed, engine_traits(ENGINE), asked.demand.traffic(1.0))
    found = partitions(asked.computed, places, load, times, tensor=gang.tensor, expert_parallel=False)
    return tuple(dict.fromkeys((even, *found)))


def _used(asked: Asked, machine: Machine) -> Machine:
    """The machine as the engine uses it with the model's settings."""
    return machine_for(machine, ENGINE) if asked.memory.weight_bits == 32 else machine


def _predicted(outlook: Outlook, calibration: Calibration) -> Outlook:
    return replace(outlook, prediction=_at(outlook, outlook.users, calibration))


def with_curve(outlook: Outlook, calibration: Calibration) -> Outlook:
    """The same with seconds at other numbers of users, where something is predicted."""
    if outlook.prediction is None:
        return outlook
    most = outlook.asked.memory.sequences or CURVE_USERS[-1]
    curve = []
    for users in (users for users in CURVE_USERS if users <= most):
        one = _at(outlook, users, calibration)
        curve.append((users, one.itl_s.value, one.ttft_s.value))
    return replace(outlook, curve=tuple(curve))


def _at(outlook: Outlook, users: float, calibration: Calibration) -> Prediction:
    asked, fit, gang, ground = outlook.asked, outlook.fit, outlook.gang, outlook.ground
    machines = [_used(asked, ground.seat(stage).machine) for stage in range(gang.pipeline)]
    deployment = Deployment(
        shape=asked.computed,
        engine=engine_traits(ENGINE),
        stages=tuple(
            Stage(num_layers=count, machine=machine, tensor=gang.tensor, link=_stage_link(gang, ground, stage))
            for stage, (count, machine) in enumerate(zip(fit.split.stages, machines, strict=True))
        ),
        hop=outlook.hop,
    )
    room = sequences_held(fit, asked.demand)
    if asked.memory.sequences:
        room = min(room, float(asked.memory.sequences))
    return predict(deployment, asked.demand.traffic(users), calibration, max_sequences=room)
