"""``longboat plan MODEL --on "any of: …"``: how many machines of each kind serve a load, and what ``--rate`` brings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import typer

from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.outputs.size_row import Row
from longboat.cli.plan.plan_document import demand_values, model_values, plan_values, print_refused
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import Planner, check_generates, planner_for
from longboat.core.errors import LongboatError, UserInputError
from longboat.planner.compare.arrivals import Queue, waits_for
from longboat.planner.compare.sizing import Served, Wanted, missed_by_waiting, sized
from longboat.planner.cost import purchase_usd, rent_usd_per_hour
from longboat.planner.machines.cluster_text import split_parts

__all__ = ("LIMIT_MISSED", "is_any_of", "rate_notes", "rate_values", "run_size", "size_values")

LIMIT_MISSED = 6
"""Exit code of a plan that misses a limit of --slo, or does not serve --rate, with --must-keep."""
ANY_OF = "any of:"
# Shorter waits are not worth a figure.
LEAST_WAIT_S = 1e-3
EXAMPLE = "--on 'any of: 8xH100, 4xL40S, 2xRTX4090, net=25GbE'"


def is_any_of(on: str) -> bool:
    """Return whether machines are kinds to choose from."""
    return on.strip().lower().startswith(ANY_OF)


def rate_values(served: Served | None, rate: float, queue: Queue | None = None) -> dict[str, Any] | None:
    """Return what is served of a rate, for ``--json``; None where none is asked for."""
    if served is None:
        return None
    waits = queue is not None and isfinite(queue.wait_s)
    return {
        "asked": rate,
        "served": served.requests_per_s,
        "concurrency": served.users,
        "kept": served.kept,
        "utilization": queue.utilization if queue else None,
        "wait_ms": queue.wait_s * 1e3 if queue and waits else None,
    }


def rate_notes(served: Served | None, rate: float, queue: Queue | None = None) -> Iterator[str]:
    """Yield how many requests a rate keeps under way, or that it is not served."""
    if served is None:
        return
    if served.kept:
        yield f"{rate:g} requests/s keep {served.users} under way at once"
        if queue is not None:
            yield _queue_note(queue)
            if (late := missed_by_waiting(served.plan, queue.wait_s)) and not served.plan.missed:
                yield f"with that wait the limit is missed: {late}"
    else:
        yield f"{rate:g} requests/s are not served: {served.requests_per_s:.3g} are, with {served.users} under way"


def _queue_note(queue: Queue) -> str:
    if not isfinite(queue.wait_s):
        return f"the replicas serve at most {1 / queue.utilization:.0%} of that: with uneven arrivals the queue grows"
    used = f"that is {queue.utilization:.0%} of what the replicas serve at most: uneven arrivals"
    if abs(queue.wait_s) < LEAST_WAIT_S:
        return f"{used} (--burstiness) change the first token by less than {LEAST_WAIT_S * 1e3:g} ms"
    later = "later" if queue.wait_s > 0 else "earlier"
    return f"{used} (--burstiness) make the first token {abs(queue.wait_s) * 1e3:.3g} ms {later} than predicted below"


def run_size(model: str, request: PlanRequest, *, as_json: bool, must_keep: bool) -> None:
    """Print how many machines of each kind serve the load."""
    planners = _planners(request)
    try:
        planners, shape = _read(model, planners)
    except LongboatError as error:
        if as_json:
            print_refused(error, None, request.kv_bits)
        raise
    rows = _rows(planners, shape)
    if as_json:
        print(json.dumps(_document(shape, planners[0][1], rows), indent=2))
    else:
        from longboat.cli.plan.outputs.size_table import print_rows

        print_rows(shape, planners[0][1], rows)
    if must_keep and all(row.problem for row in rows):
        raise typer.Exit(LIMIT_MISSED)


def size_values(model: str, request: PlanRequest) -> dict[str, Any]:
    """Return how many machines of each kind serve the load, as ``--json`` prints it. Raises LongboatError."""
    planners, shape = _read(model, _planners(request))
    return _document(shape, planners[0][1], _rows(planners, shape))


def _read(model: str, planners: Sequence[tuple[str, Planner]]) -> tuple[list[tuple[str, Planner]], ModelShape]:
    """Return the planners for the model, and its shape. Raises LongboatError."""
    check_generates(shape := planners[0][1].read(model))
    return [(title, planner.for_files(model, shape)) for title, planner in planners], shape


def _rows(planners: Sequence[tuple[str, Planner]], shape: ModelShape) -> list[Row]:
    return sorted((_row(title, planner, shape) for title, planner in planners), key=lambda row: row.order)


def _planners(request: PlanRequest) -> list[tuple[str, Planner]]:
    """Return a planner for one machine of each kind. Raises UserInputError for what cannot be read."""
    if request.add or request.remove or request.swap:
        raise UserInputError("--add, --remove and --swap change given machines", hint=EXAMPLE)
    parts = [part.strip() for part in split_parts(request.on.strip()[len(ANY_OF) :], ",") if part.strip()]
    settings = [part for part in parts if "=" in part]
    kinds = [part for part in parts if "=" not in part]
    if not kinds:
        raise UserInputError(f"{request.on!r} does not name a kind of machine", hint=EXAMPLE)
    return [(kind, planner_for(replace(request, on=", ".join((kind, *settings))))) for kind in kinds]


def _row(title: str, planner: Planner, shape: ModelShape) -> Row:
    waits = waits_for(planner.burstiness, planner.calibration)
    wanted = Wanted(demand=planner.demand, rate=planner.rate, wait_s=waits)
    try:
        found = sized(planner.cluster, wanted, lambda cluster, users: planner.best_for(shape, cluster, users))
    except UserInputError as error:
        return Row(title=title, sized=None, problem=str(error))
    return Row(
        title=title,
        sized=found,
        problem=found.problem,
        purchase_usd=purchase_usd(found.cluster),
        rent_usd_per_hour=rent_usd_per_hour(found.cluster),
    )


def _document(shape: ModelShape, planner: Planner, rows: Sequence[Row]) -> dict[str, Any]:
    demand = {**demand_values(planner.demand), "rate": planner.rate or None}
    kinds = [_row_values(row, planner.rate) for row in rows]
    return {**model_values(shape, planner.demand.settings.kv_bits), "demand": demand, "kinds": kinds}


def _row_values(row: Row, rate: float) -> dict[str, Any]:
    served = row.sized.served if row.sized else None
    return {
        "machine": row.title,
        "count": row.sized.cluster.num_nodes if row.sized else None,
        "keeps": not row.problem,
        "problem": row.problem,
        "rate": rate_values(served, rate) if rate else None,
        "purchase_usd": row.purchase_usd,
        "rent_usd_per_hour": row.rent_usd_per_hour,
        "plan": plan_values(served.plan) if served else None,
    }
