"""``longboat plan MODEL``: the split that serves a load best, why, and what changes would bring."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_chart import Point, draw_chart
from longboat.cli.plan.plan_document import found_values
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import Planner, planner_for
from longboat.core.errors import UserInputError
from longboat.planner.search.search import SearchResult, search

__all__ = ("run_plan",)

CHART_USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def run_plan(model: str, request: PlanRequest, *, as_json: bool, chart: Path | None) -> None:
    """Print the plans, and write the chart where one is wanted."""
    planner = planner_for(request)
    shape = planner.read(model)
    found = planner.plan(shape)
    base = planner.before(shape)
    if as_json:
        document = {
            "model": shape.name,
            "estimate": list(found.plans[0].groups[0].shape.estimate),
            **found_values(found),
            "base": None if base is None else found_values(base),
        }
        print(json.dumps(document, indent=2))
    else:
        from longboat.cli.plan.plan_tables import print_found

        print_found(found, base)
    if chart is not None:
        _write(chart, _chart(planner, found))


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
        raise UserInputError(f"{path} cannot be written: {error}", hint="give a folder that exists") from None
