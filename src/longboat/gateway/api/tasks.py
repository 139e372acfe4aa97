"""The refusal of a path that a model is not made for: what the model does, and which models have the path. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from longboat.core.tasks import DOES, DOES_NOT, Task
from longboat.gateway.api.apis import APIS, Api
from longboat.gateway.http.responses import Refusal

__all__ = ("lacks_path", "paths_of")

_MAX_NAMES = 10


def paths_of(task: Task) -> tuple[str, ...]:
    """Return the paths that a model of this task has."""
    return tuple(path.decode() for path, api in APIS.items() if task in api.tasks)


def lacks_path(model: str, path: str, api: Api, tasks: Mapping[str, Task], visible: Iterable[str]) -> Refusal:
    """Return the refusal for a model of another task: what it does, and which models have the path.

    visible: the models that the tenant may use
    """
    task = tasks[model]
    others = [name for name in visible if tasks.get(name) in api.tasks]
    named = ", ".join(others[:_MAX_NAMES])
    advice = f"Models that have {path}: {named}." if named else f"{api.needs}."
    lacks = DOES_NOT[min(api.tasks, key=list(DOES).index)]
    message = f"The model {model!r} {DOES[task]}; {lacks}. It has {', '.join(paths_of(task))}. {advice}"
    return Refusal(status=404, message=message, code="path_not_offered", param="model")
