"""The cluster file: machines that are planned for, strictly read; the planner looks up their names."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from longboat.core.errors import Problem, UserInputError
from longboat.spec.checks.wording import near, shown
from longboat.spec.text.location import show
from longboat.spec.text.yaml_text import Plain, parse_yaml
from longboat.spec.types.section import Section

__all__ = ("ClusterFile", "NodeSection", "load_cluster_file")

MAX_NODES = 4096
HINT = "docs/concepts/planning.md shows a cluster file"


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


class ClusterFile(Section):
    """The whole file."""

    nodes: tuple[NodeSection, ...] = Field(min_length=1)
    """Kinds of nodes."""

    net: str = ""
    """Network between nodes; 1GbE when left out."""

    engine: str = ""
    """Engine to plan for; the planner chooses when left out."""


FIELDS = {(): list(ClusterFile.model_fields), ("nodes",): list(NodeSection.model_fields)}


def load_cluster_file(text: str, origin: str) -> ClusterFile:
    """Read the file's contents. A node may be written as its cards alone.

    Raises UserInputError with every mistake and its path.
    """
    try:
        return ClusterFile.model_validate(_listed(_spelled_out(parse_yaml(text))))
    except ValidationError as error:
        problems = [_problem(found) for found in error.errors(include_url=False)]
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


def _problem(error: Any) -> Problem:
    path, kind, value = error["loc"], error["type"], error["input"]
    section, where = tuple(part for part in path[:-1] if isinstance(part, str)), show(path)
    known = FIELDS.get(section, [])
    if kind == "extra_forbidden":
        close = near(str(path[-1]), known)
        hint = f"write {close}" if close else f"known here: {', '.join(known)}"
        return Problem(where=where, what=f"there is no field {str(path[-1])!r} here", hint=hint)
    if kind == "missing":
        hint = 'write cards: "2xRTX4090"' if path[-1] == "cards" else "write nodes: [2xRTX4090]"
        return Problem(where=where, what=f"{path[-1]} is missing", hint=hint)
    return Problem(where=where, what=f"{shown(value)}: {error['msg']}", hint=HINT)
