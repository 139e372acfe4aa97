"""What a model is for: the tasks that a fleet file may give it, and how they read in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

__all__ = ("DOES", "DOES_NOT", "GENERATE", "POOLING_TASKS", "PoolingTask", "Task")

Task = Literal["generate", "embed", "rerank", "classify", "reward"]
"""``generate`` answers with tokens. The others answer with numbers for a whole text, and generate nothing."""

GENERATE: Task = "generate"
PoolingTask = Literal["embed", "rerank", "classify", "reward"]
POOLING_TASKS: tuple[PoolingTask, ...] = ("embed", "rerank", "classify", "reward")

DOES: Mapping[str, str] = {
    "generate": "generates text",
    "embed": "makes embeddings",
    "rerank": "scores and ranks texts",
    "classify": "classifies texts",
    "reward": "returns rewards",
}
"""Task → what a model of that task does."""

DOES_NOT: Mapping[str, str] = {
    "generate": "it does not generate text",
    "embed": "it makes no embeddings",
    "rerank": "it does not score or rank texts",
    "classify": "it does not classify texts",
    "reward": "it returns no rewards",
}
"""Task → what a model of another task lacks."""
