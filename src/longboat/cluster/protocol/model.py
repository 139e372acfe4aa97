"""The model that a gang serves, as supervisors and agents read it; made from the plain values in Serve's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longboat.core.media import MediaRules
from longboat.core.plan import AdapterRoom, GangShape, RankResources
from longboat.core.tasks import GENERATE, Task

__all__ = ("EngineSettings", "GangIdentity", "ServedModel", "WantedAdapter", "read_engine", "read_model", "read_shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine of one model, as the fleet file describes it."""

    kind: str  # "vllm" or "fake"
    version: str | None = None  # None: the newest that is installed
    environment: str | None = None  # folder of the user's own Python environment
    startup: str = "auto"  # "auto", "zygote" or "plain"
    args: tuple[str, ...] = ()  # further arguments of the engine's command line
    # variables of its processes; they may hold secrets
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, int | float] = field(default_factory=dict)  # settings of the fake engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of the fleet, without what may change while its replicas run."""

    name: str
    source: str
    engine: EngineSettings
    context: int | None = None  # tokens of the longest request; None: what the model can do
    task: Task = GENERATE  # what the model is for
    media: MediaRules = field(default_factory=MediaRules)  # what its requests may hold
    adapters: AdapterRoom | None = None  # None: its engine knows no adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedAdapter:
    """An adapter that all replicas of a model are to know."""

    name: str  # that clients use
    source: str  # folder on the nodes
    revision: str  # digest of what the folder must hold


@dataclass(frozen=True, slots=True, kw_only=True)
class GangIdentity:
    """The values that tell one gang from every other."""

    fleet: str
    replica: str
    digest: str  # of the arguments that its replica was started with
    generation: int  # grows with every start of a gang of this model
    api_key: str = field(repr=False)


def read_model(values: Mapping[str, Any]) -> ServedModel:
    """Return the model that ``serve_config`` wrote into an application's arguments."""
    from longboat.spec.types.media import MediaSpec  # commands load this module for its records, without pydantic

    return ServedModel(
        name=values["name"],
        source=values["source"],
        engine=read_engine(values["engine"]),
        context=values.get("context"),
        task=values.get("task", GENERATE),
        media=MediaSpec.model_validate(values.get("media", {}), strict=False).rules,
        adapters=AdapterRoom(**values["adapters"]) if values.get("adapters") else None,
    )


def read_engine(values: Mapping[str, Any]) -> EngineSettings:
    """Return the settings of an engine from the values of its entry in the fleet file."""
    return EngineSettings(**{**values, "args": tuple(values.get("args", ()))})


def read_shape(values: Mapping[str, Any]) -> GangShape:
    """Return the shape that ``serve_config`` wrote into an application's arguments."""
    lists = {name: tuple(values.get(name, ())) for name in ("layers", "stages")}
    return GangShape(**{**values, **lists, "resources": RankResources(**values["resources"])})
