"""Makes ``up``'s request to the planner, shows the plan, and writes it for the controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_rows import PlanRow, explain
from longboat.cli.shared.console import simple_table
from longboat.cluster.preflight.knowledge import Basis, built_in_basis
from longboat.cluster.preflight.surroundings import CheckedPlan, UpOptions
from longboat.core.errors import LongboatError
from longboat.core.scaling import ReplicaSpeed
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.number import Number
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.forecast_document import planned_values
from longboat.simulator.plan.planned_replica import planned_engine, speed_of
from longboat.spec.files.load import load_fleet
from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = ("planned_document", "planning_basis", "same_wishes", "show_plan", "up_options")

GIB = 1024**3
_WIDE = 100
"""Columns from which the table of what is expected is whole."""


def planning_basis(console: Console) -> Basis:
    """Return the user's catalog and calibration; a mistake in them is only printed, as numbers need neither."""
    from longboat.cli.plan.planning import own_calibration
    from longboat.cli.shared.catalog_files import read_library

    try:
        return Basis(library=read_library(), calibration=own_calibration(), read_hub=_read_hub)
    except LongboatError as error:
        console.print(Text(f"planned without your own catalog and calibration: {error}", style="yellow"))
        return built_in_basis()


def _read_hub(name: str) -> ModelShape:
    from longboat.cli.plan.planning import read_shape

    return read_shape(name)


def up_options(fleet: Fleet, told: Mapping[str, Any], *, replan: bool, force: bool) -> UpOptions:
    """Return what ``up`` wants besides the file. told: to the controller by the last ``up``; {}: no fleet is up."""
    running = load_fleet(told["text"], "the running fleet") if told.get("text") else None
    kept = {} if replan or running is None else _kept(fleet, running, _asked_before(told), told.get("taken_back", {}))
    return UpOptions(kept=kept, running=running, force=force)


def _asked_before(told: Mapping[str, Any]) -> Fleet:
    """Return the file of the last ``up``; what it left to decide is in it as ``auto``."""
    return load_fleet(told.get("planned", {}).get("asked") or told["text"], "the running fleet as it was asked for")


def _kept(fleet: Fleet, running: Fleet, before: Fleet, taken_back: Mapping[str, object]) -> dict[str, ModelSpec]:
    """Return models that leave something to decide, as they run; where the load differs, it is decided again."""
    found = {}
    for model in fleet.models:
        now, asked = running.model_named(model.name), before.model_named(model.name)
        if model.is_decided or now is None or asked is None or model.name in taken_back or not now.num_replicas:
            continue
        if _engines(model) == _engines(asked):
            found[model.name] = _with_numbers(model, now, asked)
    return found


def _engines(model: ModelSpec) -> Mapping[str, Any]:
    return model.model_dump(exclude={"replicas", "update"})


def _with_numbers(model: ModelSpec, now: ModelSpec, asked: ModelSpec) -> ModelSpec:
    """Return ``model`` with the split that runs, and the replicas that run where their number was open before."""
    numbers: dict[str, Any] = {} if model.split_is_decided else {"split": now.split, "placement": now.placement}
    if model.replicas == "auto" and asked.replicas == "auto":
        numbers["replicas"] = now.replicas
    return model.model_copy(update=numbers)


def same_wishes(asked: Fleet, told: Mapping[str, Any]) -> bool:
    """Return whether the last ``up`` was asked for the same."""
    from longboat.spec.files.dump import fleet_digest

    return bool(told.get("text")) and fleet_digest(_asked_before(told)) == fleet_digest(asked)


def planned_document(asked_text: str, plan: CheckedPlan, calibration: Calibration) -> dict[str, Any]:
    """Return what the controller needs: the file as it was asked for, and what is expected of each model."""
    found = [(model, plan.decision.forecasts.get(model.name)) for model in plan.decision.models]
    known = [(model, one) for model, one in found if one is not None]
    return {
        "asked": asked_text,
        "models": {model.name: planned_values(one, model.source) for model, one in known},
        "speeds": {model.name: asdict(speed) for model, one in known if (speed := _speed(one, calibration))},
        "forced": [str(problem) for problem in plan.overridden],
    }


def _speed(forecast: Forecast, calibration: Calibration) -> ReplicaSpeed | None:
    """Return how fast a replica is foreseen to be; None where the planner cannot say."""
    try:
        return speed_of(*planned_engine(forecast, calibration))
    except LongboatError:
        return None


def show_plan(asked: Fleet, plan: CheckedPlan, console: Console) -> None:
    """Print what is to run where and why, what is expected of it, doubts, and what is started against advice."""
    rows = explain(plan.fleet, plan.shapes)
    console.print(_layout_table(asked, rows))
    for row in rows:
        console.print(Text(f"{row.model}: {row.reason}", style="dim"), soft_wrap=True)
    if plan.decision.forecasts:
        console.print()
        console.print(_forecast_table(plan, narrow=console.width < _WIDE))
        for line in _forecast_basis(plan):
            console.print(Text(line, style="dim"), soft_wrap=True)
    for model, notes in plan.decision.notes.items():
        for note in notes:
            console.print(Text(f"! {model}: {note}", style="yellow"), soft_wrap=True)
    for problem in plan.overridden:
        console.print(Text(f"STARTED AGAINST THE PLAN (--force): {problem}", style="bold red"), soft_wrap=True)


def _layout_table(asked: Fleet, rows: Iterable[PlanRow]) -> Table:
    columns = ("MODEL", "SOURCE", "REPLICAS", "ENGINE", "SPLIT", "NODES", "PER NODE")
    table = simple_table(*columns, wraps=columns[:-1])
    for row in rows:
        told = asked.model_named(row.model)
        replicas = _marked(row.replicas, "auto" if told is not None and told.replicas == "auto" else "")
        split = _marked(row.split, _open_parts(told) if told is not None else "")
        table.add_row(row.model, row.source, replicas, row.engine, split, row.nodes, row.per_node)
    return table


def _open_parts(told: ModelSpec) -> str:
    """Return what of the split the file left to decide."""
    return "auto" if told.split == "auto" else ", ".join(f"{name} auto" for name in told.parts.open_parts)


def _marked(text: str, mark: str) -> str:
    return f"{text} ({mark})" if mark else text


def _forecast_table(plan: CheckedPlan, *, narrow: bool) -> Table:
    """Make one row for each model. narrow: without the last column"""
    columns = ("EXPECTED", "USERS", "TTFT ms", "ITL ms", "TOKENS/S", "GiB", *(() if narrow else ("KV TOKENS",)))
    table = simple_table(*columns, wraps=("EXPECTED",))
    for row in _forecast_rows(plan):
        table.add_row(*row[: len(columns)])
    return table


def _forecast_rows(plan: CheckedPlan) -> Iterator[tuple[str, ...]]:
    """Yield users of all replicas; figures of the mean request; memory of the fullest rank."""
    for model, forecast in plan.decision.forecasts.items():
        told, demand = forecast.outcome, forecast.demand
        memory = f"{forecast.rank_bytes / GIB:.2f}" if forecast.fit.ranks else "-"
        start = (model, f"{demand.users} x {demand.prompt_tokens}+{demand.output_tokens}")
        if told is None:
            yield (*start, "does not fit", "-", "-", memory, "-")
            continue
        times = (_interval(told.ttft_s, 0), _interval(told.itl_s, 1), f"{forecast.tokens_per_s:.0f}")
        kv_tokens = str(forecast.fit.num_kv_tokens) if forecast.shape.kv_bytes_per_token() else "-"
        yield (*start, *times, memory, kv_tokens)


def _forecast_basis(plan: CheckedPlan) -> Iterator[str]:
    """Yield on what hardware each rank is expected, and where its times come from."""
    for model, forecast in plan.decision.forecasts.items():
        source = f"; times are {forecast.outcome.itl_s.provenance}" if forecast.outcome else ""
        yield f"{model}: each rank on {forecast.layout.hardware}{source}"


def _interval(number: Number, digits: int) -> str:
    """Return an interval of seconds in milliseconds."""
    value, low, high = (f"{seconds * 1e3:.{digits}f}" for seconds in (number.value, number.low, number.high))
    return f"{value} ({low} … {high})"
