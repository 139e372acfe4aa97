"""Decisions about models whose memory is not modelled, and decisions in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.core.errors import Problem
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.choose import Choice
from longboat.planner.fleet.gang_layouts import room_for
from longboat.planner.fleet.pack import GangDemand
from longboat.planner.fleet.place import NoShape
from longboat.planner.fleet.placement_context import PlacementContext
from longboat.planner.search.forecast import Forecast

__all__ = ("NUMBERS", "no_room", "reason_of", "room_unsplit", "unsplit")

NUMBERS = "write numbers: split: {tensor: 1, pipeline: 1}, replicas: 1"


def unsplit(wanted: WantedModel, replicas: int) -> WantedModel:
    """Return the model with that many replicas, and 1 for each part of the split that is left to decide."""
    return replace(
        wanted,
        replicas=replicas,
        tensor=wanted.tensor or 1,
        pipeline=wanted.pipeline or 1,
        data=wanted.data or 1,
        expert=bool(wanted.expert),
    )


def room_unsplit(context: PlacementContext, taken: Sequence[GangDemand]) -> int:
    """Return how many replicas find room without a decided split: the file's number, or one for each user; 0: none."""
    wanted = context.wanted
    gang = context.gang(unsplit(wanted, 1))
    if isinstance(gang, NoShape):
        return 0
    room = room_for(context, replace(unsplit(wanted, 1), replicas=wanted.replicas), gang, taken)
    return room if wanted.replicas in (None, room) else 0


def no_room(context: PlacementContext) -> Problem:
    """Return why not one layout finds room, in the words of a model that is not split."""
    wanted = context.wanted
    found = context.gang(unsplit(wanted, wanted.replicas or 1))
    if isinstance(found, NoShape):
        return found.problems[0]
    return Problem(
        where="replicas" if wanted.split_is_decided else "split",
        what="no layout finds room beside the other models",
        hint="give other models fewer replicas, ask for less in resources, or add nodes",
    )


def reason_of(choice: Choice) -> str:
    """Return why this layout was chosen, with the figures of the next one of another shape."""
    best = choice.best
    assert best is not None
    if best.fit.fits and choice.is_mixed:
        return f"{_of_equal_nodes(choice)}; best of {choice.tried} layouts: {_figures(best)}"
    if not choice.others:
        fits = f"the only one of {choice.tried} layouts that fits" if choice.tried > 1 else "the only layout with room"
        return fits if best.fit.fits else f"the nearest of {choice.tried} layouts, of which none fits"
    unlike = (one for one in choice.others if _shape(one) != _shape(best))
    other = next(unlike, choice.others[0])
    return f"best of {choice.tried} layouts: {_figures(best)}; {_title(other)}: {_figures(other)}"


def _shape(forecast: Forecast) -> tuple[int, int, int, bool]:
    layout = forecast.layout
    return layout.cut, len(layout.places), layout.data, layout.expert_parallel


def _of_equal_nodes(choice: Choice) -> str:
    """Return why stages are on several sorts of nodes."""
    equal = choice.equal
    if equal is None:
        return "no layout on equal nodes fits"
    what = f"on equal nodes, {_title(equal)} on {equal.layout.hardware}: {_figures(equal)}"
    kept, wanted = equal.fit.max_sequences, equal.fit.load.num_sequences
    return f"{what}, keeps {kept} of {wanted} requests at once" if kept < wanted else what


def _title(forecast: Forecast) -> str:
    tensor, pipeline, data, expert = _shape(forecast)
    parts = [f"tensor {tensor}"] if tensor > 1 else []
    parts += [f"pipeline {pipeline}"] if pipeline > 1 else []
    parts += [f"data {data}"] if data > 1 else []
    parts += ["experts divided"] if expert else []
    return f"{forecast.layout.replicas} x {', '.join(parts) or 'one rank'}"


def _figures(forecast: Forecast) -> str:
    return f"{forecast.tokens_per_s:.0f} tokens/s, ITL {forecast.prediction.itl_s.value * 1e3:.1f} ms"
