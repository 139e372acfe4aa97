"""What ``plan``, ``fit`` and ``cost`` have in common: their options, read into what the planner takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longboat.builtin import describe, is_builtin
from longboat.catalog.families.fitness import fitness_for
from longboat.catalog.library import Library
from longboat.catalog.names import find_name, nearest_names
from longboat.catalog.read_model import read_model
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_options import PlanRequest, check_numbers
from longboat.cli.shared.catalog_files import read_library
from longboat.core.errors import UserInputError
from longboat.folders import home_folder
from longboat.planner.compare.arrivals import Arrivals, Queue, queue_of
from longboat.planner.compare.choices import format_reason
from longboat.planner.compare.comparison import Comparison
from longboat.planner.compare.sizing import Served, served_at
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.cluster_edits import edited
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.machines.engine_choice import engine_for
from longboat.planner.memory.engine import OFFLOADING
from longboat.planner.memory.formats import as_computed, is_gguf
from longboat.planner.memory.split_shape import EngineKind
from longboat.planner.predict.calibration.calibration_file import built_in_calibration, read_calibration
from longboat.planner.predict.constants import Calibration
from longboat.planner.search.advice import Advisor, constraint_of
from longboat.planner.search.demand import Demand, parse_slo
from longboat.planner.search.ranking import Plan
from longboat.planner.search.reasons import explained
from longboat.planner.search.search import SearchResult

__all__ = ("HERE", "Planner", "check_generates", "machines_of", "own_calibration", "planner_for", "read_shape")

GENERATING_MODELS = ("LMHeadModel", "ChatModel", "GLMModel", "DoubleHeadsModel")
"""Endings of classes that generate text although they end in Model."""
LIVE = "live"
HERE = "here"
HUB_PREFIX = "hf:"
OFFLINE = "HF_HUB_OFFLINE"
DEFAULT_ON = "give machines: --on '4x(2xRTX4090), net=10GbE', --on cluster.yaml, --on here or --on live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """The catalog, constants, machines and demand of one command."""

    library: Library
    calibration: Calibration
    cluster: Cluster
    base: Cluster | None  # machines before the changes; None: no changes
    demand: Demand
    quantization: str = ""
    rate: float = 0.0  # requests a second that the machines are to serve; 0: ``demand`` says how many at once
    burstiness: float = 1.0  # of the arrivals (``Arrivals``)
    offline: bool = False

    @property
    def engine(self) -> EngineKind:
        return engine_for(self.cluster, self.library)

    def read(self, source: str) -> ModelShape:
        """Return the model as it is stored. Raises UserInputError, TransferError."""
        return _shape_of(source, self.library, offline=self.offline)

    def for_files(self, source: str, shape: ModelShape) -> Planner:
        """Return the planner for llama.cpp where no engine is asked for, and GGUF is the format asked for or stored."""
        formats = self.quantization.lower().split(",") if self.quantization else [shape.quantization]
        in_gguf = all(is_gguf(name.strip()) for name in formats) or source.lower().endswith(".gguf")
        if not in_gguf or self.cluster.engine:
            return self
        base = self.base and replace(self.base, engine=OFFLOADING)
        return replace(self, cluster=replace(self.cluster, engine=OFFLOADING), base=base)

    def plan(self, shape: ModelShape, *, fewer_bits: bool = True) -> SearchResult:
        """Return plans, in the quantizations that are asked for; else as stored, or in fewer bits where that is better.

        Raises UserInputError with the constraint and the nearest changes where nothing fits.
        """
        comparison = self.comparison(shape)
        found = comparison.best(self.cluster, fewer_bits=fewer_bits)
        if not found.plans:
            engine, first = self.engine, comparison.stored(self.cluster)
            stored = comparison.formats(engine)
            raise self._refusal(stored[0], first, engine, fixed=bool(self.quantization) or not fewer_bits)
        return self._explained(found, shape)

    def at_rate(self, shape: ModelShape) -> tuple[Planner, Served | None]:
        """Return the planner for as many requests at once as the rate brings, and what is served; None: nothing fits.

        Without a rate, the planner itself is returned.
        """
        if not self.rate:
            return self, None
        served = served_at(lambda users: self.best_for(shape, self.cluster, users), self.rate)
        return (replace(self, demand=replace(self.demand, users=served.users)) if served else self), served

    def queue(self, served: Served | None) -> Queue | None:
        """Return the queue before the replicas that serve the rate; None without a rate, or where it is not served."""
        if served is None or not served.kept:
            return None
        return queue_of(served.plan, Arrivals(rate=self.rate, burstiness=self.burstiness), self.calibration)

    def best_for(self, shape: ModelShape, cluster: Cluster, users: int) -> Plan | None:
        """Return the best plan on machines for a number of requests at once; None where nothing fits."""
        comparison = self.comparison(shape, replace(self.demand, users=users))
        return comparison.best(cluster, fewer_bits=True).best

    def comparison(self, shape: ModelShape, demand: Demand | None = None) -> Comparison:
        """Return searches for the model under the command's demand, or another."""
        return Comparison(
            shape=shape,
            library=self.library,
            calibration=self.calibration,
            demand=demand or self.demand,
            quantization=self.quantization,
        )

    def _explained(self, found: SearchResult, shape: ModelShape) -> SearchResult:
        """Return the plans with reasons: the format first; where limits are missed also what would keep them."""
        best, *others = explained(found).plans
        if not self.quantization and (told := self._format_told(best, [*others, *found.behind], shape)):
            stored = as_computed(shape, self.library.engines.find(best.groups[0].engine))
            changed = best.groups[0].shape.quantization != stored.quantization
            best = replace(best, reasons=(told, *best.reasons), changed_format=told if changed else "")
        if best.missed:
            engine = best.groups[0].engine
            changes = Advisor(best.groups[0].shape, found, engine, self.calibration).changes_that_meet()
            best = replace(best, reasons=(*best.reasons, f"what would keep the limit: {'; '.join(changes)}"))
        return replace(found, plans=(best, *others))

    def _format_told(self, best: Plan, others: Sequence[Plan], shape: ModelShape) -> str:
        """Return what to say of the format of the weights; nothing where the model's own was the only one."""
        entry = self.library.engines.find(best.groups[0].engine)
        stored = as_computed(shape, entry)
        own = best.groups[0].shape.quantization
        others = [plan for plan in others if not plan.idle or plan.idle == best.idle]  # others are of a part only
        other = next((plan for plan in others if plan.groups[0].shape.quantization != own), None)
        name = find_name(shape.name, self.library.models.known)
        return format_reason(best, stored, other, self.library.models[name].hub if name else shape.name)

    def brief(self, shape: ModelShape) -> SearchResult:
        """Return what ``plan`` does, without reasons, and without looking for changes where nothing fits."""
        comparison = self.comparison(shape)
        found = comparison.best(self.cluster, fewer_bits=True)
        if not found.plans:
            stored, first = comparison.formats(self.engine), comparison.stored(self.cluster)
            what = f"{shape.name} does not fit: {constraint_of(stored[0], first)}"
            raise UserInputError(what, hint="longboat plan names changes that would make it fit")
        return found

    def before(self, shape: ModelShape) -> SearchResult | None:
        """Return the same on the machines before the changes; None where nothing was changed, or nothing fits there."""
        if self.base is None:
            return None
        try:
            return replace(self, cluster=self.base, base=None).plan(shape)
        except UserInputError:
            return None

    def _refusal(self, shape: ModelShape, found: SearchResult, engine: EngineKind, *, fixed: bool) -> UserInputError:
        changes = Advisor(shape, found, engine, self.calibration).changes_that_fit(fixed_quantization=fixed)
        stored = f" in {shape.quantization}" if shape.quantization else ""
        what = f"{shape.name}{stored} does not fit on {found.cluster.title}: {constraint_of(shape, found)}"
        if uncounted := self.demand.settings.unknown:
            what += f"; not counted: {', '.join(uncounted)}"
        hint = f"what would fit: {'; '.join(changes)}" if changes else "take a smaller model: longboat fit --on … lists"
        return UserInputError(what, hint=hint)


def planner_for(request: PlanRequest) -> Planner:
    """Return the planner of a command.

    Raises UserInputError for every mistake in the options; ClusterError where ``--on live`` finds no cluster.
    """
    check_numbers(request)
    library = read_library(request.catalog or ())
    base, edits = machines_of(request.on, library), request.edits
    demand = Demand(
        users=request.concurrency,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        prefix_share=request.prefix_share,
        context_tokens=request.context,
        settings=request.settings,
        slo=parse_slo(request.slo),
        split=request.split,
        data_attention=True,
    )
    return Planner(
        library=library,
        calibration=own_calibration(),
        cluster=edited(base, edits, library),
        base=base if edits else None,
        demand=demand,
        quantization=request.quantization,
        rate=request.rate,
        burstiness=request.burstiness,
        offline=request.offline or bool(os.environ.get(OFFLINE)),
    )


def machines_of(on: str, library: Library) -> Cluster:
    """Return the machines of ``--on``: a text, a cluster file, ``live`` or ``here``.

    Raises UserInputError, ClusterError.
    """
    if not on.strip():
        raise UserInputError("no machines are given", hint=DEFAULT_ON)
    if on.strip().lower() == LIVE:
        return _live(library)
    if on.strip().lower() == HERE:
        return _here(library)
    path = Path(on)
    if path.suffix in (".yaml", ".yml") or os.path.isfile(path):
        return _of_file(path, on, library)
    return parse_cluster(on, library)


def _of_file(path: Path, on: str, library: Library) -> Cluster:
    """Read a cluster file; pydantic is loaded only here, as most plans are asked of a text."""
    from longboat.cli.plan.plan_cluster_file import cluster_of_file
    from longboat.spec.files.cluster_file import load_cluster_file

    return cluster_of_file(load_cluster_file(_text(path), on), library, on)


def _live(library: Library) -> Cluster:
    """Return the nodes of the running cluster; Ray is loaded only where no node daemon answers."""
    from longboat.cli.shared.cluster_at_hand import connect_quickly
    from longboat.planner.machines.cluster_live import cluster_of_nodes

    with connect_quickly() as session:
        return cluster_of_nodes(session.nodes(), library)


def _here(library: Library) -> Cluster:
    """Return this machine, with the cards that its driver names."""
    from longboat.cluster.host.hardware import accelerator_name
    from longboat.cluster.preflight.surroundings import this_machine
    from longboat.planner.machines.cluster_live import ACCELERATOR_LABELS, cluster_of_nodes

    name = accelerator_name()
    labels = {ACCELERATOR_LABELS[0]: name} if name else {}
    try:
        return cluster_of_nodes([replace(this_machine(), labels=labels)], library)
    except UserInputError as error:  # its driver named the card, and the user wrote nothing that could be mended
        hint = 'name machines like it: --on "1x(1xRTX4090)", or add the card in a catalog file: docs/guides/plan.md'
        raise UserInputError(f"this machine has an {error.message}", hint=hint) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        near = nearest_names(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        hint = f"did you mean {near[0]}?" if near else "check the path; docs/guides/plan.md shows a file"
        why = getattr(error, "strerror", "") or "it is not text in UTF-8"
        raise UserInputError(f"{path} cannot be read: {why}", hint=hint) from None


def check_generates(shape: ModelShape) -> None:
    """Refuse models that generate no text, by what they are."""
    fitness = fitness_for(shape.architecture, "generate")
    if fitness.problem:
        raise UserInputError(fitness.problem, hint=f"in a fleet file {fitness.hint}")
    if shape.architecture.endswith("Model") and not shape.architecture.endswith(GENERATING_MODELS):
        raise UserInputError(
            f"{shape.architecture} has no head for text: it is a model for embeddings",
            hint="in a fleet file write task: embed",
        )


def read_shape(source: str) -> ModelShape:
    """Return the model as it is stored, from the hub where it must be, unless that is forbidden.

    Raises UserInputError, TransferError.
    """
    return _shape_of(source, read_library(), offline=bool(os.environ.get(OFFLINE)))


def _shape_of(source: str, library: Library, *, offline: bool) -> ModelShape:
    """Return a model by the names of the catalog and the hub, and by those that a fleet file has for them."""
    if is_builtin(source):
        told = describe(source)
        return shape_from_config(told.config, name=told.name)
    name = source.removeprefix(HUB_PREFIX)
    return read_model(name, library, None if offline else _fetch(name))


def own_calibration() -> Calibration:
    """Return the user's, else the built-in one. Raises UserInputError where the user's cannot be read."""
    own = home_folder() / "calibration.toml"
    return read_calibration(_text(own), str(own)) if own.is_file() else built_in_calibration()


def _fetch(source: str) -> Callable[[str, int, int], bytes] | None:
    """Return a reader of the hub; None for names of the catalog and local files, which need no network."""
    if "/" not in source or os.path.exists(source):
        return None
    from longboat.cli.plan.ranged_fetch import ranged_fetch

    return ranged_fetch()
