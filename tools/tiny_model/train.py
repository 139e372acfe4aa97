"""Trains the built-in tiny model from the corpus: ``python tools/tiny_model/train.py --out FOLDER``.

Needs torch, transformers, tokenizers and PyYAML (an engine environment has them). The same seed, number of threads and
versions give the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from dialogues import Corpus, load_corpus, training_epoch
from evaluate import report
from examples import IGNORED, Batch, batches, encode
from muon import Muon
from tiny_tokenizer import MAX_POSITIONS, VOCABULARY, make_tokenizer

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
BATCH_TOKENS = 1600
WARM_UP_RATIO = 0.03
WEIGHT_DECAY = 0.05
PRINT_EVERY_STEPS = 20


def main() -> None:
    options = _arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    started = time.monotonic()
    corpus = load_corpus()
    tokenizer = make_tokenizer(corpus.tokenizer_texts)
    print(f"corpus: {len(corpus.entries)} answers; tokenizer: {len(tokenizer)} tokens", flush=True)
    model = _new_model(tokenizer)
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    _train(model, tokenizer, corpus, options)
    _save(model, tokenizer, options.out)
    print(f"trained and saved in {time.monotonic() - started:.0f} s; checking what was saved", flush=True)
    report(options.out, corpus)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=13, help="passes over the corpus, each worded differently")
    parser.add_argument("--peak-rate", type=float, default=5e-3, help="highest learning rate")
    return parser.parse_args()


def _new_model(tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        **SHAPE,
        vocab_size=VOCABULARY,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    return Qwen3ForCausalLM(config).train()


def _train(model: Any, tokenizer: Any, corpus: Corpus, options: argparse.Namespace) -> None:
    plan = list(_all_batches(corpus, tokenizer, options))
    matrices, others = _weight_groups(model)
    muon = Muon(matrices, weight_decay=WEIGHT_DECAY)
    adam = torch.optim.AdamW(others, lr=options.peak_rate, betas=(0.9, 0.97), weight_decay=0.0)
    started = time.monotonic()
    mean_loss = 8.0
    for step, batch in enumerate(plan):
        rate = options.peak_rate * _rate(step / len(plan))
        adam.param_groups[0]["lr"] = rate
        loss = batch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(rate)
        adam.step()
        model.zero_grad(set_to_none=True)
        mean_loss += 0.05 * (loss.item() - mean_loss)
        if step % PRINT_EVERY_STEPS == 0 or step == len(plan) - 1:
            left_s = (time.monotonic() - started) / (step + 1) * (len(plan) - step - 1)
            print(f"step {step:5d}/{len(plan)}  loss {mean_loss:.4f}  {left_s:4.0f} s left", flush=True)


def _all_batches(corpus: Corpus, tokenizer: Any, options: argparse.Namespace) -> Iterator[Batch]:
    rng = random.Random(options.seed)
    for _ in range(options.epochs):
        yield from batches([encode(d, tokenizer) for d in training_epoch(corpus, rng)], BATCH_TOKENS, rng)


def _weight_groups(model: Any) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """The matrices of the layers, and the rest: embeddings and the scales of the norms."""
    layers = [p for p in model.model.layers.parameters() if p.dim() == 2]
    known = {id(p) for p in layers}
    return layers, [p for p in model.parameters() if id(p) not in known]


def _rate(done_ratio: float) -> float:
    """Linear warm-up, then a cosine down to one hundredth."""
    if done_ratio < WARM_UP_RATIO:
        return done_ratio / WARM_UP_RATIO
    along = (done_ratio - WARM_UP_RATIO) / (1 - WARM_UP_RATIO)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * along))


def batch_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Mean cross entropy; logits are made only where something is learned (most of a prompt is not)."""
    hidden = model.model(input_ids=torch.tensor(batch.ids), use_cache=False).last_hidden_state[:, :-1]
    labels = torch.tensor(batch.labels)[:, 1:]
    learned = labels != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learned]), labels[learned])


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    from transformers import GenerationConfig

    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.95, top_k=20, eos_token_id=ends, pad_token_id=ends[1]
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _name_for_older_readers(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def _name_for_older_readers(folder: Path) -> None:
    """Readers from before transformers 5 know the tokenizer and some settings by other names."""
    config = _read_json(folder / "config.json")
    config["torch_dtype"] = config["dtype"]
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    config["max_window_layers"] = config["num_hidden_layers"]
    _write_json(folder / "config.json", config)
    tokenizer = _read_json(folder / "tokenizer_config.json")
    tokenizer.pop("backend", None)
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write_json(folder / "tokenizer_config.json", tokenizer)


def _read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
