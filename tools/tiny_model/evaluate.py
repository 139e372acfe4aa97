"""Counts which answers of a trained tiny model are exact: ``python tools/tiny_model/evaluate.py FOLDER``.

An answer is exact when greedy decoding gives it word for word and then stops. Teacher forcing shows the same without
generating: the most likely token is the right one at every place.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from dialogues import Corpus, Dialogue, exact_set, load_corpus
from examples import IGNORED, Example, encode

__all__ = ("report",)

BATCH_TOKENS = 8192
MAX_SHOWN = 25


def report(folder: Path, corpus: Corpus) -> float:
    """Print the exact answers per group and the ones that are wrong; returns the exact share."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    right, total, wrong, margins = Counter[str](), Counter[str](), [], []
    for group, dialogue, example in _sorted(corpus, tokenizer):
        exact, margin, said = _check(model, tokenizer, example)
        total[group] += 1
        right[group] += exact
        margins.append(margin)
        if not exact:
            wrong.append((group, dialogue, said))
    _print(right, total, wrong, margins)
    return sum(right.values()) / max(1, sum(total.values()))


def _sorted(corpus: Corpus, tokenizer: Any) -> list[tuple[str, Dialogue, Example]]:
    return [(group, dialogue, encode(dialogue, tokenizer)) for group, dialogue in exact_set(corpus)]


@torch.inference_mode()
def _check(model: Any, tokenizer: Any, example: Example) -> tuple[bool, float, str]:
    """(exact, smallest distance of the right token's logit from the next best, text up to the first error)."""
    labels = torch.tensor(example.labels)[1:]
    learned = labels != IGNORED
    if example.labels[0] != IGNORED:  # a plain text: its first words are the prompt
        learned[:3] = False
    logits = model(input_ids=torch.tensor([example.ids[:-1]]), use_cache=False).logits[0][learned]
    wanted = labels[learned]
    chosen = logits.gather(1, wanted[:, None])[:, 0]
    others = logits.scatter(1, wanted[:, None], float("-inf")).max(dim=1)
    margin = chosen - others.values
    if (margin > 0).all():
        return True, margin.min().item(), ""
    first = int((margin <= 0).nonzero()[0])
    return False, margin.min().item(), tokenizer.decode([*wanted[:first].tolist(), int(others.indices[first])])


def _print(right: Counter[str], total: Counter[str], wrong: list[Any], margins: list[float]) -> None:
    for group in total:
        print(f"{group:22s} {right[group]:5d} of {total[group]:5d} exact")
    for group, dialogue, said in wrong[:MAX_SHOWN]:
        asked = dialogue.messages[-2]["content"] if dialogue.messages else dialogue.text[:30]
        print(f"  not exact ({group}): {asked!r} -> …{said[-60:]!r}")
    low = sorted(margins)[len(margins) // 100]
    print(f"all: {sum(right.values())} of {sum(total.values())} exact; 99 % have a logit margin of at least {low:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report(options.folder, load_corpus())


if __name__ == "__main__":
    main()
