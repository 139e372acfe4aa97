"""The cluster file: machines that are planned for, strictly read; the planner looks up their names."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from longboat.core.errors import UserInputError
from longboat.spec.checks.mistakes import is_consequence
from longboat.spec.checks.plain_problem import plain_problem
from longboat.spec.text.yaml_text import Plain, parse_yaml
from longboat.spec.types.section import Section

__all__ = ("ClusterFile", "NodeSection", "load_cluster_file")

MAX_NODES = 4096
HINT = "docs/guides/plan.md shows a cluster file"


class NodeSection(Section):
    """Equal nodes."""

    cards: str
    """Accelerators of one node: ``2xRTX4090``, ``RTX A5000 + RTX A4000``, ``EPYC9004 512GB``."""

    count: int = Field(default=1, ge=1, le=MAX_NODES)
    """How many nodes are so."""

    bus: str = ""
    """Link between the accelerators of one node; their usual one when left out."""

    net: str = ""
    """Network of these nodes; that of all when left out."""

    os: str = ""
    """linux, wsl2, windows or macos."""

    labels: dict[str, str] = Field(default_factory=dict, max_length=50)
    """Labels that these nodes carry, for ``placement`` of the fleet file."""

    cpus: int = Field(default=0, ge=0, le=65_536)
    """CPUs of one node; 0 counts 16 for each accelerator."""


class ClusterFile(Section):
    """The whole file."""

    nodes: tuple[NodeSection, ...] = Field(min_length=1)
    """Kinds of nodes."""

    net: str = ""
    """Network between nodes; 1GbE when left out."""

    engine: str = ""
    """Engine to plan for; the planner chooses when left out."""


FIELDS = {(): list(ClusterFile.model_fields), ("nodes",): list(NodeSection.model_fields)}
MISSING = {"cards": 'write cards: "2xRTX4090"', "nodes": "write nodes: [2xRTX4090]"}


def load_cluster_file(text: str, origin: str) -> ClusterFile:
    """Read the file's contents. A node may be written as its cards alone.

    Raises UserInputError with every mistake and its path.
    """
    try:
        return ClusterFile.model_validate(_listed(_spelled_out(parse_yaml(text))))
    except ValidationError as error:
        errors = [found for found in error.errors(include_url=False) if not is_consequence(found)]
        problems = [plain_problem(found, FIELDS, MISSING, HINT) for found in errors]
    except UserInputError as error:
        problems = list(error.problems)
    first = problems[0]
    raise UserInputError(f"{origin}: {first}", hint=first.hint, problems=tuple(problems))


def _spelled_out(data: Plain) -> Plain:
    """``- 2xRTX4090`` stands for ``- cards: 2xRTX4090``."""
    if not isinstance(data, dict) or not isinstance(nodes := data.get("nodes"), list):
        return data
    return data | {"nodes": [{"cards": node} if isinstance(node, str) else node for node in nodes]}


def _listed(data: Plain) -> Any:
    """Strict validation wants a tuple where YAML has a list."""
    if isinstance(data, dict) and isinstance(nodes := data.get("nodes"), list):
        return data | {"nodes": tuple(nodes)}
    return data if data is not None else {}
