"""From a fleet file to the fleet that the twin simulates: its hardware and split come from the planner."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

from longboat.cli.file.target import read_target
from longboat.cli.plan.planning import HERE, Planner, machines_of, own_calibration, read_shape
from longboat.cli.shared.catalog_files import read_library
from longboat.cli.simulate.left_out import left_out
from longboat.cli.simulate.simulate_options import SimulateRequest, parse_event
from longboat.core.errors import UserInputError
from longboat.core.wanted import WantedModel
from longboat.engines.card_parts import planned_memory
from longboat.engines.model_arguments import arguments_of
from longboat.engines.registry import adapter_for, splits_of
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.engine_choice import ENGINE_KINDS
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.split_shape import AskedSplit
from longboat.planner.search.demand import Demand
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.layouts import Layout
from longboat.routing.policies.prefill_time import PrefillSeed
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.fleet.fleet import Fleet, even_fleet
from longboat.simulator.plan.planned_replica import planned_engine
from longboat.spec.types.fleet import ModelSpec
from longboat.spec.wanted import wanted_model

__all__ = ("fleet_to_simulate", "seed_of")


def fleet_to_simulate(request: SimulateRequest) -> tuple[ModelSpec, Fleet, str, tuple[str, ...]]:
    """Return the model, the fleet, in words what one replica is, and what of it is left out.

    Raises UserInputError for what cannot be.
    """
    spec = _model(request)
    wanted = wanted_model(spec, splits_of)
    if request.step_time:
        if request.kv_tokens is None:
            raise UserInputError(
                "--step-time does not give the size of the KV cache", hint="give --kv-tokens 100000 too"
            )
        time, limits = _step_time(request.step_time), _given_limits(request, request.kv_tokens)
        planned, title, split = 1, "times as given", None
    elif spec.engine.kind == "fake":
        raise UserInputError(
            f"{spec.name} runs on the fake engine, which the planner does not know",
            hint='give --step-time "base_s=0.01,prompt_token_s=5e-5" and --kv-tokens 100000',
        )
    else:
        forecast, planner = _forecast(spec, wanted, request)
        time, limits = planned_engine(forecast, planner.calibration, request.kv_tokens)
        if request.replicas is None:
            _check_room(wanted, forecast, planner.cluster)
        planned, title, split = forecast.layout.replicas, _title(forecast), forecast.fit.split
    count = request.replicas or wanted.replicas or planned
    if count < 1:
        raise UserInputError(f"{spec.name} has 0 replicas: nothing would serve it", hint="give --replicas 2")
    return spec, _fleet(request, count, time, limits), title, tuple(left_out(spec, split))


def seed_of(fleet: Fleet) -> PrefillSeed:
    """Return what the planner tells the policies that predict seconds."""
    time = fleet.replicas[0].time
    return PrefillSeed(token_s=time.prompt_token_s, request_s=time.base_s, token_context_s=time.prompt_pair_s)


def _model(request: SimulateRequest) -> ModelSpec:
    path = Path(request.fleet)
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else "there is no such file"
        raise UserInputError(f"{path} cannot be read: {why}", hint="give a fleet file: --fleet fleet.yaml")
    models = read_target(request.fleet).whole().models
    names = ", ".join(model.name for model in models)
    if request.model is None and len(models) != 1:
        raise UserInputError(f"{path} has {len(models)} models: {names}", hint=f"--model {models[0].name}")
    found = [model for model in models if request.model in (None, model.name)]
    if not found:
        raise UserInputError(f"{path} has no model {request.model}", hint=f"it has {names}")
    return found[0]


def _fleet(request: SimulateRequest, count: int, time: StepTime, limits: EngineLimits) -> Fleet:
    draw = random.Random(request.seed)
    spread = request.speed_spread
    replicas = tuple(
        replace(one, slowness=1.0 + spread * (2.0 * draw.random() - 1.0)) for one in even_fleet(count, time, limits)
    )
    keys = frozenset(one.key for one in replicas)
    return Fleet(
        replicas=replicas,
        gateways=request.gateways,
        slots=request.slots or limits.max_num_seqs,
        events=tuple(parse_event(text, keys) for text in request.events),
    )


def _forecast(spec: ModelSpec, wanted: WantedModel, request: SimulateRequest) -> tuple[Forecast, Planner]:
    library = read_library()
    cluster = _cluster(request, spec.engine.kind)
    on_cpu = all(cards.entry.kind == "cpu" for kind in cluster.kinds for cards in kind.cards)
    adapter = adapter_for(spec.engine.kind)
    settings = planned_memory(adapter, arguments_of(spec), "cpu" if on_cpu else "cuda", spec.resources.gpus)
    if settings is None:
        raise UserInputError(
            f"the planner does not know the engine {spec.engine.kind}",
            hint='give --step-time "base_s=0.01,prompt_token_s=5e-5" and --kv-tokens 100000',
        )
    load = wanted.load
    demand = Demand(
        users=load.users,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        context_tokens=wanted.context or 0,
        settings=settings,
        split=AskedSplit(
            tensor=wanted.tensor or 0,
            pipeline=wanted.pipeline or 0,
            data=wanted.data or 0,
            expert_parallel=wanted.expert,
            layers=wanted.layers,
        ),
    )
    planner = Planner(library=library, calibration=own_calibration(), cluster=cluster, base=None, demand=demand)
    best = planner.plan(read_shape(spec.source), fewer_bits=False).plans[0]
    return best.groups[0], planner


def _title(forecast: Forecast) -> str:
    parts = (forecast.layout.cards_title, forecast.layout.split_title)
    return ", ".join(part for part in parts if part.strip())


def _check_room(wanted: WantedModel, forecast: Forecast, cluster: Cluster) -> None:
    """Refuse more replicas than there are cards for; processors may be shared."""
    layout = forecast.layout
    room = _room(layout, cluster)
    if not layout.on_processors and wanted.replicas is not None and wanted.replicas > room:
        raise UserInputError(
            f"{wanted.replicas} replicas of {wanted.name} do not fit on {cluster.title}: {room} of "
            f"{layout.num_ranks} cards each do",
            hint=f"--replicas {room}, or more machines in --on; --replicas {wanted.replicas} plays it anyway",
        )


def _room(layout: Layout, cluster: Cluster) -> int:
    """Return how many such replicas find room: each stage is on cards of its sort, and within nodes where it fits."""
    depths = Counter(place.card for place in layout.places)
    pools = pools_of(cluster)
    return min(
        sum(pool.stages(layout.tensor) for pool in pools if pool.card == card) // depth
        for card, depth in depths.items()
    )


def _cluster(request: SimulateRequest, engine: str) -> Cluster:
    """Return the machines, with the file's engine where ``--on`` names none and the planner knows it."""
    cluster = machines_of(request.on or HERE, read_library())
    named = next((name for name, kind in ENGINE_KINDS.items() if kind == engine), "")
    return cluster if cluster.engine else replace(cluster, engine=named)


def _given_limits(request: SimulateRequest, kv_tokens: int) -> EngineLimits:
    limits = EngineLimits(kv_blocks=1, max_num_seqs=request.slots or 256)
    return replace(limits, kv_blocks=max(1, kv_tokens // limits.block_tokens))


def _step_time(text: str) -> StepTime:
    """Read ``base_s=0.01,prompt_token_s=5e-5``."""
    names = [one.name for one in fields(StepTime)]
    hint = f"write {', '.join(f'{name}=…' for name in names)}; base_s and prompt_token_s at least"
    values: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            values[name] = float(value)
        except ValueError:
            raise UserInputError(f"--step-time: {part!r} gives no number", hint=hint) from None
        if name not in names or not 0 <= values[name] < 1e6:
            raise UserInputError(f"--step-time: {part!r} is not a term of a step, or below 0", hint=hint)
    if not values.get("base_s") or not values.get("prompt_token_s"):
        raise UserInputError("--step-time needs base_s and prompt_token_s above 0", hint=hint)
    return StepTime(**values)
