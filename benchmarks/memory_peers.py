"""Writes how many requests Longboat and llmfit expect twelve logged engines to hold: docs/benchmarks/memory-peers.md.

    python benchmarks/memory_peers.py --llmfit PROGRAM

The truth is the "maximum concurrency" that vLLM logged, or its room for caches divided by that of one request.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

from longboat.catalog.library import built_in_library
from longboat.catalog.quantized_names import named_model
from longboat.planner.memory.budget import reported_bytes
from longboat.planner.memory.fit import plan_fit
from longboat.planner.memory.split_shape import Load, Split, card_of

RESULT = Path(__file__).parents[1] / "docs" / "benchmarks" / "memory-peers.md"
GIB = 1024**3
DEADLINE_S = 60
HEAD = """\
# Requests held, beside llmfit: results

How many requests of a length does an engine hold at once? Repeat it with `python benchmarks/memory_peers.py --llmfit
PROGRAM`, where PROGRAM is llmfit's (its musl wheel runs on any Linux). The truth is the "maximum concurrency" of
public logs of vLLM, which [the tests](../../tests/planner/test_engine_logs.py) cite.
"""
FAIRNESS = """
**What each knows.** Longboat gets the engine's settings: version, `gpu-memory-utilization`, `max-num-seqs`. llmfit
has no such settings: it gets the memory that vLLM may use of all cards, takes 0.5 GB beside the weights, and adds
weights in GB of 10^9 to caches in GiB. It counts FP8 as Q8_0, every layer of Gemma 4 in full, and no splits over
cards.

**Gemma 4.** vLLM's figure counts for each request, in layers with a window, the tokens of two steps under way: here
all 16,384. llmfit counts all tokens of every layer. Only requests that are in such a step take them: more run at once.

**Not blind.** Longboat's formulas were made with these logs; llmfit has none of its own for memory.

**gguf-parser** answers for GGUF files in llama.cpp only: [a page of its own](memory-peers-gguf.md) has it.
AIConfigurator's command line says nothing of memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One log. held: requests of ``context`` tokens that the engine said it holds."""

    model: str
    hub: str
    card: str
    context: int
    held: float
    version: tuple[int, int]
    tensor: int = 1
    ratio: float = 0.9
    sequences: int = 0
    batched: int = 0
    quant: str = "F16"  # as llmfit names it


H100 = "H100 SXM"
LLAMA, SMALL = "meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"
CASES = (
    Case(model="Qwen3-14B", hub="Qwen/Qwen3-14B", card=H100, ratio=0.95, context=8192, held=33.55, version=(0, 15)),
    Case(model="Qwen3-14B", hub="Qwen/Qwen3-14B", card=H100, ratio=0.95, context=8192, held=36.27, version=(0, 17)),
    Case(model="Llama-3.1-8B", hub=LLAMA, card=H100, ratio=0.95, context=8192, held=58.1, version=(0, 19)),
    Case(model="Qwen2.5-7B", hub="Qwen/Qwen2.5-7B-Instruct", card=H100, ratio=0.95, context=8192, held=133.8,
         version=(0, 19)),
    Case(model="Mistral-Small-3.2-24B", hub=SMALL, card=H100, ratio=0.95, context=16_000, held=11.55, version=(0, 11)),
    Case(model="Qwen3-32B", hub="Qwen/Qwen3-32B", card=H100, context=16_000, held=1.14, version=(0, 11)),
    Case(model="Qwen3-32B", hub="Qwen/Qwen3-32B", card=H100, tensor=2, context=16_000, held=17.66, version=(0, 11)),
    Case(model="Llama-3.3-70B-FP8", hub="meta-llama/Llama-3.3-70B-Instruct", card=H100, tensor=2, context=16_000,
         held=13.1, version=(0, 11), quant="Q8_0"),
    Case(model="Qwen3-235B-A22B-FP8", hub="Qwen/Qwen3-235B-A22B", card="RTX PRO 6000 Blackwell", tensor=4,
         context=32_768, held=18.96, version=(0, 27), sequences=32, quant="Q8_0"),
    Case(model="Gemma-4-31B", hub="google/gemma-4-31B-it", card="B300 SXM", ratio=0.92, context=16_384, held=13.25,
         version=(0, 26), batched=8192),
    Case(model="Qwen3-Next-80B-A3B", hub="Qwen/Qwen3-Next-80B-A3B-Instruct", card="H200 SXM", tensor=2,
         context=262_144, held=14.77, version=(0, 10)),
    Case(model="Llama-3.1-8B", hub=LLAMA, card="A100 SXM 80GB", ratio=0.92, context=131_072, held=3.51,
         version=(0, 31)),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llmfit", type=Path, required=True, help="the peer's program")
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    version = subprocess.run([given.llmfit, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    lines = [HEAD, f"{date.today().isoformat()}, {len(CASES)} cases; {version}.\n"]
    lines += ["| model | cards, engine, context | logged | Longboat | llmfit |", "| --- | --- | ---: | ---: | ---: |"]
    errors: tuple[list[float], list[float]] = [], []
    for case in CASES:
        cells = []
        for told, found in zip((_longboat(case), _llmfit(given.llmfit, case)), errors, strict=True):
            cells.append("no answer" if told is None else f"{told:.3g} ({told / case.held - 1:+.0%})")
            found += [] if told is None else [abs(told / case.held - 1)]
        engine = f"vLLM {case.version[0]}.{case.version[1]}"
        cards = f"{case.tensor}x {case.card}, {engine}, {case.context} tokens"
        lines.append(f"| {case.model} | {cards} | {case.held:g} | {' | '.join(cells)} |")
    lines.append(f"| **median error** | | | {' | '.join(f'{median(one):.0%} of {len(one)}' for one in errors)} |")
    given.output.write_text("\n".join([*lines, FAIRNESS.rstrip(), ""]), encoding="utf-8")
    print(f"written: {given.output}")
    return 0


def _longboat(case: Case) -> float:
    library = built_in_library()
    shape, card = named_model(case.model, library), card_of(library.accelerators.find(case.card))
    load = Load(
        context_tokens=case.context,
        memory_ratio=case.ratio,
        engine_sequences=case.sequences,
        batched_tokens=case.batched,
        version=case.version,
        fixed=True,
    )
    split = Split(tensor=case.tensor, stages=(len(shape.layers),))
    ranks = plan_fit(shape, [card] * case.tensor, split, load).unlike_ranks
    return min(rank.cache_room_bytes / rank.cache_need(1) for rank in ranks)


def _llmfit(program: Path, case: Case) -> float | None:
    """Return the peer's answer, not rounded down; None where it has none."""
    card = card_of(built_in_library().accelerators.find(case.card))
    pool = case.tensor * case.ratio * reported_bytes(card) / GIB
    options = ["--memory", f"{pool:.2f}G", "--ram", "1024G", "--json", "concurrency", case.hub]
    options += ["--quant", case.quant, "--context", str(case.context)]
    done = subprocess.run([str(program), *options], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    try:
        told = json.loads(done.stdout)["estimate"]
    except (ValueError, KeyError):
        print(f"{case.hub}: {(done.stderr or done.stdout).strip()[:200]}", file=sys.stderr)
        return None
    return float(told["kv_budget_gb"]) / float(told["ladder"][0]["per_session_kv_gb"])


if __name__ == "__main__":
    sys.exit(main())
