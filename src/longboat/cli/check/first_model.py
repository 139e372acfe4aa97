"""What a machine has, and the model of the catalog that suits it best."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from longboat.catalog.library import Library
from longboat.catalog.names import find_name, normal_name
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import Planner, planner_for
from longboat.cli.shared.catalog_files import read_library
from longboat.core.errors import LongboatError, UserInputError
from longboat.planner.compare.choices import checkpoint, known_checkpoint
from longboat.planner.search.search import SearchResult
from longboat.spec.types.source import check_source, is_gguf, name_from_source

__all__ = ("Choice", "Found", "choose", "look")

GIB = 1024**3
WITHOUT_CARDS = "builtin:tiny"
CONTEXT = 8192
"""Longest request of a first file, in tokens: models that hold more leave room for more requests."""
GATED = ("meta-llama/", "google/")
"""Publishers whose models ask for a licence and a token before they can be fetched: not for a first start."""
HUB = "hf:"
COMFORT_ITL_S = 0.05
"""Most seconds between two tokens that read well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Machines. words: as ``--on`` takes them; empty: there is no accelerator that the planner knows."""

    words: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A model for the file."""

    source: str
    name: str
    why: tuple[str, ...] = ()
    split: bool = False  # it needs several cards
    context: int = 0  # 0: the model's longest
    engine: str = "vllm"
    expected: str = ""


def look(on: str = "") -> Found:
    """Look at this machine, or take the machines of ``--on``. Raises UserInputError for words that name none."""
    from longboat.cli.plan.planning import machines_of

    if on:
        title = machines_of(on, read_library()).title
        return Found(words=on, lines=(f"machines: {title}",))
    from longboat.cluster.host.hardware import accelerator_name, node_memory_bytes
    from longboat.cluster.preflight.surroundings import this_machine

    node, name = this_machine(), accelerator_name()
    cards = f"{node.num_gpus:.0f} x {name or 'a card without a name'}" if node.num_gpus else "no NVIDIA card"
    memory = f"{node_memory_bytes() / GIB:.0f} GiB of memory"
    line = f"this machine: {cards}, {memory}, {node.num_cpus:.0f} CPUs, network {_network()}"
    words = f"1x({node.num_gpus:.0f}x{name})" if node.num_gpus and name else ""
    return Found(words=words if _is_known(words, read_library()) else "", lines=(line,))


def _is_known(words: str, library: Library) -> bool:
    from longboat.planner.machines.cluster_text import parse_cluster

    try:
        return bool(words) and bool(parse_cluster(words, library).num_cards)
    except UserInputError:
        return False


def _network() -> str:
    from longboat.cluster.host.nic import head_address, interface_of

    try:
        address = head_address()
        return f"{address} ({interface_of(address)})"
    except LongboatError:
        return "without an address that other machines reach"


def choose(found: Found, users: int, model: str = "") -> Choice:
    """Return the model that was asked for, else the largest one of the catalog that serves ``users`` well.

    Raises UserInputError for a model that is not a source, or that does not fit.
    """
    planner = planner_for(PlanRequest(on=found.words, concurrency=users)) if found.words else None
    if model:
        return _asked(model, planner)
    if planner is None:
        why = "the small model that is part of Longboat: it needs no card and no download"
        return Choice(source=WITHOUT_CARDS, name="tiny", why=(why, "a larger one: hf:Qwen/Qwen3-0.6B"))
    best = max(_fitting(planner), key=lambda one: one[0].num_params, default=None)
    if best is None:
        why = "no model of the catalog fits; longboat fit --all says why"
        return Choice(source=WITHOUT_CARDS, name="tiny", why=(why,))
    shape, source, plans = best
    return _choice(source, shape, plans, "the largest open model of the catalog that serves this load well here")


def _asked(model: str, planner: Planner | None) -> Choice:
    source = _source_of(model)
    if wrong := check_source(source, str(Path.cwd())):
        raise UserInputError(wrong.what, hint=wrong.hint)
    if is_gguf(source):
        return _gguf(source, has_cards=planner is not None)
    named = Choice(source=source, name=name_from_source(source))
    if planner is None or not source.startswith(HUB):
        return named
    try:
        shape = planner.read(source)
    except LongboatError:
        return replace(named, why=("it is not in the catalog: longboat check says whether it fits",))
    return _as_stored(source, shape, planner, is_fixed=model == source)


def _source_of(model: str) -> str:
    """Return the source that a name means: ``hf:Qwen/Qwen3-32B`` for ``Qwen3-32B`` or Ollama's ``qwen3:32b``.

    Raises UserInputError for a repository of GGUF files without the name of one, and for a name that the catalog only
    plans as another model of the same shape.
    """
    known = read_library().models
    if "/" not in model and (name := find_name(model, known.known)):
        hub = known[name].hub
        if normal_name(model) not in normal_name(hub):
            what = f"the catalog plans {model} as {hub}, and a file needs the model itself"
            raise UserInputError(what, hint=f"--model hf:ORG/NAME, or --model {HUB}{hub}")
        return f"{HUB}{hub}"
    if model.startswith(HUB) and model.lower().endswith("-gguf"):
        hint = f"name one of its files: {model}:FILE.gguf"
        raise UserInputError(f"{model} holds GGUF files for several formats", hint=hint)
    return model


def _gguf(source: str, *, has_cards: bool) -> Choice:
    """Return a choice with the engine that reads such files."""
    slow = "llama.cpp computes on processors here; cards need files of safetensors, such as AWQ, and vLLM"
    why = ("longboat check says whether it fits", *((slow,) if has_cards else ()))
    return Choice(source=source, name=name_from_source(source), why=why, engine="llama.cpp", context=CONTEXT)


def _as_stored(source: str, shape: ModelShape, planner: Planner, *, is_fixed: bool) -> Choice:
    """Return the model in the files asked for, else in the publisher's own of fewer bits.

    is_fixed: the source names one repository, and no other may take its place
    Raises UserInputError, with the files that would fit, where it fits in no such way.
    """
    try:
        return _choice(source, shape, planner.plan(shape, fewer_bits=False), "as you asked")
    except UserInputError as error:
        fewer = _in_fewer_bits(source, shape, planner)
        if fewer is None:
            raise UserInputError(error.message, hint=f"{error.hint} (options of longboat plan)") from None
        quantization, known = fewer
    if not known:
        hint = f"look for {checkpoint(source.removeprefix(HUB), quantization)}, which fits: --model {HUB}ORG/NAME"
        raise UserInputError(f"{source} does not fit as it is stored", hint=hint)
    if is_fixed:
        raise UserInputError(f"{source} does not fit as it is stored", hint=f"--model {HUB}{known} fits")
    reason = f"{source} does not fit; these files of the same publisher do"
    return _choice(f"{HUB}{known}", shape, planner.plan(shape), reason)


def _in_fewer_bits(source: str, shape: ModelShape, planner: Planner) -> tuple[str, str] | None:
    """Return the format in which the model fits, and its publisher's files; None where it fits in none."""
    try:
        best = planner.brief(shape).plans[0]
    except UserInputError:
        return None
    quantization = best.groups[0].shape.quantization
    return quantization, known_checkpoint(source.removeprefix(HUB), quantization)


def _fitting(planner: Planner) -> list[tuple[ModelShape, str, SearchResult]]:
    """Return models that fit as they are published, and are fast enough to be read along."""
    from longboat.catalog.model_entry import shape_of_entry

    found = []
    for entry in planner.library.models.values():
        if entry.hub.startswith(GATED):
            continue
        shape = shape_of_entry(entry)
        try:
            plans = planner.brief(shape)
        except UserInputError:
            continue
        is_stored = plans.plans[0].groups[0].shape.quantization == shape.quantization
        if is_stored and plans.plans[0].itl_s <= COMFORT_ITL_S and plans.plans[0].max_sequences >= planner.demand.users:
            found.append((shape, f"hf:{entry.hub}", plans))
    return found


def _choice(source: str, shape: ModelShape, plans: SearchResult, reason: str) -> Choice:
    best = plans.plans[0]
    forecast = best.groups[0]
    expected = (
        f"{best.tokens_per_s:.0f} tokens/s in all, first token after {best.ttft_s * 1e3:.0f} ms, "
        f"then one every {best.itl_s * 1e3:.1f} ms"
    )
    longest = forecast.fit.max_context_tokens
    return Choice(
        source=source,
        name=name_from_source(source),
        why=(f"{reason}: {shape.num_params / 1e9:.1f}B parameters, {best.title}", f"expected: {expected}"),
        split=forecast.layout.num_ranks > 1,
        context=min(longest, CONTEXT) if longest else 0,
        expected=expected,
    )
