"""What a model's architecture is made for, and whether it can be served for a task."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.catalog.families.architectures.encoder import ENCODERS
from longboat.core.tasks import Task

__all__ = ("Fitness", "fitness_for")

_CLASS_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ClassificationModel")
# Classes that say more, or compute otherwise, than a decoder of text: no count or time of the planner holds for them.
_OTHERS = {
    "HrmTextForCausalLM": "runs its layers several times for each token",
    "MoshiForCausalLM": "is the part of Moshi that speaks and listens",
    "MoshiForConditionalGeneration": "speaks and listens",
}
_REWARD_HEADS = ("RewardModel", "ForRewardModeling", "RewardModeling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """Whether a model can be served for a task."""

    reason: str = ""  # how, in one sentence; empty where there is nothing to say
    problem: str = ""  # why not, in one sentence; empty where it can
    hint: str = ""  # what to write instead


def fitness_for(architecture: str, task: Task, *, overridden: bool = False) -> Fitness:
    """Return whether a model of this class can be served for the task.

    overridden: the engine's arguments replace parts of the config, so that the class may be another one
    """
    if not architecture or overridden:
        return Fitness()
    has_classes, has_reward = architecture.endswith(_CLASS_HEADS), architecture.endswith(_REWARD_HEADS)
    if task == "generate":
        return _for_text(architecture, has_classes, has_reward)
    if task == "embed":
        return _for_embeddings(architecture, has_classes, has_reward)
    if task == "reward" or has_classes:
        return Fitness(reason=f"{task}: {architecture} has the head for it" if has_classes or has_reward else "")
    return Fitness(
        problem=f"{architecture} has no head for classes",
        hint="serve a model of a class ...ForSequenceClassification, or write task: embed: /rerank and /score then "
        "compare embeddings",
    )


def _for_text(architecture: str, has_classes: bool, has_reward: bool) -> Fitness:
    if has_classes:
        return Fitness(
            problem=f"{architecture} has a head for classes and generates no text",
            hint="write task: classify, or task: rerank where it has one class",
        )
    if has_reward:
        return Fitness(problem=f"{architecture} generates no text", hint="write task: reward")
    if architecture in _OTHERS:
        return Fitness(
            problem=f"{architecture} {_OTHERS[architecture]}, and no engine of the catalog serves it",
            hint="name another model, such as those of longboat plan list models",
        )
    if architecture in ENCODERS:
        return Fitness(problem=f"{architecture} is an encoder and generates no text", hint="write task: embed")
    return Fitness()


def _for_embeddings(architecture: str, has_classes: bool, has_reward: bool) -> Fitness:
    if has_classes or has_reward:
        instead = "classify, or task: rerank where it has one class" if has_classes else "reward"
        return Fitness(problem=f"{architecture} makes no embeddings", hint=f"write task: {instead}")
    if architecture in ENCODERS:
        return Fitness(reason=f"embed: {architecture} is an encoder of texts")
    return Fitness(reason=f"embed: {architecture} is converted, the state of a text's last token is its embedding")
