"""Partial offload of llama.cpp: what goes to the RAM where a model does not fit the card, and how fast it then is.

Three ways are looked at: whole layers (``--n-gpu-layers``), the experts of some layers (``--n-cpu-moe``), and caches
(``--no-kv-offload``), each with as little in RAM as lets the rest fit. A step passes the parts one after the other: the
time model says what each takes on the card or on the processor. Prompts are computed in chunks: for each, llama.cpp
copies weights from the RAM to the card, or the processor computes; the quicker of both is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.planner.machines.pools import Pool
from longboat.planner.memory.budget import budget_of, overhead_of, window_batch
from longboat.planner.memory.engine import OFFLOADING, engine_traits
from longboat.planner.memory.kv_room import sequence_bytes
from longboat.planner.memory.split_shape import Load, Split
from longboat.planner.memory.stage_weights import ram_bytes
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment, Stage
from longboat.planner.predict.kernels import kernel_class
from longboat.planner.predict.machine import Machine
from longboat.planner.predict.work import Pass, head_work, layer_work
from longboat.planner.search.demand import Demand

__all__ = ("Offloaded", "Ram", "Way", "offloaded")

Way = Literal["nothing", "experts", "layers", "cache"]
# Seconds in which the card and the processor hand over to each other in a layer: our estimate.
HAND_OVER_S = 5e-5
CACHE_TERMS = ("decode_read_cache", "decode_attend", "prefill_attend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ram:
    """The memory that takes what does not fit, with the processor that computes it."""

    machine: Machine
    usable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """One way to offload, with the least in RAM that lets the rest fit."""

    way: Way
    layers: int  # of which something is in RAM
    card_bytes: int  # buffers and the runtime included
    ram_bytes: int
    sequences: int  # requests at once
    itl_s: float
    ttft_s: float
    options: tuple[str, ...]  # of llama-server


def offloaded(shape: ModelShape, pool: Pool, ram: Ram, demand: Demand, calibration: Calibration) -> list[Offloaded]:
    """Return the ways that fit on one card of a pool and the RAM, the fastest first."""
    return sorted(_Maker(shape, pool, ram, demand, calibration).ways(), key=lambda one: one.itl_s)


class _Maker:
    """Counts bytes and seconds of the ways to offload one model."""

    def __init__(self, shape: ModelShape, pool: Pool, ram: Ram, demand: Demand, calibration: Calibration) -> None:
        self.shape, self.pool, self.ram, self.demand = shape, pool, ram, demand
        self.calibration = calibration
        self.load: Load = demand.load(OFFLOADING, demand.users)
        split = Split(stages=(len(self.shape.layers),))
        overhead = sum(overhead_of(pool.card, shape, split, self.load, last=True).values())
        self.room = budget_of(pool.card, split, self.load).num_bytes
        self.weights = [layer.num_bytes for layer in self.shape.layers]
        self.experts = [sum(w.num_bytes for w in layer.weights if w.part == "experts") for layer in self.shape.layers]
        batch = window_batch(self.load)
        self.caches = [
            self.load.num_sequences * sequence_bytes(layer.cache, self.load.context_tokens, self.load.kv_bytes, batch)
            for layer in self.shape.layers
        ]
        self.kept = ram_bytes(shape, split, pool.card, self.load)
        self.whole = shape.weight_bytes + sum(self.caches) - self.kept + overhead

    def ways(self) -> Iterator[Offloaded]:
        """Yield each way that fits, with as little in RAM as can be; none of them where all fits the card."""
        spare = self.ram.usable_bytes - self.kept
        if self.whole <= self.room:
            if spare >= 0:
                yield self._made("nothing", 0, 0)
            return
        count = len(self.shape.layers)
        for way, most in (("experts", count), ("layers", count), ("cache", 1)):
            for number in range(1, most + 1):
                moved = self._moved(way, number)
                if moved and self.whole - moved <= self.room:
                    if moved <= spare:
                        yield self._made(way, number if way != "cache" else count, moved)
                    break

    def _moved(self, way: str, number: int) -> int:
        """Return the bytes that go to RAM; llama.cpp begins with the first layers."""
        if way == "cache":
            return sum(self.caches)
        if way == "experts":
            return sum(self.experts[:number])
        return sum(self.weights[:number]) + sum(self.caches[:number])

    def _made(self, way: str, number: int, moved: int) -> Offloaded:
        traffic = self.demand.traffic(1.0)
        prompt, users = traffic.computed_tokens, float(self.load.num_sequences)
        context = traffic.mean_prompt_tokens + traffic.mean_output_tokens / 2
        step = Pass(tokens=users, sequences=users, context_tokens=context, decoding=True)
        chunk = engine_traits(OFFLOADING).chunk_tokens
        chunks = max(1.0, -(-prompt // chunk))
        before = traffic.mean_prompt_tokens - prompt / 2
        part = Pass(tokens=prompt / chunks, sequences=1.0, context_tokens=before, decoding=False)
        itl_s = self._pass_s(way, number, step)
        return Offloaded(
            way=way,  # type: ignore[arg-type]
            layers=number,
            card_bytes=self.whole - moved,
            ram_bytes=moved + self.kept,
            sequences=self.load.num_sequences,
            itl_s=itl_s,
            ttft_s=chunks * self._pass_s(way, number, part) + itl_s,
            options=self._options(way, number),
        )

    def _options(self, way: str, number: int) -> tuple[str, ...]:
        load, count = self.load, len(self.shape.layers)
        sizes = (f"--ctx-size {load.context_tokens * load.num_sequences}", f"--parallel {load.num_sequences}")
        told = {
            "nothing": (f"--n-gpu-layers {count + 1}",),
            "experts": (f"--n-gpu-layers {count + 1}", f"--n-cpu-moe {number}"),
            "layers": (f"--n-gpu-layers {count + 1 - number}",),  # the head counts as one
            "cache": (f"--n-gpu-layers {count + 1}", "--no-kv-offload"),
        }[way]
        return (*told, *sizes)

    def _pass_s(self, way: str, number: int, step: Pass) -> float:
        """Return the seconds of a pass through all layers and the head."""
        total = sum(
            self._layer_s(way, index, step) if index < number else self._seconds(self.pool.machine, layer, step)
            for index, layer in enumerate(self.shape.layers)
        )
        machine = self.pool.machine
        return total + self._sum(machine, head_work(self._alone(machine), self._stage(machine), step))

    def _layer_s(self, way: str, index: int, step: Pass) -> float:
        """Return the seconds of a layer of which something is in RAM."""
        layer, card, processor = self.shape.layers[index], self.pool.machine, self.ram.machine
        moved: Callable[[str], bool] = {
            "experts": lambda name: name.endswith("_experts"),
            "layers": lambda name: True,
            "cache": lambda name: name in CACHE_TERMS,
        }[way]
        here = self._seconds(card, layer, step, lambda name: not moved(name))
        there = self._seconds(processor, layer, step, moved)
        hand_over_s = 0.0 if way == "layers" else HAND_OVER_S
        if step.decoding or way == "cache":
            return here + there + hand_over_s
        size = self.experts[index] if way == "experts" else self.weights[index]
        copied = size / self.pool.bus.bandwidth_bytes_per_s + self._seconds(card, layer, step, moved)
        return here + min(there, copied) + hand_over_s

    def _seconds(
        self, machine: Machine, layer: Layer, step: Pass, counts: Callable[[str], bool] = lambda name: True
    ) -> float:
        work = layer_work(self._alone(machine), self._stage(machine), layer, step)
        return self._sum(machine, {name: value for name, value in work.items() if counts(name)})

    def _sum(self, machine: Machine, work: Mapping[str, float]) -> float:
        constants = self.calibration.constants(
            engine=OFFLOADING, kernel=kernel_class(self.shape, machine), machine=machine.name
        )
        return sum(constants[name] * value for name, value in work.items())

    def _alone(self, machine: Machine) -> Deployment:
        return Deployment(shape=self.shape, engine=engine_traits(OFFLOADING), stages=(self._stage(machine),))

    def _stage(self, machine: Machine) -> Stage:
        return Stage(num_layers=len(self.shape.layers), machine=machine)
