"""One question of the console to the planner, and its answer: what the commands ``plan`` and ``fit`` would say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from longboat.cli.plan.plan_options import PlanRequest
from longboat.core.errors import ClusterError, LongboatError, UserInputError

__all__ = ("Question", "answer_bytes", "answer_to")

MOST_PLANS = 12
_MODEL = re.compile(r"[A-Za-z0-9][\w.:+-]*(/[A-Za-z0-9][\w.+-]*)?", re.ASCII)
_Text = Annotated[str, Meta(max_length=2000)]
_Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of the page: the options of ``longboat plan`` by their names."""

    kind: Literal["plan", "fit", "models"] = "plan"
    # a name of the catalog or the hub, or of a model that the fleet serves
    model: Annotated[str, Meta(max_length=256)] = ""
    served: bool = False
    on: _Text = "live"
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 8
    rate: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    prompt_tokens: _Tokens = 1024
    output_tokens: _Tokens = 256
    slo: Annotated[str, Meta(max_length=200)] = ""
    quantization: Annotated[str, Meta(max_length=200)] = ""


def answer_bytes(question: bytes) -> bytes:
    """Return ``{"value": …}``, or ``{"error", "hint"}``. Raises nothing."""
    try:
        return json.dumps({"value": answer_to(msgspec.json.decode(question, type=Question))}).encode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return json.dumps({"error": f"the question cannot be read: {error}", "hint": ""}).encode()
    except LongboatError as error:
        return json.dumps({"error": error.message, "hint": error.hint}).encode()
    except Exception as error:  # the person at the console learns it
        return json.dumps({"error": f"the planner failed: {type(error).__name__}: {error}", "hint": ""}).encode()


def answer_to(asked: Question) -> dict[str, Any]:
    """Return the document of the answer. Raises LongboatError."""
    if asked.kind == "models":
        from longboat.cli.shared.catalog_files import read_library

        return {"models": sorted(read_library(()).models)}
    _check_machines(asked.on)
    request = PlanRequest(
        on=asked.on,
        concurrency=asked.concurrency,
        rate=asked.rate,
        prompt_tokens=asked.prompt_tokens,
        output_tokens=asked.output_tokens,
        slo=asked.slo,
        quantization=asked.quantization,
    )
    return _fits(request) if asked.kind == "fit" else _plans(asked, request)


def _fits(request: PlanRequest) -> dict[str, Any]:
    from longboat.cli.plan.fit_command import fitting_rows
    from longboat.cli.plan.planning import planner_for

    planner = planner_for(request)
    planner.engine  # noqa: B018 - refuses machines that no engine runs on
    return {"cluster": planner.cluster.title, "models": [asdict(row) for row in fitting_rows(planner)]}


def _plans(asked: Question, request: PlanRequest) -> dict[str, Any]:
    from longboat.cli.plan.cost_command import Money, assumptions_of
    from longboat.cli.plan.outputs.size_command import is_any_of, rate_notes, rate_values, size_values
    from longboat.cli.plan.plan_command import whole_values
    from longboat.cli.plan.plan_document import cost_values
    from longboat.cli.plan.plan_notes import name_notes, notes_of
    from longboat.cli.plan.planning import check_generates, planner_for
    from longboat.planner.cost import cost_of

    model = _source_of(asked.model) if asked.served else _checked(asked.model)
    if is_any_of(request.on):
        return size_values(model, request)
    planner = planner_for(request)
    check_generates(shape := planner.read(model))
    planner, served = planner.for_files(model, shape).at_rate(shape)
    found = planner.plan(shape)
    queue = planner.queue(served)
    notes = [*name_notes(model, shape), *rate_notes(served, request.rate, queue), *notes_of(shape, request.kv_bits)]
    document = whole_values(shape, request, found, rate_values(served, request.rate, queue), notes)
    assumed = assumptions_of(Money(), planner.library)
    costs = [cost_values(cost_of(plan, found.cluster, found.demand, assumed)) for plan in found.plans[:MOST_PLANS]]
    shown = [_short(plan) | {"cost": cost} for plan, cost in zip(document["plans"], costs, strict=False)]
    return document | {"plans": shown, "num_plans": len(document["plans"])}


def _short(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan with the memory of its fullest rank, and without the list of all."""
    groups = [
        {name: value for name, value in group.items() if name != "ranks"} | {"fullest": _fullest(group["ranks"])}
        for group in plan["groups"]
    ]
    return {**plan, "groups": groups}


def _fullest(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    return max(ranks, key=lambda rank: rank["used_bytes"] / max(1, rank["memory_bytes"]))


def _checked(model: str) -> str:
    """Return a name of the catalog or the hub. Raises UserInputError for the path of a file."""
    if not _MODEL.fullmatch(model) or ".." in model:
        raise UserInputError(
            f"model: {model[:100]!r} is not a name of the catalog or the hub",
            hint="write Qwen3-32B or Qwen/Qwen3-32B; longboat plan also takes files",
        )
    return model


def _check_machines(on: str) -> None:
    if on.strip().endswith((".yaml", ".yml")) or "/" in on or os.sep in on:
        raise UserInputError(
            f"machines: {on[:100]!r} is a file", hint="write 4x(2xRTX4090), net=10GbE; longboat plan also takes files"
        )


def _source_of(model: str) -> str:
    """Return where the weights of a served model come from. Raises ClusterError, UserInputError."""
    from longboat.cli.shared.cluster_at_hand import connect_quickly
    from longboat.spec.files.load import load_fleet

    with connect_quickly() as session:
        report = session.report()
    if report is None or not report.document:
        raise ClusterError("the fleet's controller has no fleet file", hint="choose a name of the catalog")
    found = load_fleet(report.document, "the running fleet").model_named(model)
    if found is None:
        raise UserInputError(f"model: the fleet serves no model {model[:100]!r}", hint="longboat status lists them")
    return found.source
