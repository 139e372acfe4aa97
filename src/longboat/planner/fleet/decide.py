"""Numbers for everything that a fleet leaves to decide, and a forecast for each model, before anything starts.

What models with numbers and models that run have is taken first; then come the others in the order of the file, each
leaving room for one replica of those after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from longboat.core.errors import Problem, UserInputError
from longboat.core.plan import GangShape
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.choose import Choice, KnownModel, choose, demand_of, model_of, smallest
from longboat.planner.fleet.decide_unmodelled import NUMBERS, no_room, reason_of, room_unsplit, unsplit
from longboat.planner.fleet.gang_layouts import gang_demand
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.fleet.node_pools import NODE_ID, why_unmixed, why_weakest
from longboat.planner.fleet.pack import GangDemand, pack
from longboat.planner.fleet.place import NoShape
from longboat.planner.fleet.placement_context import PlacementContext
from longboat.planner.fleet.verdict import judge, smaller_settings
from longboat.planner.memory.draft import draft_cache_bytes
from longboat.planner.search.forecast import Forecast, with_curve
from longboat.planner.search.objectives import doubted, unkept
from longboat.planner.search.search import Search

__all__ = ("Decision", "decide", "same_engines")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The models with numbers, and why they have these."""

    models: tuple[WantedModel, ...]  # those that could not be decided have 1 replica that is not split
    forecasts: Mapping[str, Forecast]  # by model
    reasons: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]  # what could not be checked, and doubts
    problems: tuple[Problem, ...]
    undecided: tuple[Problem, ...] = ()  # those of the problems for which there are no numbers

    def model_named(self, name: str) -> WantedModel:
        """Return the model with that name."""
        return next(model for model in self.models if model.name == name)


def decide(
    models: Sequence[WantedModel],
    inputs: PlannerInputs,
    kept: Mapping[str, WantedModel],
    running: Mapping[str, WantedModel],
) -> Decision:
    """Return numbers for all models of a fleet.

    kept: models whose numbers were decided before, with them; where they find no room any more they are decided again
        (a part may be left to decide)
    running: what runs now, by name: models of it that stay as they are are not judged
    """
    return _Decider(models, inputs, kept, running).decide()


class _Decider:
    def __init__(
        self,
        models: Sequence[WantedModel],
        inputs: PlannerInputs,
        kept: Mapping[str, WantedModel],
        running: Mapping[str, WantedModel],
    ) -> None:
        self.models, self.inputs, self.kept, self.running = models, inputs, kept, running
        self.asked = {model.name: model for model in models}
        self.found: dict[str, WantedModel] = {}
        self.taken: dict[str, GangDemand] = {}
        self.forecasts: dict[str, Forecast] = {}
        self.reasons: dict[str, str] = {}
        self.notes: dict[str, list[str]] = {}
        self.problems: list[Problem] = []
        self.undecided: list[Problem] = []

    def decide(self) -> Decision:
        for model in self.models:
            if model.is_decided:
                self._take(model)
        self._take_kept()
        later = [model for model in self.models if model.name not in self.found]
        for index, model in enumerate(later):
            self._choose(model, self._reserved(later[index + 1 :]))
        for name in [name for name in self.taken if self.found[name].num_replicas]:
            self._judge(self.found[name])
        return Decision(
            models=tuple(self.found[model.name] for model in self.models),
            forecasts={name: with_curve(one, self.inputs.calibration) for name, one in self.forecasts.items()},
            reasons=self.reasons,
            notes={name: tuple(dict.fromkeys(notes)) for name, notes in self.notes.items()},
            problems=tuple(self.problems),
            undecided=tuple(self.undecided),
        )

    def _take(self, wanted: WantedModel) -> None:
        self.found[wanted.name] = wanted
        if gang := self._gang(wanted):
            self.taken[wanted.name] = gang_demand(wanted, gang)

    def _take_kept(self) -> None:
        """Take what was decided before as long as there is room for all of it."""
        for model in self.models:
            kept = self.kept.get(model.name)
            if kept is None or model.is_decided or not kept.is_decided:
                continue
            gang = self._gang(kept)
            if gang and pack([*self.taken.values(), gang_demand(kept, gang)], self.inputs.nodes).complete:
                self._take(kept)
                self.reasons[kept.name] = "decided before"

    def _choose(self, wanted: WantedModel, reserved: Sequence[GangDemand]) -> None:
        """Decide with the split that the model runs with, if it has one; else with any."""
        kept = self.kept.get(wanted.name)
        tries = [kept] if kept is not None and not kept.is_decided else []
        others = list(self.taken.values())  # a try that does not fit takes its room too
        for one in (*tries, wanted):
            refusal = self._tried(one, [*others, *reserved])
            if refusal and reserved:
                refusal = self._tried(one, others)
            if refusal is None:
                return
        self._refuse(wanted, refusal)

    def _tried(self, wanted: WantedModel, taken: Sequence[GangDemand]) -> Problem | None:
        """Decide, and return what is wrong; None where nothing is."""
        if wanted.replicas == 0:
            self._take(unsplit(wanted, 0))
            return None
        asked = wanted if wanted.max_replicas is None else replace(wanted, replicas=None)  # split as for the whole load
        model = model_of(asked, self.inputs)
        if model is None:
            return self._choose_unmodelled(wanted, taken)
        try:
            choice = _with_count(choose(model, taken), wanted)
        except UserInputError as error:
            return Problem(where="split", what=error.message, hint=error.hint)
        if choice.best is None:
            return _without_room(model, taken)
        self._take(choice.wanted)
        self.forecasts[wanted.name], self.reasons[wanted.name] = choice.best, reason_of(choice)
        if problem := _misfit(choice.best, choice.wanted):
            return _unmixed(model, taken, problem)
        self._note_bindings(choice.wanted)
        return None

    def _note_bindings(self, wanted: WantedModel) -> None:
        if any(NODE_ID in labels for labels in wanted.placement.stages):
            note = "stages are bound to nodes by ids, which change when a node starts again: start them with --label"
            self.notes.setdefault(wanted.name, []).append(note)
        elif why := why_weakest(PlacementContext(wanted, self.inputs)):
            self.notes.setdefault(wanted.name, []).append(f"{why}: {_LABEL_HINT}")

    def _choose_unmodelled(self, wanted: WantedModel, taken: Sequence[GangDemand]) -> Problem | None:
        """Decide without a model of memory: no split, and a replica for each user as far as there is room."""
        if not wanted.split_is_decided and wanted.engine != "fake":
            why = self.inputs.unknown.get(wanted.name, "nothing is known of it")
            return Problem(where="split", what=f"auto needs the model's layers and weights: {why}", hint=NUMBERS)
        count = room_unsplit(PlacementContext(wanted, self.inputs), taken)
        if not count:
            return no_room(PlacementContext(wanted, self.inputs))
        self._take(unsplit(wanted, count))
        self.reasons[wanted.name] = "nothing is planned for this engine or model: a replica for each user"
        return None

    def _reserved(self, later: Sequence[WantedModel]) -> list[GangDemand]:
        """Return one replica of each model that is decided later, where there is room."""
        reserved: list[GangDemand] = []
        for wanted in later:
            model, taken = model_of(wanted, self.inputs), [*self.taken.values(), *reserved]
            one = smallest(model, taken) if model else self._unsplit_one(wanted, taken)
            reserved += [one] if one else []
        return reserved

    def _unsplit_one(self, wanted: WantedModel, taken: Sequence[GangDemand]) -> GangDemand | None:
        one = unsplit(wanted, 1)
        gang = self._gang(one) if room_unsplit(PlacementContext(one, self.inputs), taken) else None
        return gang_demand(one, gang) if gang else None

    def _judge(self, wanted: WantedModel) -> None:
        """Note doubts about a model whose numbers are known, and refuse it where it cannot start."""
        self._note_room(wanted)
        if wanted.name not in self.forecasts and not self._foreseen(wanted):
            return
        forecast, model = self.forecasts[wanted.name], model_of(wanted, self.inputs)
        verdict = judge(forecast, wanted)
        if tokens := wanted.speculative_tokens:
            note = f"planned as if no proposal were accepted: a step gives 1 to {1 + tokens} tokens, 1 is assumed"
            self.notes.setdefault(wanted.name, []).append(note)
        notes = (*(_shortened(forecast, model) if model else ()), *_room(forecast), *_draft(forecast))
        for doubt in (*notes, *verdict.doubts):
            self.notes.setdefault(wanted.name, []).append(doubt)
        for doubt in doubted(forecast, wanted.objectives, self.inputs.calibration):
            self.notes.setdefault(wanted.name, []).append(doubt)
        lost = unkept(forecast, wanted.objectives, self.inputs.calibration)
        if lost and not _runs(wanted, self.running):
            self._refuse(wanted, lost)
        certain = forecast.fit.fits or self.asked[wanted.name].is_decided
        if verdict.refusal and certain and not _runs(wanted, self.running):
            self._refuse(wanted, verdict.refusal)

    def _note_room(self, wanted: WantedModel) -> None:
        """Note where a model that grows with its load finds no room for all the replicas that it may have."""
        most, now = wanted.max_replicas, self.taken[wanted.name]
        if most is None or most <= now.replicas:
            return
        grown = [replace(now, replicas=most), *(one for name, one in self.taken.items() if name != wanted.name)]
        short = pack(grown, self.inputs.nodes).unplaced.get(wanted.name, 0)
        if short:
            note = f"it may have {most} replicas, and there is room for {most - short} beside what the others have now"
            self.notes.setdefault(wanted.name, []).append(note)

    def _foreseen(self, wanted: WantedModel) -> bool:
        """Make the forecast of a model with numbers, and return whether that went well; what hides it is noted."""
        why = self.inputs.unknown.get(wanted.name, "")
        model, gang = model_of(wanted, self.inputs), self.taken[wanted.name].shape
        if model is not None and gang.pipeline <= len(model.shape.layers):
            try:
                layout = model.context.layout(wanted, gang, pack(list(self.taken.values()), self.inputs.nodes))
                self.forecasts[wanted.name] = Search((), model.forecaster()).best(layout)
                return True
            except UserInputError as error:
                why = error.message
        if why:
            self.notes.setdefault(wanted.name, []).append(f"not planned: {why}")
        return False

    def _refuse(self, model: WantedModel, problem: Problem | None) -> None:
        assert problem is not None
        index = [one.name for one in self.models].index(model.name)
        where = f"models[{index}].{problem.where}" if problem.where else f"models[{index}]"
        found = Problem(where=where, what=problem.what, hint=problem.hint)
        self.problems.append(found)
        if model.name not in self.found:
            self.found[model.name] = unsplit(model, 1 if model.replicas is None else model.replicas)
            self.undecided.append(found)

    def _gang(self, wanted: WantedModel) -> GangShape | None:
        found = PlacementContext(wanted, self.inputs).gang(wanted)
        return None if isinstance(found, NoShape) else found


def _with_count(choice: Choice, wanted: WantedModel) -> Choice:
    """Return the choice with the count of a model that grows with its load: only its split was searched for."""
    if wanted.max_replicas is None:
        return choice
    return replace(choice, wanted=replace(choice.wanted, replicas=wanted.replicas))


def _runs(wanted: WantedModel, running: Mapping[str, WantedModel]) -> bool:
    """Return whether the model's engines run already."""
    now = running.get(wanted.name)
    return now is not None and now.num_replicas > 0 and same_engines(now, wanted)


_LABEL_HINT = "start them with --label longboat.accelerator=NAME"


def same_engines(one: WantedModel, other: WantedModel) -> bool:
    """Return whether both are served by the same engines, however many and whatever they are planned for."""
    return _uncounted(replace(one, load=other.load)) == _uncounted(other)


def _uncounted(wanted: WantedModel) -> WantedModel:
    return replace(wanted, replicas=1, max_replicas=None, objectives=())


def _misfit(forecast: Forecast, wanted: WantedModel) -> Problem | None:
    """Return what is short where even the best layout does not fit."""
    short = forecast.fit.shortage
    if forecast.fit.fits or short is None:
        return None
    refusal = judge(forecast, wanted).refusal
    hint = smaller_settings(forecast) or (refusal.hint if refusal else short.hint)
    hint = hint or "longboat plan names what would fit"
    return Problem(where="split", what=f"no layout fits; the nearest: {short.what}", hint=hint)


def _unmixed(model: KnownModel, taken: Sequence[GangDemand], problem: Problem) -> Problem:
    """Return the problem with why stages were not put on several sorts of nodes, and what would fit so."""
    if weakest := why_weakest(model.context):
        problem = replace(problem, what=f"{problem.what}; {weakest}", hint=_LABEL_HINT)
    why = why_unmixed(model.context)
    if not why:
        return problem
    placement = replace(model.wanted.placement, nodes=None, stages=())
    free: Choice = choose(model.written(replace(model.wanted, placement=placement)), taken)
    hint = problem.hint
    if free.best is not None and free.best.fit.fits and free.wanted.placement.stages:
        layers = " + ".join(map(str, free.best.fit.split.stages))
        hint = f"leave it out: {layers} layers on {free.best.layout.hardware} would fit"
    return replace(problem, what=f"{problem.what}; not tried: several sorts of nodes, as {why}", hint=hint)


def _without_room(model: KnownModel, taken: Sequence[GangDemand]) -> Problem:
    """Return why not one layout finds room, with the number of replicas for which one does and fits."""
    problem, count = no_room(model.context), model.wanted.replicas
    if count in (None, 1):
        return problem
    fewer = choose(model.written(replace(model.wanted, replicas=None)), taken).best
    if fewer is None or not fewer.fit.fits:
        return problem
    most = fewer.layout.replicas
    what = f"{count} replicas find no room, whatever their split; {most} on {fewer.layout.hardware} would"
    return Problem(where="replicas", what=what, hint=f"write replicas: {most}, or add nodes")


def _shortened(forecast: Forecast, model: KnownModel) -> tuple[str, ...]:
    """Return a note where the forecast is for shorter requests than the load's."""
    told = forecast.demand
    if demand_of(model.wanted, model.shape, model.settings).prompt_tokens == told.prompt_tokens:
        return ()
    lengths = f"prompts of {told.prompt_tokens} and answers of {told.output_tokens} tokens"
    return (f"planned for {lengths}: the cache holds no longer ones",)


def _room(forecast: Forecast) -> tuple[str, ...]:
    """Return a note about the memory that the room for adapters takes."""
    room, ranks = forecast.fit.load.adapters, forecast.fit.ranks
    if room is None or not ranks:
        return ()
    taken = max(rank.overhead.get("adapters", 0) for rank in ranks)
    return (f"room for adapters ({room.slots} slots of rank {room.rank}) takes {taken / 2**20:.0f} MiB of each rank",)


def _draft(forecast: Forecast) -> tuple[str, ...]:
    """Return a note about the memory that a model which proposes tokens takes."""
    load, split, ranks = forecast.fit.load, forecast.fit.split, forecast.fit.ranks
    if load.draft is None or not ranks:
        return ()
    taken = ranks[-1].overhead.get("draft model", 0) / 2**20
    cache = draft_cache_bytes(split, load) / 2**10
    each = "each rank" if split.pipeline == 1 else "each rank of the last stage"
    weights = f"draft model {load.draft.name} takes {taken:.0f} MiB of {each}"
    return (f"{weights}, and {cache:.4g} KiB of cache for each token",)
