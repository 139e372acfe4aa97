"""The simpler half of deciding: models of which nothing is planned, and decisions in words."""

from __future__ import annotations

from collections.abc import Sequence

from longboat.core.errors import Problem
from longboat.planner.choose import Choice, room_for
from longboat.planner.outlook import Outlook
from longboat.planner.pack import GangDemand
from longboat.planner.place import NoShape, shape_gang
from longboat.planner.site import Site
from longboat.spec.types.fleet import ModelSpec

__all__ = ("NUMBERS", "no_room", "plain", "reason_of", "room_plainly")

NUMBERS = "write numbers: split: {tensor: 1, pipeline: 1}, replicas: 1"


def plain(model: ModelSpec, replicas: int) -> ModelSpec:
    """So many replicas, not split where that was to be decided."""
    split = model.parts.model_copy(update=dict.fromkeys(model.parts.open_parts, 1))
    return model.model_copy(update={"split": split, "replicas": replicas})


def room_plainly(model: ModelSpec, site: Site, taken: Sequence[GangDemand]) -> int:
    """Replicas of the file's number, or one for each user, that find room without a split of their own; 0: none."""
    one = plain(model, 1)
    gang = shape_gang(one, site.facts, site.nodes, site.platform)
    if isinstance(gang, NoShape):
        return 0
    room = room_for(one.model_copy(update={"replicas": model.replicas}), gang, site, taken)
    return room if model.replicas == "auto" or room == model.replicas else 0


def no_room(model: ModelSpec, site: Site) -> Problem:
    """Why not one layout finds room, in the words of a model that is not split."""
    one = plain(model, 1 if model.replicas == "auto" else model.num_replicas)
    found = shape_gang(one, site.facts, site.nodes, site.platform)
    if isinstance(found, NoShape):
        return found.problems[0]
    return Problem(
        where="replicas" if model.split_is_decided else "split",
        what="no layout finds room beside the other models",
        hint="give other models fewer replicas, ask for less in resources, or add nodes",
    )


def reason_of(choice: Choice) -> str:
    """Why this one, with the figures of the next that is of another shape."""
    best = choice.best
    assert best is not None
    if best.fit.fits and best.gang.stages and best.asked.spec.placement.stages is None:
        return f"{_of_equal_nodes(choice)}; best of {choice.tried} layouts: {_figures(best)}"
    if not choice.others:
        fits = f"the only one of {choice.tried} layouts that fits" if choice.tried > 1 else "the only layout with room"
        return fits if best.fit.fits else f"the nearest of {choice.tried} layouts, of which none fits"
    shape = (best.gang.tensor, best.gang.pipeline)
    unlike = (one for one in choice.others if (one.gang.tensor, one.gang.pipeline) != shape)
    other = next(unlike, choice.others[0])
    return f"best of {choice.tried} layouts: {_figures(best)}; {_title(other)}: {_figures(other)}"


def _of_equal_nodes(choice: Choice) -> str:
    """Why stages are on several sorts of nodes."""
    equal = choice.equal
    if equal is None:
        return "no layout on equal nodes fits"
    what = f"on equal nodes, {_title(equal)} on {equal.ground.title}: {_figures(equal)}"
    kept, wanted = equal.fit.max_sequences, equal.fit.load.num_sequences
    return f"{what}, keeps {kept} of {wanted} requests at once" if kept < wanted else what


def _title(outlook: Outlook) -> str:
    gang = outlook.gang
    parts = [f"tensor {gang.tensor}"] if gang.tensor > 1 else []
    parts += [f"pipeline {gang.pipeline}"] if gang.pipeline > 1 else []
    return f"{outlook.replicas} x {', '.join(parts) or 'one rank'}"


def _figures(outlook: Outlook) -> str:
    assert outlook.prediction is not None
    return f"{outlook.tokens_per_s:.0f} tokens/s, ITL {outlook.prediction.itl_s.value * 1e3:.1f} ms"
