"""What replicas of one layout do under a demand: bytes on each rank, seconds, and tokens per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.budget import engine_sequences
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.fit import Fit, RankBytes, plan_fit
from longboat.planner.memory.kv_room import StageCaches
from longboat.planner.memory.split_shape import Card, EngineKind, Load, Split, even_stages
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Counted, Deployment, Stage
from longboat.planner.predict.serving import Prediction, predict
from longboat.planner.search.demand import Demand
from longboat.planner.search.layouts import Layout
from longboat.planner.search.partition import StageTimes, partitions

__all__ = ("HELD_OUTPUT", "Forecast", "Forecaster", "Forecasters", "replica_users", "with_curve")

# A request's output is part written, on average.
HELD_OUTPUT = 0.6
CURVE_USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Equal replicas, with what one of them holds and does."""

    layout: Layout
    shape: ModelShape  # in the bits that the engine computes with
    engine: EngineKind
    demand: Demand
    fit: Fit
    users: float  # that one replica serves at once
    busy: int  # replicas that have a user
    outcome: Prediction | None = None  # of one replica; None where it does not fit
    curve: tuple[tuple[int, float, float], ...] = ()  # users, ITL and TTFT of one replica, in seconds

    @property
    def prediction(self) -> Prediction:
        """Seconds and tokens of one replica. Raises ValueError where it does not fit."""
        if self.outcome is None:
            raise ValueError(f"{self.title} does not fit: nothing is predicted")
        return self.outcome

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all replicas; 0 where it does not fit."""
        return self.busy * self.outcome.total_tokens_per_s.value if self.outcome else 0.0

    @property
    def cards(self) -> list[Card]:
        """The card of each rank, stage by stage."""
        return [place.card for place in self.layout.places for _ in range(self.layout.tensor)]

    @property
    def title(self) -> str:
        replicas = f"{self.layout.replicas} replicas of " if self.layout.replicas > 1 else ""
        return f"{replicas}{self.layout.cards_title}, {self.layout.split_title}"

    @property
    def max_sequences(self) -> int:
        """Requests of the whole context that all its replicas hold at once."""
        return self.layout.replicas * self.fit.max_sequences

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that the engine must be given for its stages; empty where it divides them so by itself."""
        stages = self.fit.split.stages
        return () if stages == even_stages(sum(stages), len(stages)) else stages

    @property
    def layer_setting(self) -> str:
        """The engine's setting for the layers of each stage; ``""`` where it divides them so by itself."""
        stages, traits = self.fit.split.stages, engine_traits(self.engine)
        if len(stages) == 1 or not (traits.sets_equal_layers or self.layers):
            return ""
        return f"{traits.layer_setting}={','.join(map(str, stages))}"

    @property
    def deployment(self) -> Deployment:
        """One replica as the time model sees it."""
        layout, split = self.layout, self.fit.split
        pairs = list(zip(split.stages, layout.places, strict=True))
        stages = {
            (count, id(place)): Stage(
                num_layers=count, machine=place.machine, tensor=layout.tensor, link=place.link, near=place.near
            )
            for count, place in pairs
        }
        return Deployment(
            shape=self.shape,
            engine=engine_traits(self.engine),
            stages=tuple(stages[count, id(place)] for count, place in pairs),
            attention_data=split.data,
            expert=split.expert,
            hop=layout.hop,
        )

    @property
    def kv_blocks(self) -> int | None:
        """Cache blocks that the engine makes; None where layers share blocks, or nothing fits."""
        block_tokens = self.demand.settings.block_tokens
        return self.fit.num_kv_blocks(block_tokens) if self.fit.runs else None

    @property
    def rank_bytes(self) -> int:
        """Bytes of the fullest rank; where the cache has no size of its own, it is all that is left."""
        return max((rank.used_bytes for rank in self.fit.ranks), default=0)

    @property
    def missed(self) -> str:
        """Limits of the demand that are missed, in words; ``""`` where none is."""
        return self.demand.slo.missed(self.outcome.ttft_s.value, self.outcome.itl_s.value) if self.outcome else ""


class Forecaster:
    """Makes forecasts of one model under one demand."""

    def __init__(self, shape: ModelShape, demand: Demand, engine: EngineKind, calibration: Calibration) -> None:
        self.shape, self.demand, self.engine, self.calibration = shape, demand, engine, calibration
        self.traits = engine_traits(engine)
        self._known: dict[tuple[object, ...], list[Forecast]] = {}
        # The work of layers that was counted (``work``) for this model and engine, under any demand.
        self.counted: Counted = shape.once(("work", engine), dict)
        self._times = StageTimes(shape, self.traits, demand.traffic(1.0), self.counted)

    def divided(self, layout: Layout, share: float = 1.0) -> list[Forecast]:
        """Return a forecast for each division of the layers that is worth a look; all of them may not fit.

        share: of all users, that goes to these replicas
        """
        users, busy = replica_users(self.demand.users, share, layout.replicas)
        key = (layout.sort, users, busy)
        if key not in self._known:
            divisions = self._divisions(layout, self._load(users))
            self._known[key] = [self.of(layout, stages, users, busy) for stages in divisions]
        return [one if one.layout is layout else replace(one, layout=layout) for one in self._known[key]]

    def of(self, layout: Layout, stages: Sequence[int], users: float, busy: int) -> Forecast:
        """Return the forecast of a layout with these layers. users: of one replica."""
        split = Split(
            tensor=layout.tensor,
            stages=tuple(stages),
            expert_parallel=layout.expert_parallel,
            data=layout.data,
        )
        cards = [place.card for place in layout.places for _ in range(layout.tensor)]
        fit = self._fit(cards, split, self._load(users))
        one = Forecast(
            layout=layout,
            shape=self.shape,
            engine=self.engine,
            demand=self.demand,
            fit=fit,
            users=users,
            busy=busy,
        )
        return self.at(one, users, busy) if fit.fits else one

    def _fit(self, cards: Sequence[Card], split: Split, load: Load) -> Fit:
        """Plan bytes; an engine that keeps room for each slot gets as many slots as there is room for."""
        fit = plan_fit(self.shape, cards, split, load)
        if fit.fits or not self.traits.slots or self.demand.settings.sequences or fit.max_sequences < 1:
            return fit
        fewer = plan_fit(self.shape, cards, split, replace(load, num_sequences=fit.max_sequences))
        return fewer if fewer.fits else fit

    def at(self, forecast: Forecast, users: float, busy: int) -> Forecast:
        """Return the same replicas with other users."""
        return replace(forecast, users=users, busy=busy, outcome=self._outcome(forecast, users))

    def _load(self, users: float) -> Load:
        return self.demand.load(self.engine, ceil(users))

    def _divisions(self, layout: Layout, load: Load) -> Iterator[tuple[int, ...]]:
        """Yield layers for each stage."""
        asked, even = self.demand.split, even_stages(len(self.shape.layers), len(layout.places))
        if asked.layers or asked.even:
            yield asked.layers or even
            return
        found = partitions(
            self.shape,
            layout.places,
            load,
            self._times,
            tensor=layout.tensor,
            expert_parallel=layout.expert_parallel,
        )
        yield from found or (even,)

    def _outcome(self, forecast: Forecast, users: float) -> Prediction:
        fit = forecast.fit
        held, most = _sequences_held(fit, self.demand), self._most_sequences(fit)
        if most:
            held = min(held, float(most * fit.split.data))
        deployment = replace(forecast.deployment, counted=self.counted)
        return predict(deployment, self.demand.traffic(users), self.calibration, max_sequences=held)

    def _most_sequences(self, fit: Fit) -> int:
        """Return the requests that a data part of an engine runs at most; 0: as many as its cache holds."""
        if not self.traits.memory_ratio:
            return self.traits.of_part(self.demand.settings.sequences, fit.split.data)
        return min(engine_sequences(fit.load, rank.card) for rank in fit.unlike_ranks)


class Forecasters:
    """The forecasters of one demand that several searches share, so that each sort of layout is counted once."""

    def __init__(self, demand: Demand, calibration: Calibration) -> None:
        self._demand, self._calibration = demand, calibration
        self._found: list[Forecaster] = []

    def of(self, shape: ModelShape, engine: EngineKind) -> Forecaster:
        """Return the forecaster of a model and an engine; a second call returns the same."""
        for one in self._found:
            if one.engine == engine and one.shape == shape:
                return one
        self._found.append(Forecaster(shape, self._demand, engine, self._calibration))
        return self._found[-1]


def replica_users(users: int, share: float, replicas: int) -> tuple[float, int]:
    """Return the users of one replica where all replicas get ``share`` of the users, and the replicas that have one."""
    return max(1.0, users * share / max(1, replicas)), max(1, min(replicas, round(users * share)))


def with_curve(forecast: Forecast, calibration: Calibration) -> Forecast:
    """Return the forecast with seconds at other numbers of users, where anything is predicted."""
    if forecast.outcome is None:
        return forecast
    most = forecast.demand.settings.sequences or CURVE_USERS[-1]
    maker = Forecaster(forecast.shape, forecast.demand, forecast.engine, calibration)
    told = [maker.at(forecast, users, 1) for users in CURVE_USERS if users <= most]
    points = [(int(one.users), one.prediction.itl_s.value, one.prediction.ttft_s.value) for one in told]
    return replace(forecast, curve=tuple(points))


def _sequences_held(fit: Fit, demand: Demand) -> float:
    """Return how many requests of the mean length the cache holds."""
    slots = max(1.0, float(fit.load.num_sequences)) if engine_traits(fit.load.engine).slots else inf
    if slots < inf and not fit.load.cache_tokens:
        return slots
    traffic = demand.traffic(1.0)
    held = ceil(traffic.mean_prompt_tokens + HELD_OUTPUT * traffic.mean_output_tokens)
    least = min(_held_by(rank, fit.caches[rank.stage], held) for rank in fit.unlike_ranks)
    return max(1.0, min(slots, least * fit.split.data))


def _held_by(rank: RankBytes, caches: StageCaches, tokens: int) -> float:
    """Return how many sequences of ``tokens`` a rank's caches hold."""
    return max(0, rank.cache_room_bytes - caches.in_flight_bytes(tokens)) / max(1, caches.bytes_of(tokens))
