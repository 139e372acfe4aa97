"""A plan as a fleet file that ``longboat check`` and ``longboat up`` take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from longboat.cli.plan.outputs.model_files import ModelFiles
from longboat.core.errors import UserInputError, unwritable
from longboat.planner.memory.engine import engine_traits
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.ranking import Plan
from longboat.planner.search.reasons import longest_request, memory_settings
from longboat.planner.search.search import SearchResult
from longboat.spec.types.source import name_from_source

__all__ = ("fleet_text", "writable_plan", "write_fleet")


def writable_plan(plans: Sequence[Plan]) -> Plan:
    """Return the first plan that one model of a fleet file can say: equal replicas on equal cards.

    Raises UserInputError where there is none.
    """
    found = next((plan for plan in plans if len(plan.groups) == 1 and not plan.is_mixed), None)
    if found is None:
        raise UserInputError(
            "no plan has equal replicas on equal cards, and a model of a fleet file has one split",
            hint="plan for one kind of the machines, or write split: auto, which longboat up decides on the nodes",
        )
    return found


def fleet_text(found: SearchResult, group: Forecast, files: ModelFiles) -> str:
    """Return the file."""
    return "\n".join(_lines(found, group, files)) + "\n"


def write_fleet(path: Path, text: str) -> None:
    """Write a new file. Raises UserInputError where it exists, or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserInputError(f"{path} exists", hint="give another name, or remove it first") from None
    except OSError as error:
        raise unwritable(path, error) from None


def _lines(found: SearchResult, group: Forecast, files: ModelFiles) -> Iterator[str]:
    demand, layout = found.demand, group.layout
    yield f"# longboat plan: {group.title} of {found.cluster.title}"
    yield f"# about {group.tokens_per_s:.0f} tokens/s for {demand.users} requests at once"
    yield f'# longboat check FILE --on "{found.cluster.title}"'
    yield "apiVersion: longboat/v1"
    yield "models:"
    yield f"  - name: {json.dumps(name_from_source(files.source))}"
    yield f"    source: {json.dumps(files.source)}"
    yield f"    engine: {{kind: {engine_traits(group.engine).kind}, args: {json.dumps([*_args(group), *files.args])}}}"
    yield f"    replicas: {layout.replicas}"
    yield f"    split: {_split(group)}"
    yield f"    context: {longest_request(group)}"
    yield (
        f"    load: {{users: {demand.users}, prompt_tokens: {demand.prompt_tokens}, "
        f"output_tokens: {demand.output_tokens}}}"
    )


def _split(group: Forecast) -> str:
    layout = group.layout
    parts = [f"tensor: {layout.cut}", f"pipeline: {len(layout.places)}"]
    parts += [f"data: {layout.data}"] if layout.data > 1 else []
    parts += ["expert: true"] if layout.expert_parallel else []
    parts += [f"layers: {list(group.layers)}"] if group.layers else []
    return f"{{{', '.join(parts)}}}"


def _args(group: Forecast) -> list[str]:
    told = [word for setting in memory_settings(group) for word in setting.split()]
    if group.shape.dtype == "float16" and not engine_traits(group.engine).slots:
        told += ["--dtype", engine_traits(group.engine).dtype_half]
    return told
