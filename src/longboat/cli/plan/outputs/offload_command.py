"""``longboat plan MODEL --offload RAM``: what llama.cpp keeps in RAM where a model does not fit a card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_document import model_values
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import Planner, check_generates, planner_for
from longboat.core.errors import UserInputError
from longboat.planner.compare.offload import Offloaded, Ram, offloaded
from longboat.planner.machines.cluster_text import parse_cards
from longboat.planner.machines.pools import Pool, pools_of
from longboat.planner.memory.engine import OFFLOADING
from longboat.planner.predict.machine import machine_of

__all__ = ("run_offload",)

GIB = 1024**3
FEWER_BITS = "q4_k_m"
EXAMPLE = "--on RTX4090 --offload 'Desktop 2ch DDR5-5600 64GB'"


def run_offload(model: str, request: PlanRequest, ram: str, *, as_json: bool) -> None:
    """Print the ways to keep a part of the model in RAM, the fastest first."""
    planner = planner_for(replace(request, engine="llamacpp"))
    shape = planner.read(model)
    check_generates(shape)
    shape = planner.comparison(shape).formats(OFFLOADING)[0]
    pool, memory = _card(planner), _ram(ram, planner)
    found = offloaded(shape, pool, memory, planner.demand, planner.calibration)
    if not found:
        raise UserInputError(
            f"{shape.name} needs {shape.weight_bytes / GIB:.1f} GiB for weights alone: one {pool.entry.name} with "
            f"{memory.usable_bytes / GIB:.0f} GiB of RAM has no room for them and the caches",
            hint=", or ".join(_changes(shape, planner)),
        )
    if as_json:
        ways = [asdict(one) for one in found]
        print(json.dumps({**model_values(shape, request.kv_bits), "card": pool.entry.name, "ways": ways}, indent=2))
        return
    print("\n".join(_lines(shape, pool, memory, planner, found)))


def _changes(shape: ModelShape, planner: Planner) -> Iterator[str]:
    """Yield what takes less room than what was asked for."""
    if requantized(shape, FEWER_BITS).weight_bytes < shape.weight_bytes:
        yield f"take fewer bits: --quantization {FEWER_BITS}"
    if planner.demand.users > 1:
        yield "fewer requests at once: --concurrency 1"
    yield "more RAM"


def _card(planner: Planner) -> Pool:
    """Return the one kind of card that the machines have. Raises UserInputError."""
    pools = pools_of(planner.cluster)
    names = sorted({pool.entry.name for pool in pools})
    if len(names) > 1 or pools[0].entry.kind == "cpu":
        raise UserInputError(f"--offload looks at one kind of card, and --on has {', '.join(names)}", hint=EXAMPLE)
    return pools[0]


def _ram(text: str, planner: Planner) -> Ram:
    """Return the RAM of a processor of the catalog. Raises UserInputError."""
    cards = parse_cards(text, planner.library)
    entry = cards[0].entry
    if entry.kind != "cpu" or len(cards) > 1 or cards[0].count > 1:
        raise UserInputError(f"--offload {text!r} is not one processor of the catalog", hint=EXAMPLE)
    return Ram(machine=machine_of(entry), usable_bytes=int(cards[0].memory_bytes * entry.usable_ratio))


def _lines(shape: ModelShape, pool: Pool, memory: Ram, planner: Planner, found: Sequence[Offloaded]) -> Iterator[str]:
    demand, running = planner.demand, found[0].sequences
    told = f"weights in {shape.quantization or shape.dtype}, {shape.weight_bytes / GIB:.1f} GiB"
    yield f"{shape.name} on one {pool.entry.name} and the RAM of {memory.machine.name}, {OFFLOADING}; {told}"
    waiting = f", {demand.users - running} more wait" if demand.users > running else ""
    at_once = f"{running} request{'s' * (running > 1)} at once{waiting}"
    yield f"{at_once}, of {demand.prompt_tokens} + {demand.output_tokens} tokens; speeds are computed"
    for one in found:
        yield (
            f"· {_what(one, shape)} in RAM: {one.card_bytes / GIB:.1f} GiB on the card, {one.ram_bytes / GIB:.1f} in "
            f"RAM; {one.sequences / one.itl_s:.1f} tokens/s, first token {one.ttft_s:.1f} s"
        )
    yield ""
    yield " ".join(["llama-server -m MODEL.gguf", *found[0].options])


def _what(one: Offloaded, shape: ModelShape) -> str:
    if one.way in ("cache", "nothing"):
        return {"cache": "the caches", "nothing": "nothing"}[one.way]
    part = "the experts of " if one.way == "experts" else ""
    return f"{part}{one.layers} of {len(shape.layers)} layers"
