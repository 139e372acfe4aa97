"""From dialogues to token ids and labels, through the very chat template that engines use."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dialogues import Dialogue

__all__ = ("Batch", "Example", "batches", "encode", "grouped_by_length", "padded")

T = TypeVar("T")

END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Example:
    """ids: the tokens; labels: the same where they are learned, else ``IGNORED``."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one length, filled up on the right."""

    ids: list[list[int]]
    labels: list[list[int]]


def encode(dialogue: Dialogue, tokenizer: Any) -> Example:
    """Token ids of a dialogue; only what the model itself says carries labels."""
    pieces = [("", dialogue.text + END_OF_TEXT)] if dialogue.text else list(_turns(dialogue, tokenizer))
    ids: list[int] = []
    labels: list[int] = []
    for given, said in pieces:
        given_ids = tokenizer.encode(given, add_special_tokens=False) if given else []
        said_ids = tokenizer.encode(said, add_special_tokens=False)
        ids += given_ids + said_ids
        labels += [IGNORED] * len(given_ids) + said_ids
    return Example(tuple(ids), tuple(labels))


def _turns(dialogue: Dialogue, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """For each assistant message: what the template puts in front of it, and what the model says."""
    seen = ""
    last = max(i for i, message in enumerate(dialogue.messages) if message["role"] == "assistant")
    for index, message in enumerate(dialogue.messages):
        if message["role"] != "assistant":
            continue
        thinking = dialogue.thinking and index == last
        before = _render(dialogue, index, tokenizer, thinking)
        after = _render(dialogue, index + 1, tokenizer, None).removesuffix("\n")
        plain = _render(dialogue, index, tokenizer, False)
        thought = (f"{dialogue.thought}\n" if dialogue.thought else "") + "</think>" if thinking else ""
        yield before[len(seen) :], thought + after[len(plain) :]
        seen = after


def _render(dialogue: Dialogue, num_messages: int, tokenizer: Any, thinking: bool | None) -> str:
    text: str = tokenizer.apply_chat_template(
        list(dialogue.messages[:num_messages]),
        tools=list(dialogue.tools) or None,
        tokenize=False,
        add_generation_prompt=thinking is not None,
        enable_thinking=bool(thinking),
    )
    return text


def batches(examples: Sequence[Example], max_tokens: int, rng: random.Random) -> list[Batch]:
    """Rows of similar length together, at most ``max_tokens`` with the filling; shuffled by ``rng``."""
    found = [padded(group) for group in grouped_by_length(examples, max_tokens, lambda example: len(example.ids))]
    rng.shuffle(found)
    return found


def grouped_by_length(items: Iterable[T], max_tokens: int, length_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Groups from short to long, each of at most ``max_tokens`` when filled up to its longest."""
    group: list[T] = []
    for item in sorted(items, key=length_of):
        if group and (len(group) + 1) * length_of(item) > max_tokens:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def padded(group: list[Example]) -> Batch:
    width = max(len(example.ids) for example in group)
    ids = [[*example.ids, *[0] * (width - len(example.ids))] for example in group]
    labels = [[*example.labels, *[IGNORED] * (width - len(example.ids))] for example in group]
    return Batch(ids, labels)
