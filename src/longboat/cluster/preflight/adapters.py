"""What the nodes say about the adapters of a fleet, before anything is started: revisions, rank, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longboat.catalog.read_adapter import read_adapter_folder
from longboat.catalog.readers.adapter import AdapterFacts, misfit
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import Problem, UserInputError
from longboat.spec.types.adapters import DEFAULT_RANK, RANKS, AdapterSpec, least_rank
from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = ("AdapterFinding", "Findings", "adapter_paths", "adapter_problems", "find_adapter", "with_adapter_facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFinding:
    """What an adapter's folder holds on a node."""

    facts: AdapterFacts | None = None
    problem: str = ""  # why it cannot be used; empty where it can
    hint: str = ""


Findings = Mapping[str, Mapping[str, AdapterFinding]]
"""Node → folder → what it holds there; the node by the name that people know."""


def find_adapter(path: str) -> AdapterFinding:
    """Read the adapter in this folder of this node."""
    try:
        return AdapterFinding(facts=read_adapter_folder(Path(path)))
    except UserInputError as error:
        return AdapterFinding(problem=error.message, hint=error.hint)


def adapter_paths(fleet: Fleet) -> tuple[str, ...]:
    """Return the folders of all adapters."""
    return tuple(dict.fromkeys(entry.source for _, entry in fleet.adapters()))


def with_adapter_facts(fleet: Fleet, findings: Findings, running: Fleet | None = None) -> Fleet:
    """Return the fleet with the revision of each adapter, and the rank that each model has room for.

    running: the fleet that runs; its replicas keep their room while it suffices
    """
    models = tuple(
        _with_facts(model, findings, running.model_named(model.name) if running else None) for model in fleet.models
    )
    return fleet.model_copy(update={"models": models})


def _with_facts(model: ModelSpec, findings: Findings, now: ModelSpec | None) -> ModelSpec:
    spec = model.adapters
    if spec is None:
        return model
    found = [_facts(entry, findings) for entry in spec.entries]
    entries = tuple(
        entry if facts is None or entry.revision else entry.model_copy(update={"revision": facts.revision})
        for entry, facts in zip(spec.entries, found, strict=True)
    )
    rank = spec.rank
    if rank is None:
        highest = max((facts.rank for facts in found if facts), default=DEFAULT_RANK)
        kept = now.adapters.rank if now is not None and now.adapters is not None else None
        rank = kept if kept and kept >= highest else least_rank(highest) or RANKS[-1]
    return model.model_copy(update={"adapters": spec.model_copy(update={"entries": entries, "rank": rank})})


def adapter_problems(fleet: Fleet, findings: Findings, shapes: Mapping[str, ModelShape]) -> list[Problem]:
    """Return what is wrong with the adapters. shapes: of the models, as far as they are known."""
    return [
        problem
        for index, model in enumerate(fleet.models)
        for number, entry in enumerate(model.adapters.entries if model.adapters is not None else ())
        for problem in _problems(
            entry, model, findings, shapes.get(model.name), f"models[{index}].adapters.entries[{number}]"
        )
    ]


def _problems(
    entry: AdapterSpec, model: ModelSpec, findings: Findings, shape: ModelShape | None, where: str
) -> Iterator[Problem]:
    told = {node: found[entry.source] for node, found in findings.items() if entry.source in found}
    for node, finding in told.items():
        if finding.problem:
            yield Problem(where=f"{where}.source", what=f"node {node}: {finding.problem}", hint=finding.hint)
            return
    revisions = {node: finding.facts.revision for node, finding in told.items() if finding.facts}
    if len(set(revisions.values())) > 1:
        held = ", ".join(f"{node} has {revision}" for node, revision in revisions.items())
        what = f"the nodes hold different files in {entry.source}: {held}"
        yield Problem(where=f"{where}.source", what=what, hint="copy the same folder to every node")
        return
    if (facts := _facts(entry, findings)) is None:
        return
    if entry.revision is not None and entry.revision != facts.revision:
        what = f"{entry.source} holds revision {facts.revision}, not {entry.revision}"
        yield Problem(where=f"{where}.revision", what=what, hint=f"write revision: {facts.revision}, or leave it out")
    room = model.adapters.rank if model.adapters is not None else None
    if room is not None and facts.rank > room:
        near = least_rank(facts.rank)
        hint = f"write adapters: {{rank: {near}}}" if near else f"engines have room for rank {RANKS[-1]} at most"
        yield Problem(where=f"{where}.source", what=f"its rank is {facts.rank}, the room is for {room}", hint=hint)
    if shape is not None and (why := misfit(facts, shape)):
        base = f"; it was trained on {facts.base}" if facts.base else ""
        hint = f"serve it with the model that it was trained for{base}"
        yield Problem(where=f"{where}.source", what=f"it does not fit {model.name}: {why}", hint=hint)


def _facts(entry: AdapterSpec, findings: Findings) -> AdapterFacts | None:
    told: Sequence[AdapterFinding] = [found[entry.source] for found in findings.values() if entry.source in found]
    return next((finding.facts for finding in told if finding.facts is not None), None)
