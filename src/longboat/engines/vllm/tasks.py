"""The arguments with which vLLM serves a model for another task than text."""

from __future__ import annotations

from longboat.core.tasks import GENERATE, Task

__all__ = ("task_arguments",)

_CONVERT: dict[Task, tuple[str, ...]] = {
    "embed": ("--convert", "embed"),
    "rerank": ("--convert", "classify"),
    "classify": ("--convert", "classify"),
    "reward": (),
}
"""Task → how an architecture is converted that is not made for it. vLLM leaves those alone that are."""


def task_arguments(task: Task) -> list[str]:
    """Return the arguments for a task; none for text."""
    return [] if task == GENERATE else ["--runner", "pooling", *_CONVERT[task]]
