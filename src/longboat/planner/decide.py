"""A fleet file with ``auto`` in it becomes one with numbers, and every model gets its outlook, before anything starts.

What models with numbers and models that run have is taken first; then come the others in the order of the file, each
leaving room for one replica of those after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from longboat.catalog.library import Library
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import Problem, UserInputError
from longboat.core.plan import EngineMemory, GangShape
from longboat.planner.check import Surroundings
from longboat.planner.choose import choose, smallest
from longboat.planner.decide_plainly import NUMBERS, no_room, plain, reason_of, room_plainly
from longboat.planner.mixed import NODE_ID, why_unmixed
from longboat.planner.outlook import Asked, Outlook, look_ahead, with_curve
from longboat.planner.pack import GangDemand, pack
from longboat.planner.place import NoShape, shape_gang
from longboat.planner.predict.constants import Calibration
from longboat.planner.site import Site, ground_of
from longboat.planner.verdict import judge
from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = ("Decision", "Knowledge", "decide", "same_engines")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of machines and models, beside what the nodes told.

    shapes: model → its weights and layers; unknown: model → why they are not known
    memory: model → what its engine's settings say; models that are not there have an engine without a model
    memory_bytes, accelerators: of nodes, by their id
    """

    library: Library
    calibration: Calibration
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, EngineMemory] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    accelerators: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """fleet: with numbers for everything that could be decided; undecided models have 1 replica that is not split

    outlooks: model → what is expected; reasons: model → why so; notes: model → what could not be checked, and doubts
    problems: why it cannot be; undecided: those of them about models for which there are no numbers
    """

    fleet: Fleet
    outlooks: Mapping[str, Outlook]
    reasons: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...]
    undecided: tuple[Problem, ...] = ()


def decide(
    fleet: Fleet, around: Surroundings, known: Knowledge, kept: Mapping[str, ModelSpec], running: Fleet | None
) -> Decision:
    """Numbers for the whole fleet.

    kept: models whose numbers were decided before, with them; where they find no room any more they are decided anew
        (a part may be left to decide)
    running: what runs now: models of it that stay as they are are not judged
    """
    return _Decider(fleet, around, known, kept, running).decide()


class _Decider:
    def __init__(
        self,
        fleet: Fleet,
        around: Surroundings,
        known: Knowledge,
        kept: Mapping[str, ModelSpec],
        running: Fleet | None,
    ) -> None:
        self.fleet, self.around, self.known, self.kept, self.running = fleet, around, known, kept, running
        self.specs: dict[str, ModelSpec] = {}
        self.taken: dict[str, GangDemand] = {}
        self.outlooks: dict[str, Outlook] = {}
        self.reasons: dict[str, str] = {}
        self.notes: dict[str, list[str]] = {}
        self.problems: list[Problem] = []
        self.undecided: list[Problem] = []

    def decide(self) -> Decision:
        for model in self.fleet.models:
            if model.is_decided:
                self._take(model)
        self._take_kept()
        later = [model for model in self.fleet.models if model.name not in self.specs]
        for index, model in enumerate(later):
            self._choose(model, self._reserved(later[index + 1 :]))
        for name in [name for name in self.taken if self.specs[name].num_replicas]:
            self._look(self.specs[name])
        return Decision(
            fleet=self.fleet.model_copy(update={"models": tuple(self.specs[m.name] for m in self.fleet.models)}),
            outlooks={name: with_curve(one, self.known.calibration) for name, one in self.outlooks.items()},
            reasons=self.reasons,
            notes={name: tuple(dict.fromkeys(notes)) for name, notes in self.notes.items()},
            problems=tuple(self.problems),
            undecided=tuple(self.undecided),
        )

    def _take(self, spec: ModelSpec) -> None:
        self.specs[spec.name] = spec
        if gang := self._gang(spec):
            self.taken[spec.name] = _demand(spec, gang)

    def _take_kept(self) -> None:
        """What was decided before holds as long as there is room for all of it."""
        for model in self.fleet.models:
            spec = self.kept.get(model.name)
            if spec is None or model.is_decided or not spec.is_decided:
                continue
            gang = self._gang(spec)
            if gang and pack([*self.taken.values(), _demand(spec, gang)], self.around.nodes).complete:
                self._take(spec)
                self.reasons[spec.name] = "decided before"

    def _choose(self, model: ModelSpec, reserved: Sequence[GangDemand]) -> None:
        """With the split that it runs with, if it has one; else any."""
        kept = self.kept.get(model.name)
        tries = [kept] if kept is not None and not kept.is_decided else []
        for spec in (*tries, model):
            refusal = self._tried(spec, [*self.taken.values(), *reserved])
            if refusal and reserved:
                refusal = self._tried(spec, list(self.taken.values()))
            if refusal is None:
                return
        self._refuse(model, refusal)

    def _tried(self, model: ModelSpec, taken: Sequence[GangDemand]) -> Problem | None:
        """Decide; None where that went well."""
        if model.replicas == 0:
            self._take(plain(model, 0))
            return None
        asked = self._asked(model)
        if asked is None:
            return self._choose_plainly(model, taken)
        try:
            choice = choose(asked, self._site(model), taken)
        except UserInputError as error:
            return Problem(where="split", what=error.message, hint=error.hint)
        if choice.best is None:
            return self._without_room(asked, taken)
        self._take(choice.spec)
        self.outlooks[model.name], self.reasons[model.name] = choice.best, reason_of(choice)
        if problem := _misfit(choice.best):
            return self._unmixed(asked, taken, problem)
        self._note_bindings(choice.spec)
        return None

    def _note_bindings(self, spec: ModelSpec) -> None:
        if any(NODE_ID in labels for labels in spec.placement.stages or ()):
            note = "stages are bound to nodes by ids, which change when a node starts again: start them with --label"
            self.notes.setdefault(spec.name, []).append(note)

    def _unmixed(self, asked: Asked, taken: Sequence[GangDemand], problem: Problem) -> Problem:
        """The same problem, with why stages were not put on several sorts of nodes, and what would fit so."""
        site = self._site(asked.spec)
        why = why_unmixed(asked.spec, site)
        if not why:
            return problem
        placement = asked.spec.placement.model_copy(update={"nodes": None, "stages": None})
        free = choose(replace(asked, spec=asked.spec.model_copy(update={"placement": placement})), site, taken)
        hint = problem.hint
        if free.best is not None and free.best.fit.fits and free.spec.placement.stages:
            layers = " + ".join(map(str, free.best.fit.split.stages))
            hint = f"leave it out: {layers} layers on {free.best.ground.title} would fit"
        return replace(problem, what=f"{problem.what}; not tried: several sorts of nodes, as {why}", hint=hint)

    def _without_room(self, asked: Asked, taken: Sequence[GangDemand]) -> Problem:
        """Why not one layout finds room, with the number of replicas for which one does and fits."""
        spec, site = asked.spec, self._site(asked.spec)
        problem = no_room(spec, site)
        if spec.replicas in ("auto", 1):
            return problem
        fewer = choose(replace(asked, spec=spec.model_copy(update={"replicas": "auto"})), site, taken).best
        if fewer is None or not fewer.fit.fits:
            return problem
        what = f"{spec.num_replicas} replicas find no room, whatever their split; {fewer.replicas} on "
        what += f"{fewer.ground.title} would"
        return Problem(where="replicas", what=what, hint=f"write replicas: {fewer.replicas}, or add nodes")

    def _choose_plainly(self, model: ModelSpec, taken: Sequence[GangDemand]) -> Problem | None:
        """Without a model of memory: no split, and a replica for each user as far as there is room."""
        if not model.split_is_decided and model.engine.kind != "fake":
            why = self.known.unknown.get(model.name, "nothing is known of it")
            return Problem(where="split", what=f"auto needs the model's layers and weights: {why}", hint=NUMBERS)
        count = room_plainly(model, self._site(model), taken)
        if not count:
            return no_room(model, self._site(model))
        self._take(plain(model, count))
        self.reasons[model.name] = "nothing is planned for this engine or model: a replica for each user"
        return None

    def _reserved(self, later: Sequence[ModelSpec]) -> list[GangDemand]:
        """One replica of each that is decided later, where there is room."""
        reserved: list[GangDemand] = []
        for model in later:
            asked, taken = self._asked(model), [*self.taken.values(), *reserved]
            one = smallest(asked, self._site(model), taken) if asked else self._plain_one(model, taken)
            reserved += [one] if one else []
        return reserved

    def _plain_one(self, model: ModelSpec, taken: Sequence[GangDemand]) -> GangDemand | None:
        one = plain(model, 1)
        gang = self._gang(one) if room_plainly(one, self._site(one), taken) else None
        return _demand(one, gang) if gang else None

    def _look(self, spec: ModelSpec) -> None:
        """Outlook and verdict of one model whose numbers are known."""
        if spec.name not in self.outlooks and not self._foreseen(spec):
            return
        outlook = self.outlooks[spec.name]
        for doubt in (*_shortened(outlook), *(verdict := judge(outlook)).doubts):
            self.notes.setdefault(spec.name, []).append(doubt)
        if verdict.refusal and (outlook.fit.fits or self._has_numbers(spec)) and not self._runs(spec):
            self._refuse(spec, verdict.refusal)

    def _foreseen(self, spec: ModelSpec) -> bool:
        """Whether the outlook of a model with numbers is known; what hides it is noted."""
        why = self.known.unknown.get(spec.name, "")
        asked, demand = self._asked(spec), self.taken[spec.name]
        if asked is not None and demand.shape.pipeline <= len(asked.shape.layers):
            site, packing = self._site(spec), pack(list(self.taken.values()), self.around.nodes)
            try:
                ground = ground_of(spec, demand.shape, packing, site)
                self.outlooks[spec.name] = look_ahead(asked, demand.shape, spec.num_replicas, ground, site.calibration)
                return True
            except UserInputError as error:
                why = error.message
        if why:
            self.notes.setdefault(spec.name, []).append(f"not planned: {why}")
        return False

    def _has_numbers(self, spec: ModelSpec) -> bool:
        told = self.fleet.model_named(spec.name)
        return told is not None and told.is_decided

    def _runs(self, spec: ModelSpec) -> bool:
        """Whether its engines run so already."""
        now = self.running.model_named(spec.name) if self.running else None
        return now is not None and now.num_replicas > 0 and same_engines(now, spec)

    def _refuse(self, model: ModelSpec, problem: Problem | None) -> None:
        assert problem is not None
        index = [one.name for one in self.fleet.models].index(model.name)
        where = f"models[{index}].{problem.where}" if problem.where else f"models[{index}]"
        found = Problem(where=where, what=problem.what, hint=problem.hint)
        self.problems.append(found)
        if model.name not in self.specs:
            self.specs[model.name] = plain(model, 1 if model.replicas == "auto" else model.num_replicas)
            self.undecided.append(found)

    def _gang(self, spec: ModelSpec) -> GangShape | None:
        site = self._site(spec)
        found = shape_gang(spec, site.facts, site.nodes, site.platform)
        return None if isinstance(found, NoShape) else found

    def _site(self, spec: ModelSpec) -> Site:
        return Site(
            nodes=self.around.nodes,
            library=self.known.library,
            calibration=self.known.calibration,
            memory_bytes=self.known.memory_bytes,
            accelerators=self.known.accelerators,
            facts=self.around.facts.get(spec.name),
            platform=self.around.platforms.get(spec.name, "cpu"),
        )

    def _asked(self, spec: ModelSpec) -> Asked | None:
        shape, memory = self.known.shapes.get(spec.name), self.known.memory.get(spec.name)
        return Asked(spec=spec, shape=shape, memory=memory) if shape is not None and memory is not None else None


def same_engines(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether both are served by the same engines, however many and whatever they are planned for."""
    apart = {"replicas", "update", "load"}
    return one.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def _demand(spec: ModelSpec, gang: GangShape) -> GangDemand:
    return GangDemand(model=spec.name, shape=gang, replicas=spec.num_replicas, labels=spec.placement.labels)


def _misfit(outlook: Outlook) -> Problem | None:
    """The best layout may be one that does not fit."""
    short = outlook.fit.shortage
    if outlook.fit.fits or short is None:
        return None
    refusal = judge(outlook).refusal
    hint = refusal.hint if refusal else short.hint or "longboat plan names what would fit"
    return Problem(where="split", what=f"no layout fits; the nearest: {short.what}", hint=hint)


def _shortened(outlook: Outlook) -> tuple[str, ...]:
    if outlook.asked.lengths_ratio == 1:
        return ()
    told = outlook.asked.demand
    lengths = f"prompts of {told.prompt_tokens} and answers of {told.output_tokens} tokens"
    return (f"planned for {lengths}: the cache holds no longer ones",)
