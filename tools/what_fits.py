"""Writes docs/guides/what-fits.md: figures that a widely read guide prints, beside what the planner computes.

``python tools/what_fits.py`` writes the page, ``--check`` only says whether it is as it would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.cost import break_even_months, even_tokens_per_day
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.memory.split_shape import EngineKind
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.ranking import Plan
from longboat.planner.search.search import SearchResult, search

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "what-fits.md"
LIBRARY = built_in_library()
GB = 1e9
MEMORY_DEMAND = Demand(users=1, prompt_tokens=3072, output_tokens=1024)
SPEED_DEMAND = Demand(users=1, prompt_tokens=512, output_tokens=256)
COST_DEMAND = Demand(users=8, prompt_tokens=512, output_tokens=256)
CARDS_PER_NODE = 8
MAX_CARDS = 64
API_USD_PER_MILLION = 30.0
TOKENS_PER_DAY = 100_000.0
DAYS_PER_MONTH = 365 / 12


@dataclass(frozen=True, slots=True)
class Size:
    """A row of the guide's memory table: GB, and cards for Q4."""

    model: str
    fp16_gb: int
    q4_gb: int
    cards: tuple[tuple[int, str], ...]


SIZES = (
    Size("Llama-3.1-8B", 16, 6, ((1, "RTX 4090"),)),
    Size("Llama-3.1-70B", 140, 42, ((2, "RTX 4090"), (1, "H100"))),
    Size("Llama-3.1-405B", 810, 230, ((10, "RTX 4090"), (3, "H100"))),
    Size("Mixtral-8x22B", 180, 55, ((3, "RTX 4090"), (1, "H100"))),
    Size("DeepSeek-R1", 1342, 380, ((17, "RTX 4090"), (5, "H100"))),
    Size("Qwen3-235B-A22B", 470, 135, ((6, "RTX 4090"), (2, "H100"))),
)
# Llama 3.1 70B: machines, tokens per second, milliseconds to the first token.
SPEEDS = (
    ("2x RTX 4090, one node", "2xRTX4090", "awq", 45, 120),
    ("2x RTX 4090, two nodes, 10 GbE", "2x(RTX4090), net=10GbE", "awq", 38, 180),
    ("4x RTX 4090, two nodes, 10 GbE", "2x(2xRTX4090), net=10GbE", "awq", 52, 150),
    ("4x RTX 4090, two nodes, InfiniBand HDR", "2x(2xRTX4090), net=hdr", "awq", 60, 125),
    ("2x H100", "2xH100", "awq", 85, 80),
    ("2x H100", "2xH100", "fp8", 85, 80),
)
# Machines, purchase, power a month, months to break even as the guide has it.
COSTS = (
    ("2x RTX 4090", "2xRTX4090", 4000.0, 150.0, 8),
    ("4x RTX 4090", "4xRTX4090", 8500.0, 300.0, 10),
    ("8x RTX 3090", "8xRTX3090", 10000.0, 500.0, 12),
    ("2x H100", "2xH100", 60000.0, 800.0, 18),
)


@cache
def shape(model: str, quantization: str = "") -> ModelShape:
    stored = shape_of_entry(LIBRARY.models.find(model))
    return requantized(stored, quantization or "bf16")


def planned(model: str, quantization: str, on: str, demand: Demand, engine: EngineKind = "vllm") -> SearchResult:
    return search([shape(model, quantization)], parse_cluster(on, LIBRARY), demand, engine, built_in_calibration())


def machines(count: int, card: str) -> str:
    """Nodes of eight cards, and one with the rest."""
    whole, rest = divmod(count, CARDS_PER_NODE)
    parts = [f"{whole}x({CARDS_PER_NODE}x{card})"] if whole else []
    parts += [f"1x({rest}x{card})"] if rest else []
    return " + ".join(parts) + ", net=100GbE"


@cache
def fits(model: str, quantization: str, count: int, card: str, engine: EngineKind) -> bool:
    """Whether one replica that takes all of the cards, or fewer, holds one request."""
    return bool(planned(model, quantization, machines(count, card), MEMORY_DEMAND, engine).plans)


@cache
def least_cards(model: str, quantization: str, card: str, engine: EngineKind) -> int | None:
    memory = LIBRARY.accelerators.find(card).usable_bytes
    first = max(1, ceil(shape(model, quantization).weight_bytes / memory))
    counts = range(first, min(MAX_CARDS, 3 * first + 8) + 1)
    return next((count for count in counts if fits(model, quantization, count, card, engine)), None)


def memory_rows() -> Iterator[str]:
    yield "| model | guide FP16 | 16 bits | guide Q4 | Q4_K_M | AWQ |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for size in SIZES:
        plain, mixed, awq = (shape(size.model, name).weight_bytes / GB for name in ("", "q4_k_m", "awq"))
        yield (
            f"| {size.model} | {size.fp16_gb} GB | {plain:.0f} GB{_off(size.fp16_gb, plain)} | {size.q4_gb} GB | "
            f"{mixed:.0f} GB{_off(size.q4_gb, mixed)} | {awq:.0f} GB |"
        )


def _off(guide: float, ours: float) -> str:
    return "" if abs(ours / guide - 1) < 0.05 else f" ({ours / guide - 1:+.0%})"


def memory_notes() -> Iterator[str]:
    """A sentence for each cell that differs."""
    for size in SIZES:
        params = shape(size.model).num_params
        for name, guide, ours in (
            ("FP16", size.fp16_gb, shape(size.model).weight_bytes / GB),
            ("Q4", size.q4_gb, shape(size.model, "q4_k_m").weight_bytes / GB),
        ):
            if not _off(guide, ours):
                continue
            if name == "FP16":
                yield (
                    f"- **{size.model}, FP16**: {params / 1e9:.1f}B parameters of 2 bytes take {ours:.0f} GB. "
                    f"{guide} GB would be {guide / 2:.0f}B parameters."
                )
            else:
                yield _q4_note(size, guide, ours, params)


def _q4_note(size: Size, guide: float, ours: float, params: int) -> str:
    bits, own = guide * GB * 8 / params, ours * GB * 8 / params
    if _off(size.fp16_gb, shape(size.model).weight_bytes / GB):
        return f"- **{size.model}, Q4**: also counted for {size.fp16_gb / 2:.0f}B parameters; Q4_K_M is {ours:.0f} GB."
    why = (
        "the guide may also count buffers and a cache"
        if guide > ours
        else "values, down projections and the head use more than 4"
    )
    return f"- **{size.model}, Q4**: {guide} GB is {bits:.2f} bits per parameter; Q4_K_M uses {own:.2f}: {why}."


def card_rows() -> Iterator[str]:
    yield "| model | guide, Q4 | Q4_K_M in llama.cpp | AWQ in vLLM | 16 bits in vLLM |"
    yield "| --- | --- | --- | --- | --- |"
    for size in SIZES:
        for count, card in size.cards:
            cells = [_cards(least_cards(size.model, name, card, engine), card) for name, engine in _ways()]
            yield f"| {size.model} | {count}x {card} | {' | '.join(cells)} |"


def _ways() -> tuple[tuple[str, EngineKind], ...]:
    return (("q4_k_m", "llama.cpp"), ("awq", "vllm"), ("", "vllm"))


def _cards(count: int | None, card: str) -> str:
    return f"more than {MAX_CARDS}" if count is None else f"{count}x {card}"


def card_notes() -> Iterator[str]:
    for size in SIZES:
        for count, card in size.cards:
            least = least_cards(size.model, "q4_k_m", card, "llama.cpp")
            if least == count:
                continue
            usable = count * LIBRARY.accelerators.find(card).usable_bytes / GB
            weights = shape(size.model, "q4_k_m").weight_bytes / GB
            where = f"- **{size.model} on {count}x {card}**: {weights:.0f} GB of weights, {usable:.0f} GB of memory"
            if least is None or least > count:
                short = "the weights alone exceed it" if weights > usable else "buffers and the cache do not fit too"
                yield f"{where}: {short}, {_cards(least, card)} suffice."
            else:
                yield f"{where}: {_cards(least, card)} {'suffices' if least == 1 else 'suffice'}."


def speed_rows() -> Iterator[str]:
    yield "| machines | weights | guide | planned | split | other split |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for title, on, quantization, speed, ttft in SPEEDS:
        found = planned("Llama-3.1-70B", quantization, on, SPEED_DEMAND)
        best = found.plans[0]
        other = next((plan for plan in found.plans[1:] if plan.groups[0].layout.num_ranks > 1), None)
        yield (
            f"| {title} | {quantization} | {speed} tokens/s, {ttft} ms | {_speed(best)} | {best.title} | "
            f"{f'{other.title}: {_speed(other)}' if other else '–'} |"
        )


def _speed(plan: Plan) -> str:
    prediction = plan.groups[0].prediction
    itl, ttft = prediction.itl_s, prediction.ttft_s
    return (
        f"{1 / itl.value:.0f} tokens/s ({1 / itl.high:.0f} … {1 / itl.low:.0f}), {ttft.value * 1e3:.0f} ms "
        f"({ttft.low * 1e3:.0f} … {ttft.high * 1e3:.0f})"
    )


def speed_notes() -> Iterator[str]:
    for title, on, quantization, speed, _ in SPEEDS:
        best = planned("Llama-3.1-70B", quantization, on, SPEED_DEMAND).plans[0]
        group = best.groups[0]
        low, high = (1 / group.prediction.itl_s.high, 1 / group.prediction.itl_s.low)
        bound = _bound(best)
        yield (
            f"- **{title}, {quantization}**: a token reads the weights of each stage once; memory alone allows "
            f"{bound:.0f} tokens/s with this split. The guide's {speed} is {_verdict(speed, low, high, bound)}."
        )


def _verdict(speed: float, low: float, high: float, bound: float) -> str:
    if speed > bound:
        return "above that limit; only another split, speculative decoding or several requests could reach it"
    return "within the interval" if low <= speed <= high else f"{'above' if speed > high else 'below'} the interval"


def _bound(plan: Plan) -> float:
    """Tokens per second of one request if memory were all: stages pass one after the other."""
    group = plan.groups[0]
    stages = {rank.stage: rank for rank in group.fit.ranks}
    speeds = {place.card.name: place.machine.bandwidth_bytes_per_s for place in group.layout.places}
    return 1 / sum(rank.weight_bytes / speeds[rank.card.name] for rank in stages.values())


def cost_rows() -> Iterator[str]:
    yield (
        "| machines | price, power a month | guide | at 100K tokens a day | needed for the guide's months | "
        "machines can serve |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    api = TOKENS_PER_DAY * DAYS_PER_MONTH / 1e6 * API_USD_PER_MILLION
    for title, on, price, power, months in COSTS:
        plan = planned("Llama-3.1-70B", "awq", on, COST_DEMAND).plans[0]
        total = (COST_DEMAND.prompt_tokens + COST_DEMAND.output_tokens) / COST_DEMAND.output_tokens
        served = plan.tokens_per_s * total * 86400
        even = break_even_months(price, power, api)
        needed = even_tokens_per_day(price, power, API_USD_PER_MILLION, months)
        answer = f"after {even:.0f} months" if even else f"never: {api:.0f} USD saved, {power:.0f} USD for power"
        yield (
            f"| {title} | {price:.0f} USD, {power:.0f} USD | {months} months | {answer} | "
            f"{needed / 1e3:.0f}K tokens a day | {served / 1e6:.0f}M tokens a day |"
        )


PAGE_TEXT = """\
# What fits

This page compares the figures of a widely read guide of 2026 with the output of `longboat plan`. `make what-fits`
writes the page; do not edit it. [Planning](../concepts/planning.md) and [prediction](../concepts/prediction.md) say
what the planner counts.

## Memory of the weights

A GB is 10^9 bytes. AWQ uses 4 bits in groups of 128, with embedding and head in 16 bits. A percentage is the difference
from the guide's figure, if it is 5 % or more.

{memory_rows}

{memory_notes}

## Cards

The table shows the fewest cards on which an engine starts and holds one request of 4,096 tokens, with the KV cache in
16 bits. Nodes have up to eight cards and 100 GbE; layers are divided unevenly if that helps. vLLM uses 0.92 of a card,
llama.cpp only what it needs. The guide's card counts are for Q4.

{card_rows}

{card_notes}

## Speed of Llama 3.1 70B

The planner assumes one request at a time, {prompt} prompt tokens, {output} output tokens, vLLM, and no speculative
decoding. The range in brackets is expected to contain 8 of 10 measurements. The guide does not state its assumptions.

{speed_rows}

{speed_notes}

## Cost against an API at 0.03 USD per 1,000 tokens

Purchase and power prices are the guide's. At the API's price, 100,000 tokens a day cost 91 USD a month, less than the
power alone. No machine pays for itself at this load. The last column is for Llama 3.1 70B in AWQ with {users}
concurrent requests of {prompt} + {output} tokens; prompt tokens count.

{cost_rows}

Hosted 70B models now cost about a hundredth of that price; `longboat cost` with `--api` compares any price in the
catalog. A purchase that must pay for itself then needs a hundred times the load.
"""


def page() -> str:
    """The whole page."""
    parts = (memory_rows, memory_notes, card_rows, card_notes, speed_rows, speed_notes, cost_rows)
    texts = {part.__name__: "\n".join(part()) for part in parts}
    demand = SPEED_DEMAND
    return PAGE_TEXT.format(**texts, prompt=demand.prompt_tokens, output=demand.output_tokens, users=COST_DEMAND.users)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("as it would be written" if same else f"{PAGE} differs: run make what-fits")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
