"""The types of the fleet file: frozen, strict, no unknown fields; every default stands here."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from longboat.core.sizes import size_bytes
from longboat.core.tasks import GENERATE, Task
from longboat.core.wanted import MAX_RANKS
from longboat.engine_names import BUILT_IN, engine_names
from longboat.spec.types.adapters import AdapterSpec, AdaptersSpec
from longboat.spec.types.engine_env import EngineVariables
from longboat.spec.types.external import ExternalModelSpec
from longboat.spec.types.gateway import GatewaySpec
from longboat.spec.types.media import MediaSpec
from longboat.spec.types.replicas import MAX_REPLICAS, ReplicasSpec
from longboat.spec.types.section import Section, checked_size, label_pairs, mistake, with_agreement
from longboat.spec.types.source import MAX_NAME, UNUSABLE, check_source, same_source
from longboat.spec.types.speculation import SpeculativeSpec
from longboat.spec.types.weights import WeightsSpec

__all__ = (
    "API_VERSION",
    "Auto",
    "EngineSpec",
    "Fleet",
    "LoadSpec",
    "ModelSpec",
    "OptionsSpec",
    "PlacementSpec",
    "Ranks",
    "ResourcesSpec",
    "SplitSpec",
    "UpdateSpec",
)

Auto = Literal["auto"]
"""What the planner decides when the fleet comes up."""
API_VERSION: Final = "longboat/v1"
MAX_MODELS = 1000

FLEET_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MODEL_NAME = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9._-]{{0,{MAX_NAME - 2}}}[A-Za-z0-9])?")
ENGINE_VERSION = re.compile(r"\d+(\.\d+)+([.+-]?[A-Za-z0-9]+)*")
COUNTED_REPLICAS: Final = "replicas-as-number"
RULED_REPLICAS: Final = "replicas-as-mapping"


def _fleet_name(value: str) -> str:
    if not FLEET_NAME.fullmatch(value):
        near = re.sub(r"[^a-z0-9]+", "-", value.lower())[:MAX_NAME].strip("-") or "longboat"
        raise mistake(f"{value!r} is not 1 to 63 of a-z, 0-9 and -, with no - at an end", f"write {near}")
    return value


def _model_name(value: str) -> str:
    if not MODEL_NAME.fullmatch(value):
        near = re.sub(r"[^A-Za-z0-9._-]+", "-", value)[:MAX_NAME].strip("._-") or "model"
        hint = f"write {near}"
        if "/" in value:
            alias = f"gateway: {{aliases: [{{name: {value}, model: {near}}}]}}"
            hint += f", and for clients that send the other name {alias}"
        raise mistake(f"{value!r} cannot stand in a URL: 1 to 63 of letters, digits, '.', '_', '-'", hint)
    return value


def _source(value: str, info: ValidationInfo) -> str:
    folder = info.context["folder"] if info.context else "/"
    if wrong := check_source(value, folder):
        raise mistake(wrong.what, wrong.hint, later=wrong.later)
    return same_source(value)


def _kind(value: str) -> str:
    if value not in BUILT_IN and value not in (known := engine_names()):
        near = difflib.get_close_matches(value.lower(), known, n=1)
        raise mistake(f"{value!r} is not one of {', '.join(known)}", f"write {near[0] if near else ' or '.join(known)}")
    return value


def _add_kinds(schema: dict[str, Any]) -> None:
    schema["enum"] = list(engine_names())


def _version(value: str) -> str:
    if not ENGINE_VERSION.fullmatch(value):
        raise mistake(f"{value!r} is not a version", 'write it like "0.32.0"')
    return value


def _argument(value: str) -> str:
    if UNUSABLE.search(value):
        raise mistake(f"{value!r} has a character that an argument cannot have", "write it as UTF-8 text without NUL")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise mistake(
            f"{value!r} is not an absolute path", "write the environment's folder as the nodes see it: /opt/vllm"
        )
    return _argument(value)


def _memory(value: str) -> str:
    return checked_size(value, "4GiB")


def _gpus(value: float) -> float:
    if value > 1:
        raise mistake(f"a worker rank computes on one GPU, not {value:g}", "write gpus: 1, and split.tensor for more")
    return value


class OptionsSpec(Section):
    """Settings of the fake engine; null leaves its own default."""

    ttft_ms: float | None = Field(default=None, ge=0, le=3_600_000)
    """Milliseconds to the first token."""
    itl_ms: float | None = Field(default=None, ge=0, le=3_600_000)
    """Milliseconds between tokens."""
    start_s: float | None = Field(default=None, ge=0, le=3_600)
    """Seconds that the engine pretends to load."""
    max_num_seqs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Concurrent requests; others wait."""
    kv_blocks: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of KV blocks; requests wait while all are in use."""
    block_size: int | None = Field(default=None, ge=1, le=1_000_000)
    """Tokens of a KV block."""
    poison: str | None = Field(default=None, min_length=1, max_length=100)
    """A word that kills the engine when a prompt has it."""


# Values that must agree are checked where the later one stands: a section with another mistake in it is never whole.
def _stages(layers: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
    stages = info.data.get("pipeline", len(layers))
    if stages == "auto":
        raise mistake("layers is set, and pipeline is auto", f"write pipeline: {len(layers)}, or no layers")
    if len(layers) != stages:
        raise mistake(
            f"{len(layers)} numbers of layers for {stages} pipeline stages",
            f"write pipeline: {len(layers)}, or one each",
        )
    return layers


def _no_version_besides(environment: str | None, info: ValidationInfo) -> str | None:
    if environment is not None and info.data.get("version") is not None:
        raise mistake(
            "version and environment are both given: the environment has its own version", "write one of the two"
        )
    return environment


def _for_the_fake(options: OptionsSpec, info: ValidationInfo) -> OptionsSpec:
    kind = info.data.get("kind", "fake")
    if kind != "fake" and options.model_dump(exclude_none=True):
        raise mistake(f"options are for the fake engine, not for {kind}", "write engine.args instead")
    return options


class EngineSpec(Section):
    """Which program serves the model."""

    kind: Annotated[str, AfterValidator(_kind), Field(json_schema_extra=_add_kinds)] = "vllm"
    """The engine: vllm, sglang, fake (answers without a model, for tests), or one that an installed package adds."""
    version: Annotated[str, AfterValidator(_version)] | None = None
    """Version that the nodes' engine environment must have; null takes the newest installed one."""
    environment: Annotated[Annotated[str, AfterValidator(_absolute)] | None, AfterValidator(_no_version_besides)] = None
    """Folder of a Python environment of your own that holds the engine, as the nodes see it."""
    startup: Literal["auto", "zygote", "plain"] = "auto"
    """zygote forks from a process that has imported the engine; plain starts the engine's command; auto picks."""
    args: tuple[Annotated[str, AfterValidator(_argument)], ...] = Field(default=(), max_length=200)
    """Extra command-line arguments for the engine, one list item each."""
    env: EngineVariables = Field(default_factory=dict, max_length=200, repr=False)
    """Environment variables of the engine's processes; their values are never logged."""
    options: Annotated[OptionsSpec, AfterValidator(_for_the_fake)] = OptionsSpec()
    """Settings of the fake engine."""

    @property
    def given_options(self) -> dict[str, int | float]:
        """Return the options that the file sets, by name."""
        return self.options.model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A split in numbers."""

    tensor: int
    pipeline: int
    layers: tuple[int, ...] | None = None  # of each stage; None: as the engine divides them
    data: int = 1
    expert: bool = False

    @property
    def count(self) -> int:
        """Number of worker ranks."""
        return self.data * self.tensor * self.pipeline


def _too_many_ranks(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    """Yield a refusal where the parts are possible one by one, and too many together."""
    given = [values.get(name, 1) for name in ("data", "tensor", "pipeline")]
    parts = [part for part in given if type(part) is int and 1 <= part <= MAX_RANKS]
    if (count := math.prod(parts)) > MAX_RANKS:
        written = " x ".join(str(part) for part in parts if part != 1)
        yield mistake(f"{written} are {count} worker ranks, the limit is {MAX_RANKS}", "split less")


class SplitSpec(Section):
    """How one replica is split over worker ranks: data * tensor * pipeline of them."""

    tensor: Annotated[int, Field(ge=1, le=MAX_RANKS)] | Auto = 1
    """Worker ranks that share each layer; auto lets the planner decide."""
    pipeline: Annotated[int, Field(ge=1, le=MAX_RANKS)] | Auto = 1
    """Number of pipeline stages; auto lets the planner decide it, and the layers of each stage."""
    layers: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_stages)] | None = Field(
        default=None, max_length=MAX_RANKS
    )
    """Layers of each stage; null lets the engine divide them evenly."""
    data: Annotated[int, Field(ge=1, le=MAX_RANKS)] | Auto = 1
    """Parts among which requests are divided, each of tensor * pipeline ranks with its own cache; auto: the planner."""
    expert: bool | Auto = False
    """Whether whole experts are divided over data * tensor ranks, and none is cut; auto lets the planner decide."""

    @model_validator(mode="wrap")
    @classmethod
    def _bounded(cls, values: Any, handler: ModelWrapValidatorHandler[SplitSpec]) -> SplitSpec:
        return with_agreement(values, handler, cls, _too_many_ranks)

    @property
    def open_parts(self) -> tuple[str, ...]:
        """Names of the parts that are left to decide."""
        return tuple(name for name in ("tensor", "pipeline", "data", "expert") if getattr(self, name) == "auto")

    @property
    def ranks(self) -> Ranks | None:
        """The split in numbers; None where a part is left to decide."""
        tensor, pipeline, data, expert = self.tensor, self.pipeline, self.data, self.expert
        if tensor == "auto" or pipeline == "auto" or data == "auto" or expert == "auto":
            return None
        return Ranks(tensor=tensor, pipeline=pipeline, layers=self.layers, data=data, expert=expert)


_OPEN_SPLIT: Final = SplitSpec(tensor="auto", pipeline="auto", data="auto", expert="auto")


class ResourcesSpec(Section):
    """What one worker rank takes on its node."""

    cpus: float = Field(default=1.0, ge=0.01, le=1024)
    """CPUs of one worker rank."""
    gpus: Annotated[float, Field(ge=0, json_schema_extra={"maximum": 1}), AfterValidator(_gpus)] | None = None
    """GPUs of one worker rank: 0, 1, or a part of one; null is 1 on a GPU platform and 0 on CPUs."""
    memory: Annotated[str, AfterValidator(_memory)] | None = None
    """Memory of one worker rank with its unit ("4GiB"), reserved on the node; null reserves none."""

    @property
    def memory_bytes(self) -> int:
        """Memory of one worker rank in bytes; 0 where none is reserved."""
        return size_bytes(self.memory) if self.memory else 0


class PlacementSpec(Section):
    """Where replicas may run."""

    labels: Annotated[dict[str, str], AfterValidator(label_pairs)] = Field(default_factory=dict, max_length=50)
    """Labels that a node must carry to be chosen."""
    nodes: int | None = Field(default=None, ge=1, le=MAX_RANKS)
    """Number of nodes that one replica spans; null lets Longboat decide."""
    stages: tuple[Annotated[dict[str, str], AfterValidator(label_pairs)], ...] | None = Field(
        default=None, min_length=1, max_length=MAX_RANKS
    )
    """Labels that the node of each pipeline stage must carry, from the first; null lets any node have any stage."""


class LoadSpec(Section):
    """The load that the planner plans for."""

    users: int = Field(default=8, ge=1, le=1_000_000)
    """Concurrent requests, over all replicas."""
    prompt_tokens: int = Field(default=1024, ge=1, le=100_000_000)
    """Prompt tokens per request."""
    output_tokens: int = Field(default=256, ge=1, le=100_000_000)
    """Output tokens per request."""
    images: int = Field(default=0, ge=0, le=1000)
    """Images per request; their tokens count besides prompt_tokens."""
    ttft_ms: float | None = Field(default=None, gt=0, le=3_600_000)
    """Limit for the mean time to the first token, in milliseconds; null means no limit."""
    itl_ms: float | None = Field(default=None, gt=0, le=3_600_000)
    """Limit for the mean time between tokens, in milliseconds; null means no limit."""


def _form(value: object) -> str:
    """Return which of the forms of ``replicas`` a value has; pydantic then checks it against that form only."""
    if isinstance(value, dict | ReplicasSpec):
        return RULED_REPLICAS
    return "auto" if value == "auto" else COUNTED_REPLICAS


class UpdateSpec(Section):
    """How running replicas are replaced, and how long their requests may run on."""

    surge: bool = True
    """Whether a new replica starts before an old one ends, if there is room for both."""
    drain_s: float = Field(default=20.0, ge=0, le=3600)
    """Seconds that requests may run on in a replica that is replaced; then others of its revision resume them."""
    limit_s: float = Field(default=600.0, ge=0, le=3600)
    """Seconds that the last replica of a revision waits for its running requests; then they are cut off."""
    ready_s: float = Field(default=1800.0, ge=1, le=86_400)
    """Seconds within which a new replica must be ready; otherwise the update is rolled back. An engine that is not
    ready this long after its start, and two hours at the least, is ended and started again."""


class ModelSpec(Section):
    """One model and how it is served."""

    name: Annotated[str, AfterValidator(_model_name)]
    """Name that clients use; by default it follows from the source."""
    source: Annotated[str, AfterValidator(_source)]
    """builtin:NAME, a folder as the nodes see it (absolute), hf:ORGANISATION/NAME, or a place in storage (s3://…)."""
    task: Task = GENERATE
    """What the model is for: generate text, embed, rerank (and score), classify, or reward."""
    engine: EngineSpec = EngineSpec()
    """The engine, or just its kind."""
    replicas: Annotated[
        Annotated[Annotated[int, Field(ge=0, le=MAX_REPLICAS)], Tag(COUNTED_REPLICAS)]
        | Annotated[Auto, Tag("auto")]
        | Annotated[ReplicasSpec, Tag(RULED_REPLICAS)],
        Discriminator(_form),
    ] = 1
    """Copies that serve at the same time; 0 serves nothing; auto: the planner; a mapping: they follow the load."""
    split: SplitSpec | Auto = SplitSpec()
    """How one replica is split; auto lets the planner decide."""
    load: LoadSpec = LoadSpec()
    """The load that the planner plans for."""
    media: MediaSpec = MediaSpec()
    """Images, sounds and videos in its requests."""
    context: int | None = Field(default=None, ge=1, le=100_000_000)
    """Longest request in tokens, prompt and completion together; null is the model's maximum."""
    speculative: SpeculativeSpec | None = None
    """Tokens that are proposed cheaply and checked together; null computes one after the other."""
    resources: ResourcesSpec = ResourcesSpec()
    """What one worker rank takes."""
    placement: PlacementSpec = PlacementSpec()
    """Where replicas may run."""
    update: UpdateSpec = UpdateSpec()
    """How running replicas are replaced."""
    adapters: AdaptersSpec | None = None
    """LoRA adapters, each served under a name of its own, or just a list of them; null: there is no room for any."""

    @property
    def is_decided(self) -> bool:
        """Whether the planner has nothing to decide."""
        return self.replicas != "auto" and self.split_is_decided

    @property
    def split_is_decided(self) -> bool:
        """Whether each part of the split is a number."""
        return self.parts.ranks is not None

    @property
    def parts(self) -> SplitSpec:
        """The parts of the split; ``split: auto`` leaves each of them to decide."""
        return _OPEN_SPLIT if self.split == "auto" else self.split

    @property
    def num_replicas(self) -> int:
        """The number of replicas when the fleet comes up. Raises ValueError where it is not decided."""
        if self.replicas == "auto":
            raise ValueError(f"the replicas of {self.name} are not decided")
        return self.replicas.first if isinstance(self.replicas, ReplicasSpec) else self.replicas

    @property
    def max_replicas(self) -> int:
        """The number of replicas that there may ever be. Raises ValueError where it is not decided."""
        return self.replicas.max if isinstance(self.replicas, ReplicasSpec) else self.num_replicas

    @property
    def ranks(self) -> Ranks:
        """The split in numbers. Raises ValueError where it is not decided."""
        if (found := self.parts.ranks) is None:
            raise ValueError(f"the split of {self.name} is not decided")
        return found


def _not_empty(models: tuple[ModelSpec, ...], info: ValidationInfo) -> tuple[ModelSpec, ...]:
    if not models and not info.data.get("external"):
        raise mistake("it has 0 entries, at least 1 is needed", "write models: [builtin:tiny]")
    return models


class Fleet(Section):
    """A fleet: models and the gateway in front of them."""

    api_version: Literal["longboat/v1"] = Field(default=API_VERSION, alias="apiVersion")
    """Version of this file's format."""
    name: Annotated[str, AfterValidator(_fleet_name)] = "longboat"
    """Name of the fleet; a cluster runs one."""
    external: tuple[ExternalModelSpec, ...] = Field(default=(), max_length=MAX_MODELS)
    """The models that other people serve; in the file they stand under models too."""
    models: Annotated[tuple[ModelSpec, ...], AfterValidator(_not_empty)] = Field(max_length=MAX_MODELS)
    """The models, each a mapping or just its source."""
    gateway: GatewaySpec = GatewaySpec()
    """The address of the fleet."""
    weights: WeightsSpec = WeightsSpec()
    """The storage that models come from, and the disks that keep them."""

    def model_named(self, name: str) -> ModelSpec | None:
        """Return the model that clients call ``name``."""
        return next((model for model in self.models if model.name == name), None)

    def adapters(self) -> tuple[tuple[ModelSpec, AdapterSpec], ...]:
        """Return all adapters, each with its model."""
        return tuple((m, entry) for m in self.models if m.adapters is not None for entry in m.adapters.entries)

    def served(self) -> dict[str, ModelSpec]:
        """Return the model behind each name that this fleet serves itself: its own, or the one that it adapts."""
        own = {model.name: model for model in self.models}
        return own | {entry.name: model for model, entry in self.adapters()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, those that other people serve last."""
        return (*(model.name for model in self.models), *(model.name for model in self.external))
