"""Traces, sizes of the fleet and loads: the cells in which all policies are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longboat.routing.policies.registry import POLICIES
from routing_bench.kept import Kept
from routing_bench.stand import Figures, Load, load_of, play, trace_in

__all__ = ("LOADS", "SIZES", "TRACES", "Cell", "Row", "run_grid", "saturation")

TRACES = {"mooncake": (0.2, 4.0), "azure": (2.0, 40.0)}  # requests a second of one replica, certainly below and above
SIZES = (8, 32, 128)
LOADS = (0.5, 0.8, 0.95)
SATURATED = 5.0  # round robin is saturated where the mean TTFT is this number of times that of a nearly idle fleet
STEPS = 6  # of the bisection


@dataclass(frozen=True)
class Cell:
    """One trace, size and load."""

    trace: str
    replicas: int
    load: float

    def __str__(self) -> str:
        return f"{self.trace}, {self.replicas} replicas, {self.load:.0%}"


@dataclass(frozen=True)
class Row:
    """What one policy gave in a cell, for each seed."""

    cell: str
    policy: str
    figures: tuple[Figures, ...]


def saturation(path: Path, replicas: int, bounds: tuple[float, float], requests: int, kept: Kept) -> float:
    """Return the requests a second at which round robin saturates a fleet, by bisection."""

    def mean_ms(rate: float) -> float:
        run = f"saturation {path.name} {replicas} {requests} {rate:.6g}"
        return kept.get(
            run, "round_robin", lambda: play("round_robin", load_of(path, rate, requests), 0, replicas=replicas)
        ).mean

    low, high = (rate * replicas for rate in bounds)
    idle_ms = mean_ms(low / 4)
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        if mean_ms(middle) > SATURATED * idle_ms:
            high = middle
        else:
            low = middle
    return low


def run_grid(
    folder: Path, cells: Sequence[Cell], seeds: int, requests: dict[int, int], kept: Kept,
    policies: Sequence[str] = POLICIES,
) -> list[Row]:  # fmt: skip
    """Run all policies in all cells. requests: by size of the fleet"""
    rows: list[Row] = []
    rates: dict[tuple[str, int], float] = {}
    for cell in cells:
        path, count = trace_in(folder, cell.trace), requests[cell.replicas]
        place = (cell.trace, cell.replicas)
        if place not in rates:
            rates[place] = saturation(path, cell.replicas, TRACES[cell.trace], count, kept)
            print(f"{cell.trace}, {cell.replicas} replicas: round robin saturates at {rates[place]:.2f}/s", flush=True)
        load = load_of(path, rates[place] * cell.load, count)
        rows.extend([Row(str(cell), policy, _seeds(policy, cell, load, count, seeds, kept)) for policy in policies])
    return rows


def _seeds(policy: str, cell: Cell, load: Load, count: int, seeds: int, kept: Kept) -> tuple[Figures, ...]:
    def make(seed: int) -> Figures:
        return play(policy, load, seed, replicas=cell.replicas)

    return tuple(
        kept.get(f"{cell} {count} seed {seed}", policy, lambda seed=seed: make(seed)) for seed in range(1, seeds + 1)
    )
