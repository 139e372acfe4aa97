"""``longboat plan MODEL``: the split that serves a load best, why, and what changes would bring."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.inputs.running_command import as_run, is_command, request_notes, request_of
from longboat.cli.plan.outputs.engine_commands import engine_commands
from longboat.cli.plan.outputs.fleet_text import fleet_text, writable_plan, write_fleet
from longboat.cli.plan.outputs.model_files import files_of
from longboat.cli.plan.outputs.offload_command import run_offload
from longboat.cli.plan.outputs.size_command import LIMIT_MISSED, is_any_of, rate_notes, rate_values, run_size
from longboat.cli.plan.outputs.what_if_notes import WhatIf, answers, with_draft
from longboat.cli.plan.plan_chart import Point, draw_chart
from longboat.cli.plan.plan_document import found_values, model_values, print_refused
from longboat.cli.plan.plan_notes import name_notes, notes_of
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import Planner, check_generates, planner_for
from longboat.core.errors import LongboatError, UserInputError, unwritable
from longboat.planner.compare.sizing import Served, missed_by_waiting
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.engine import OFFLOADING, engine_traits
from longboat.planner.search.search import SearchResult, search

__all__ = ("LIMIT_MISSED", "Wanted", "run_plan", "whole_values")

NOTHING_ELSE = WhatIf()
CHART_USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a command prints and writes of its plans."""

    as_json: bool = False
    chart: Path | None = None  # an SVG file to write
    write: Path | None = None  # a fleet file to write
    commands: bool = False  # whether the engine's own commands are printed
    what_if: WhatIf = NOTHING_ELSE  # changes to look at beside the best plan
    offload: str = ""  # the RAM that takes what does not fit a card
    must_keep: bool = False  # exit with ``LIMIT_MISSED`` where the best plan misses a limit of --slo, or --rate


def run_plan(model: str, request: PlanRequest, wanted: Wanted) -> None:
    """Print the plans, and write the files that are wanted."""
    if is_command(model):
        model, request = request_of(model, request)
    if is_any_of(request.on):
        _check_any_of(wanted)
        run_size(model, request, as_json=wanted.as_json, must_keep=wanted.must_keep)
        return
    if wanted.offload:
        _check_offload(request, wanted)
        run_offload(model, request, wanted.offload, as_json=wanted.as_json)
        return
    planner, shape, found, served = _planned(model, request, wanted)
    queue = planner.queue(served)
    more = answers(wanted.what_if, planner, found)
    notes = [
        *request_notes(request, found),
        *name_notes(model, shape),
        *rate_notes(served, request.rate, queue),
        *notes_of(shape, request.kv_bits),
    ]
    notes += more.notes
    commands = _commands(planner, model, shape, found) if wanted.commands else []
    base = planner.before(shape)
    if wanted.as_json:
        rates = rate_values(served, request.rate, queue)
        document = whole_values(shape, request, found, rates, notes)
        document |= {**more.values, "base": None if base is None else found_values(base), "commands": commands}
        print(json.dumps(document, indent=2))
    else:
        from longboat.cli.plan.plan_tables import print_found

        print_found(found, base, notes=notes)
        print("".join(f"{line}\n" for line in ("", *commands)) if commands else "", end="")
    if wanted.chart is not None:
        _write(wanted.chart, _chart(planner, found))
    if wanted.write is not None:
        _write_fleet(wanted.write, planner, model, shape, found)
    late = served is not None and queue is not None and missed_by_waiting(served.plan, queue.wait_s)
    if wanted.must_keep and (found.plans[0].missed or late or (served and not served.kept)):
        raise typer.Exit(LIMIT_MISSED)


def whole_values(
    shape: ModelShape, request: PlanRequest, found: SearchResult, rate: dict[str, Any] | None, notes: Sequence[str]
) -> dict[str, Any]:
    """Return the model, the machines, the demand and the plans, best first."""
    return {
        **model_values(shape, request.kv_bits),
        "estimate": list(found.plans[0].estimate),
        "notes": list(notes),
        "fits": True,
        "keeps_slo": not found.plans[0].missed,
        "rate": rate,
        **found_values(found),
    }


def _check_any_of(wanted: Wanted) -> None:
    if wanted.chart or wanted.write or wanted.commands or wanted.offload or wanted.what_if != NOTHING_ELSE:
        raise UserInputError(
            "--chart, --write, --commands, --offload, --speculation, --apart and --kv-tier belong to one plan, "
            "and --on compares several kinds of machines",
            hint="plan for the kind that you choose: --on '2x(8xH100), net=25GbE'",
        )


def _check_offload(request: PlanRequest, wanted: Wanted) -> None:
    if request.slo or request.rate or wanted.must_keep:
        raise UserInputError(
            "--offload prints what a card and its RAM bring, and compares it with no --slo, --rate or --must-keep",
            hint="leave them out; --concurrency gives the load",
        )
    if request.engine and engine_traits(request.engine).name != OFFLOADING:
        raise UserInputError(
            f"--offload needs {OFFLOADING}: --engine {request.engine} keeps nothing in RAM",
            hint="leave --engine out, or leave --offload out",
        )
    if wanted.chart or wanted.write or wanted.commands or wanted.what_if != NOTHING_ELSE:
        raise UserInputError(
            "--offload prints ways to keep a part in RAM, and no plan for --chart, --write, --commands, --speculation, "
            "--apart or --kv-tier",
            hint="leave them out, or leave --offload out",
        )


def _commands(planner: Planner, model: str, shape: ModelShape, found: SearchResult) -> list[str]:
    """Return the lines of the commands of each group of the best plan."""
    pools = pools_of(found.cluster)
    lines: list[str] = []
    for group in found.plans[0].groups:
        files = files_of(model, shape, group, planner.library, any_gguf=True)
        cards = {place.card for place in group.layout.places}
        per_node = min(pool.cards_per_node for pool in pools if pool.card in cards)
        lines += engine_commands(group, files, per_node)
    return lines


def _write_fleet(path: Path, planner: Planner, model: str, shape: ModelShape, found: SearchResult) -> None:
    plan = writable_plan(found.plans)
    (group,) = plan.groups
    write_fleet(path, fleet_text(found, group, files_of(model, shape, group, planner.library)))
    told = "" if plan is found.plans[0] else ", not the best plan: a model of a fleet file has equal replicas"
    print(f"{path}: {plan.title}{told}", file=sys.stderr)


def _planned(
    model: str, request: PlanRequest, wanted: Wanted
) -> tuple[Planner, ModelShape, SearchResult, Served | None]:
    """Return the planner at the rate that is asked for, the model, its plans, and what is served of the rate.

    Raises LongboatError after the document of the refusal, where JSON is wanted.
    """
    planner, shape = planner_for(request), None
    try:
        shape = planner.read(model)
        check_generates(shape)
        planner = as_run(planner.for_files(model, shape), request, shape)
        planner, served = with_draft(planner, wanted.what_if, shape).at_rate(shape)
        return planner, shape, planner.plan(shape), served
    except LongboatError as error:
        if wanted.as_json:
            print_refused(error, shape, request.kv_bits)
        raise


def _chart(planner: Planner, found: SearchResult) -> str:
    best = found.plans[0]
    shape = best.groups[0].shape
    points = [point for users in CHART_USERS if (point := _at(planner, shape, best.title, users))]
    demand = found.demand
    load = f"prompts of {demand.prompt_tokens}, answers of {demand.output_tokens} tokens"
    subtitle = f"weights in {shape.quantization or shape.dtype}, {found.cluster.title}; {load}"
    return draw_chart(f"{shape.name}: {best.title}", subtitle, points or [_point(found)], best.groups[0].fit.ranks)


def _at(planner: Planner, shape: ModelShape, title: str, users: int) -> Point | None:
    """Return the same plan under another load; None where it is not among the plans there."""
    demand = replace(planner.demand, users=users)
    found = search([shape], planner.cluster, demand, planner.engine, planner.calibration)
    same = [plan for plan in found.plans if plan.title == title]
    return _point(replace(found, plans=tuple(same))) if same else None


def _point(found: SearchResult) -> Point:
    plan = found.plans[0]
    return Point(users=found.demand.users, itl_s=plan.itl_s, tokens_per_s=plan.tokens_per_s)


def _write(path: Path, text: str) -> None:
    if path.suffix != ".svg":
        raise UserInputError(f"{path} is not an SVG file", hint=f"--chart {path.with_suffix('.svg')}")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None
