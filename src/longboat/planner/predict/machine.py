"""The properties of one accelerator, and of the links between several, that the time model uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from longboat.catalog.entries import Accelerator, Link
from longboat.planner.memory.engine import engine_traits

__all__ = ("LOOPBACK", "Fabric", "Machine", "fabric_of", "machine_for", "machine_of")

Native = Literal["fp4", "fp8", "bf16", "fp32"]
WIDE_BYTES = 4.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One accelerator."""

    name: str
    memory_bytes: float  # that one engine process can have
    bandwidth_bytes_per_s: float  # of the memory, as specified
    # Dense operations a second, by bits of an operand. A width that the hardware does not multiply has the figure of
    # the next wider one.
    flops_16: float
    flops_8: float
    flops_4: float
    flops_32: float = 0.0  # 0 where no engine computes with 32 bits
    processor: bool = False  # it is a processor and not an accelerator
    number_bytes: float = 2.0  # of a number between two multiplications

    def __hash__(self) -> int:
        """Return a hash of few fields: searches look work up by machine hundreds of thousands of times."""
        return hash((self.name, self.bandwidth_bytes_per_s))

    def part(self, share: float) -> Machine:
        """Return what a process has that gets ``share`` of the accelerator's time."""
        return replace(
            self,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * share,
            flops_16=self.flops_16 * share,
            flops_8=self.flops_8 * share,
            flops_4=self.flops_4 * share,
            flops_32=self.flops_32 * share,
        )

    @property
    def native(self) -> Native:
        """The narrowest floating-point type that it multiplies."""
        if self.number_bytes == WIDE_BYTES:
            return "fp32"
        if self.flops_4 > self.flops_8:
            return "fp4"
        return "fp8" if self.flops_8 > self.flops_16 else "bf16"


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """A link between accelerators."""

    name: str
    latency_s: float  # of a small all-reduce between two accelerators; a message one way takes half of it
    bandwidth_bytes_per_s: float  # in one direction, as reached

    def __hash__(self) -> int:
        """Return a hash of few fields, as for ``Machine``."""
        return hash((self.name, self.bandwidth_bytes_per_s))


LOOPBACK = Fabric(name="same device", latency_s=0.0, bandwidth_bytes_per_s=1e15)


def machine_of(entry: Accelerator) -> Machine:
    """Return the machine that a catalog entry describes."""
    flops_16 = entry.flops("bf16") or entry.flops("fp16") or entry.flops("fp32")
    flops_8 = max(entry.tflops.get("fp8", 0.0) * 1e12, flops_16)
    return Machine(
        name=entry.name,
        memory_bytes=entry.usable_bytes,
        bandwidth_bytes_per_s=entry.bandwidth_bytes_per_s,
        flops_16=flops_16,
        flops_8=flops_8,
        flops_4=max(entry.tflops.get("fp4", 0.0) * 1e12, flops_8),
        flops_32=entry.tflops.get("fp32", 0.0) * 1e12,
        processor=entry.kind == "cpu",
    )


def machine_for(machine: Machine, engine: str) -> Machine:
    """Return the machine as an engine uses it: some compute with 32 bits on processors."""
    if not machine.processor or not engine_traits(engine).wide_on_processors:
        return machine
    flops = machine.flops_32 or machine.flops_16
    return replace(machine, flops_16=flops, flops_8=flops, flops_4=flops, number_bytes=WIDE_BYTES)


def fabric_of(link: Link) -> Fabric:
    """Return the link that a catalog entry describes."""
    return Fabric(name=link.name, latency_s=link.latency_s, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s)
