"""What an engine is given that gets a part of a card, and leaves the rest to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.core.plan import EngineMemory, part_of_memory
from longboat.engines.contract import EngineAdapter

__all__ = ("part_of_card", "planned_memory")


def planned_memory(
    adapter: EngineAdapter, args: Sequence[str], platform: str, gpus: float | None
) -> EngineMemory | None:
    """Return what ``adapter.memory`` says, with the part's share of a card where no argument gives one."""
    told = adapter.memory(args, platform)
    if told is None or told.memory_ratio or not gpus or gpus >= 1:
        return told
    return replace(told, memory_ratio=part_of_memory(gpus, adapter.memory_ratio))


def part_of_card(adapter: EngineAdapter, gpus: float) -> tuple[tuple[str, str], ...]:
    """Return the argument that keeps an engine to its part of a card; none for a whole one."""
    part = part_of_memory(gpus, adapter.memory_ratio)
    return ((adapter.memory_flag, f"{part:g}"),) if 0 < gpus < 1 and adapter.memory_flag else ()
