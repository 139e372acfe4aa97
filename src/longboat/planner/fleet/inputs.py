"""The planner's inputs about a fleet's models and nodes: gathered by the cluster, read by the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.library import Library, built_in_library
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.plan import EngineMemory
from longboat.core.topology import Node
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.constants import Calibration

__all__ = ("PathReport", "PlannerInputs", "PortReport")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathReport:
    """A node's report about a local path."""

    node_id: str
    path: str
    exists: bool
    detail: str = ""  # what is wrong with a path that exists (``no config.json``)
    hint: str = ""  # what to do about that, where the node knows it


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReport:
    """A port on which a node's gateway could not listen; what this fleet's own gateway has is not reported."""

    node_id: str
    port: int
    problem: str = ""  # in the node's words; empty where the port is simply in use
    owner: str = ""  # the program that has it, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerInputs:
    """All facts that the planner needs of the outside: it reads nothing by itself."""

    nodes: tuple[Node, ...] = ()
    library: Library = field(default_factory=built_in_library)
    calibration: Calibration = field(default_factory=built_in_calibration)
    # By name of the model.
    facts: Mapping[str, ModelConfig] = field(default_factory=dict)  # of its config, as far as it was read
    platforms: Mapping[str, str] = field(default_factory=dict)  # ``cuda`` or ``cpu``, of its engine; ``cpu`` if absent
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)  # its weights and layers, as stored
    drafts: Mapping[str, ModelShape] = field(default_factory=dict)  # of the model that proposes tokens, if there is one
    unknown: Mapping[str, str] = field(default_factory=dict)  # why its shape is not known
    memory: Mapping[str, EngineMemory] = field(default_factory=dict)  # of its engine's settings; absent: not planned
    # By id of the node.
    memory_bytes: Mapping[str, int] = field(default_factory=dict)  # that engines may have
    accelerators: Mapping[str, str] = field(default_factory=dict)  # as the node's driver names them
    # Of the checks before anything starts.
    paths: tuple[PathReport, ...] = ()  # of local sources and engine environments
    ports: tuple[PortReport, ...] = ()
    builtin_names: tuple[str, ...] = ()  # names of built-in models (``tiny``), for hints
    unknown_builtins: frozenset[str] = frozenset()  # sources that name no built-in model
