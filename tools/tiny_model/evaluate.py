"""Counts which answers of a trained tiny model are exact: ``python tools/tiny_model/evaluate.py FOLDER``.

An answer is exact when greedy decoding gives it word for word and then stops. Teacher forcing shows the same without
generating: the most likely token is the right one at every place.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from dialogues import Corpus, Dialogue, exact_set, load_corpus
from examples import IGNORED, Example, encode, grouped_by_length, padded

__all__ = ("report",)

BATCH_TOKENS = 8192
MAX_SHOWN = 25
TEXT_PROMPT_TOKENS = 3
"""A plain text is continued from its first words."""


@dataclass(frozen=True, slots=True)
class Case:
    group: str
    dialogue: Dialogue
    example: Example


@dataclass(frozen=True, slots=True)
class Outcome:
    """margin: smallest distance of a right token's logit from the next best; said: the text up to the first error."""

    case: Case
    margin: float
    said: str

    @property
    def exact(self) -> bool:
        return self.margin > 0


def report(folder: Path, corpus: Corpus) -> None:
    """Print the exact answers of each group, and some of those that are not."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cases = [Case(group, dialogue, encode(dialogue, tokenizer)) for group, dialogue in exact_set(corpus)]
    outcomes: list[Outcome] = []
    for cases_of_a_length in grouped_by_length(cases, BATCH_TOKENS, lambda case: len(case.example.ids)):
        outcomes += _outcomes(model, tokenizer, cases_of_a_length)
    _print(outcomes)


@torch.inference_mode()
def _outcomes(model: Any, tokenizer: Any, cases: list[Case]) -> Iterable[Outcome]:
    batch = padded([case.example for case in cases])
    hidden = model.model(input_ids=torch.tensor(batch.ids), use_cache=False).last_hidden_state
    for row, case in enumerate(cases):
        labels = torch.tensor(batch.labels[row])[1:]
        learned = labels != IGNORED
        if case.dialogue.text:
            learned[: TEXT_PROMPT_TOKENS - 1] = False
        yield _outcome(case, model.lm_head(hidden[row, :-1][learned]), labels[learned], tokenizer)


def _outcome(case: Case, logits: torch.Tensor, wanted: torch.Tensor, tokenizer: Any) -> Outcome:
    right = logits.gather(1, wanted[:, None])[:, 0]
    others = logits.scatter(1, wanted[:, None], float("-inf")).max(dim=1)
    margins = right - others.values
    if bool((margins > 0).all()):
        return Outcome(case, margins.min().item(), "")
    first = int((margins <= 0).nonzero()[0])
    said = tokenizer.decode([*wanted[:first].tolist(), int(others.indices[first])])
    return Outcome(case, margins.min().item(), said)


def _print(outcomes: list[Outcome]) -> None:
    total = Counter(outcome.case.group for outcome in outcomes)
    right = Counter(outcome.case.group for outcome in outcomes if outcome.exact)
    for group in total:
        print(f"{group:22s} {right[group]:5d} of {total[group]:5d} exact")
    for outcome in [outcome for outcome in outcomes if not outcome.exact][:MAX_SHOWN]:
        print(f"  not exact ({outcome.case.group}): {_asked(outcome.case.dialogue)!r} -> …{outcome.said[-60:]!r}")
    low = sorted(outcome.margin for outcome in outcomes)[len(outcomes) // 100]
    print(f"all: {right.total()} of {total.total()} exact; 99 % have a logit margin of at least {low:.2f}")


def _asked(dialogue: Dialogue) -> str:
    if dialogue.text:
        return dialogue.text[:30]
    questions: list[str] = [message["content"] for message in dialogue.messages if message["role"] == "user"]
    return questions[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report(options.folder, load_corpus())


if __name__ == "__main__":
    main()
