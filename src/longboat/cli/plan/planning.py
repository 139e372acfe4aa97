"""What ``plan``, ``fit`` and ``cost`` have in common: their options, read into what the planner takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longboat.builtin import describe, is_builtin
from longboat.catalog.library import Library
from longboat.catalog.names import nearest_names
from longboat.catalog.quantization.requantize import QUANTIZATIONS, requantized
from longboat.catalog.read_model import read_model
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.shared.catalog_files import read_library
from longboat.core.errors import UserInputError
from longboat.core.plan import EngineMemory
from longboat.folders import home_folder
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.cluster_edits import edited
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.machines.engine_choice import engine_for
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.formats import as_computed, lacks_kernels
from longboat.planner.memory.split_shape import EngineKind
from longboat.planner.predict.calibration.calibration_file import built_in_calibration, read_calibration
from longboat.planner.predict.constants import Calibration
from longboat.planner.search.advice import Advisor, constraint_of, quantizations_below
from longboat.planner.search.demand import Demand, parse_slo
from longboat.planner.search.reasons import explained
from longboat.planner.search.search import SearchResult, search

__all__ = ("Planner", "machines_of", "own_calibration", "planner_for", "read_shape")

LIVE = "live"
HUB_PREFIX = "hf:"
MAX_DEGREE = 64
OFFLINE = "HF_HUB_OFFLINE"
DEFAULT_ON = "give machines: --on '4x(2xRTX4090), net=10GbE', --on cluster.yaml or --on live"
# Words that mean another format with each engine.
BITS = {
    "q4": {"vllm": "awq", "sglang": "awq", "llama.cpp": "q4_k_m"},
    "q8": {"vllm": "fp8", "sglang": "fp8", "llama.cpp": "q8_0"},
}
BIT_WORDS = {"4bit": "q4", "4-bit": "q4", "int4": "q4", "8bit": "q8", "8-bit": "q8", "int8": "q8"}
AS_STORED = ("stored", "as-stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """The catalog, constants, machines and demand of one command."""

    library: Library
    calibration: Calibration
    cluster: Cluster
    base: Cluster | None  # machines before the changes; None: no changes
    demand: Demand
    quantization: str = ""
    offline: bool = False

    @property
    def engine(self) -> EngineKind:
        return engine_for(self.cluster, self.library)

    def read(self, source: str) -> ModelShape:
        """Return the model as it is stored. Raises UserInputError, TransferError."""
        return _shape_of(source, self.library, offline=self.offline)

    def plan(self, shape: ModelShape, *, fewer_bits: bool = True) -> SearchResult:
        """Return plans, in the quantizations that are asked for; else as stored, or in fewer bits where only that fits.

        Raises UserInputError with the constraint and the nearest changes where nothing fits.
        """
        engine = self.engine
        shapes = self._allowed(shape, engine)
        found = self._search(shapes, engine)
        if not found.plans and not self.quantization and fewer_bits:
            for fewer in quantizations_below(shape, engine, self.cluster):
                tried = self._search([fewer], engine)
                if tried.plans:
                    return self._explained(tried, engine)
        if not found.plans:
            raise self._refusal(shapes[0], found, engine, fixed=bool(self.quantization) or not fewer_bits)
        return self._explained(found, engine)

    def _explained(self, found: SearchResult, engine: EngineKind) -> SearchResult:
        """Return the plans with reasons; where limits are missed also with what would keep them."""
        best, *others = explained(found).plans
        if best.missed:
            changes = Advisor(best.groups[0].shape, found, engine, self.calibration).changes_that_meet()
            best = replace(best, reasons=(*best.reasons, f"what would keep the limit: {'; '.join(changes)}"))
        return replace(found, plans=(best, *others))

    def brief(self, shape: ModelShape) -> SearchResult:
        """Return what ``plan`` does, without reasons, and without looking for changes where nothing fits."""
        engine = self.engine
        shapes = self._allowed(shape, engine)
        found = self._search(shapes, engine)
        fewer = () if self.quantization else quantizations_below(shape, engine, self.cluster)
        for one in fewer:
            if found.plans:
                break
            found = replace(self._search([one], engine), rejected=found.rejected)
        if not found.plans:
            what = f"{shape.name} does not fit: {constraint_of(shapes[0], found)}"
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

    def _search(self, shapes: Sequence[ModelShape], engine: EngineKind) -> SearchResult:
        return search(shapes, self.cluster, self.demand, engine, self.calibration)

    def _allowed(self, shape: ModelShape, engine: EngineKind) -> list[ModelShape]:
        words = [word.strip().lower() for word in self.quantization.split(",") if word.strip()]
        entry = self.library.engines.find(engine)
        shapes = [_in(shape, word, engine) for word in words] or [as_computed(shape, entry)]
        if engine != "llama.cpp":
            self._check_kernels(shapes, engine)
        return shapes

    def _check_kernels(self, shapes: Sequence[ModelShape], engine: EngineKind) -> None:
        for shape in shapes:
            for pool in pools_of(self.cluster):
                if why := lacks_kernels(pool.entry, shape.quantization):
                    able = next(quantizations_below(requantized(shape, "bf16"), engine, self.cluster), None)
                    raise UserInputError(
                        f"{shape.name} in {shape.quantization}: {why}",
                        hint=f"--quantization {able.quantization if able else 'bf16'}",
                    )

    def _refusal(self, shape: ModelShape, found: SearchResult, engine: EngineKind, *, fixed: bool) -> UserInputError:
        changes = Advisor(shape, found, engine, self.calibration).changes_that_fit(fixed_quantization=fixed)
        stored = f" in {shape.quantization}" if shape.quantization else ""
        what = f"{shape.name}{stored} does not fit on {found.cluster.title}: {constraint_of(shape, found)}"
        hint = f"what would fit: {'; '.join(changes)}" if changes else "take a smaller model: longboat fit --on … lists"
        return UserInputError(what, hint=hint)


def _in(shape: ModelShape, word: str, engine: EngineKind) -> ModelShape:
    if word in AS_STORED:
        return shape
    bits = BITS.get(BIT_WORDS.get(word, word))
    name = bits[engine] if bits else word
    if name != shape.quantization and not bits:
        _check_engine(shape, name, engine)
    return shape if name == shape.quantization else requantized(shape, name)


def _check_engine(shape: ModelShape, name: str, engine: EngineKind) -> None:
    """Refuse GGUF mixes with engines other than llama.cpp, and the other formats with it."""
    if name not in QUANTIZATIONS:
        return
    mixed = name.startswith(("q", "iq"))
    if mixed != (engine == "llama.cpp") and name not in ("bf16", "fp16", "mxfp4"):
        size = requantized(shape, name).weight_bytes
        other = "q4" if "4" in name or name == "awq" else "q8"
        raise UserInputError(
            f"{engine} does not compute weights in {name} well, {size / 1024**3:.1f} GiB of {shape.name}",
            hint=f"--quantization {BITS[other][engine]}, or --engine {'llamacpp' if mixed else 'vllm'}",
        )


def planner_for(request: PlanRequest) -> Planner:
    """Return the planner of a command.

    Raises UserInputError for every mistake in the options; ClusterError where ``--on live`` finds no cluster.
    """
    _check_numbers(request)
    library = read_library(request.catalog or ())
    base, edits = machines_of(request.on, library), request.edits
    demand = Demand(
        users=request.concurrency,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        context_tokens=request.context,
        settings=EngineMemory(kv_bits=request.kv_bits),
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
        offline=request.offline or bool(os.environ.get(OFFLINE)),
    )


def _check_numbers(request: PlanRequest) -> None:
    for name in ("concurrency", "prompt_tokens", "output_tokens"):
        option, value = f"--{name.replace('_', '-')}", getattr(request, name)
        if value < 1:
            raise UserInputError(f"{option} {value} is less than 1", hint=f"{option} 1 is the least")
    tokens = request.prompt_tokens + request.output_tokens
    if request.context and request.context < tokens:
        raise UserInputError(
            f"--context {request.context} is shorter than a request of --prompt-tokens {request.prompt_tokens} and "
            f"--output-tokens {request.output_tokens}",
            hint=f"--context {tokens}, or fewer --prompt-tokens",
        )
    for name, degree in (("tensor", request.tensor), ("pipeline", request.pipeline), ("data", request.data)):
        if not 0 <= degree <= MAX_DEGREE:
            raise UserInputError(
                f"--{name} {degree} is not between 1 and {MAX_DEGREE}", hint=f"--{name} 2, or leave it out"
            )
    if request.kv_bits not in (8, 16):
        raise UserInputError(f"--kv-bits {request.kv_bits} cannot be planned", hint="--kv-bits 16 or 8")


def machines_of(on: str, library: Library) -> Cluster:
    """Return the machines of ``--on``: a text, a cluster file, or ``live``. Raises UserInputError, ClusterError."""
    if not on.strip():
        raise UserInputError("no machines are given", hint=DEFAULT_ON)
    if on.strip().lower() == LIVE:
        return _live(library)
    path = Path(on)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _of_file(path, on, library)
    return parse_cluster(on, library)


def _of_file(path: Path, on: str, library: Library) -> Cluster:
    """Read a cluster file; pydantic is loaded only here, as most plans are asked of a text."""
    from longboat.cli.plan.plan_cluster_file import cluster_of_file
    from longboat.spec.files.cluster_file import load_cluster_file

    return cluster_of_file(load_cluster_file(_text(path), on), library, on)


def _live(library: Library) -> Cluster:
    """Return the nodes of the running cluster; Ray is loaded only here."""
    from longboat.cli.shared.cluster_at_hand import connect
    from longboat.planner.machines.cluster_live import cluster_of_nodes

    with connect() as session:
        return cluster_of_nodes(session.nodes(), library)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        near = nearest_names(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        hint = f"did you mean {near[0]}?" if near else "is the path right? docs/concepts/planning.md shows a file"
        raise UserInputError(f"{path} cannot be read: {error}", hint=hint) from None


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
    return read_model(name, library, None if offline else _fetch(name, library))


def own_calibration() -> Calibration:
    """Return the user's, else the built-in one. Raises UserInputError where the user's cannot be read."""
    own = home_folder() / "calibration.toml"
    return read_calibration(_text(own), str(own)) if own.is_file() else built_in_calibration()


def _fetch(source: str, library: Library) -> Callable[[str, int, int], bytes] | None:
    """Return a reader of the hub; None for names of the catalog and local files, which need no network."""
    if "/" not in source or Path(source).exists():
        return None
    from longboat.cli.plan.ranged_fetch import ranged_fetch

    return ranged_fetch()
