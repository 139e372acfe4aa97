"""Tiers behind the cache: tokens that RAM or a disk keeps, and what loading them saves against computing them again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from longboat.core.errors import UserInputError
from longboat.planner.machines.pools import Pool, pool_with
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.kv_room import StageCaches
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.load import Load
from longboat.planner.predict.serving import predict
from longboat.planner.search.forecast import Forecast

__all__ = ("LONGEST", "SHORTEST", "Tier", "TierGain", "parse_tier", "tier_gain")

UNITS = {"gb": 1e9, "gib": 2.0**30, "tb": 1e12, "tib": 2.0**40}
TEXT = re.compile(r"(ram|disk)\s+(\d+(?:\.\d+)?)\s*([gt]i?b)(?:\s+(\d+(?:\.\d+)?)\s*gb/s)?", re.IGNORECASE)
EXAMPLE = 'write --kv-tier "ram 256GiB" or --kv-tier "disk 2TB 7GB/s"'
# A usual NVMe disk on PCIe 4.
DISK_BYTES_PER_S = 7e9
# Of a PCIe lane in one direction, by generation, and the share that copies reach: 25 GB/s over PCIe 4 x16.
LANE_BYTES_PER_S = {3: 1e9, 4: 2e9, 5: 4e9, 6: 8e9}
REACHED = 0.8
# Seconds to look a prompt up and to begin to load it. Our estimates.
BEGIN_S = {"ram": 1e-3, "disk": 5e-3}
SHORTEST, LONGEST = 128, 131_072
LENGTHS = tuple(1 << power for power in range(7, 18))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Room for caches on each node."""

    kind: Literal["ram", "disk"]
    num_bytes: float
    bytes_per_s: float = 0.0  # of reads, on each node; 0: as fast as the accelerators' PCIe


@dataclass(frozen=True, slots=True, kw_only=True)
class TierGain:
    """What a tier holds and saves, for replicas of one layout."""

    tier: Tier
    tokens: int  # of mean prompts, that it keeps on all nodes of these replicas
    cache_tokens: int  # that the replicas' own caches keep
    prompt_tokens: int  # of the mean prompt
    load_s: float  # seconds to load its cache
    compute_s: float  # seconds to compute it
    # That a node must read for loading to take as long as computing; None: computing is quicker at any speed.
    needed_bytes_per_s: float | None
    # Ranges of prompt tokens for which loading is quicker, both ends among the lengths from 128 to ``longest``.
    worth: tuple[tuple[int, int], ...]
    longest: int  # at most 131,072, and what the model reads

    @property
    def is_worth_it(self) -> bool:
        return self.load_s < self.compute_s


def parse_tier(text: str) -> Tier:
    """Read ``ram 256GiB`` or ``disk 2TB 7GB/s``. Raises UserInputError."""
    found = TEXT.fullmatch(text.strip())
    if found is None or float(found[2]) <= 0 or (found[4] and float(found[4]) <= 0):
        raise UserInputError(
            f"{text!r} is not a tier of caches: its kind, its size on each node, its speed", hint=EXAMPLE
        )
    kind: Literal["ram", "disk"] = "ram" if found[1].lower() == "ram" else "disk"
    speed = float(found[4]) * 1e9 if found[4] else DISK_BYTES_PER_S if kind == "disk" else 0.0
    return Tier(kind=kind, num_bytes=float(found[2]) * UNITS[found[3].lower()], bytes_per_s=speed)


def tier_gain(tier: Tier, group: Forecast, pools: Sequence[Pool], calibration: Calibration) -> TierGain:
    """Return what a tier brings to replicas.

    Raises UserInputError where accelerators have no memory of their own, or the engine has no tiers.
    """
    places = {(place.card, place.machine) for place in group.layout.places}
    used = [pool_with(*place, pools) for place in places]
    if tier.kind == "ram" and (shared := next((pool for pool in used if not pool.entry.pcie), None)) is not None:
        raise UserInputError(
            f"{shared.entry.name} has no memory apart from its machine's: RAM behind the cache adds nothing",
            hint='leave it out, or write --kv-tier "disk 2TB 7GB/s"',
        )
    if not engine_traits(group.engine).kv_tiers:
        raise UserInputError(
            f"{group.engine} loads no caches back from RAM or a disk",
            hint="leave --kv-tier out, or plan with --engine vllm or sglang",
        )
    prompt = round(group.demand.traffic(1.0).mean_prompt_tokens)
    longest = group.shape.max_context_tokens or LONGEST
    lengths = [tokens for tokens in LENGTHS if tokens <= longest]
    times = {tokens: _seconds(tier, group, used, tokens, calibration) for tokens in (prompt, *lengths)}
    load_s, compute_s = times[prompt]
    prompt_bytes = _prompt_bytes(group, prompt)
    of_node = prompt_bytes / max(1, _nodes(group, used))
    quicker = [tokens for tokens in lengths if times[tokens][0] < times[tokens][1]]
    num_nodes = min(sum(pool.num_nodes for pool in used), group.layout.replicas * _nodes(group, used))
    kept = tier.num_bytes * num_nodes * prompt / prompt_bytes
    spare_s = compute_s - BEGIN_S[tier.kind]
    return TierGain(
        tier=tier,
        tokens=int(kept),
        cache_tokens=group.layout.replicas * group.fit.num_kv_tokens,
        prompt_tokens=prompt,
        load_s=load_s,
        compute_s=compute_s,
        needed_bytes_per_s=of_node / spare_s if spare_s > 0.0 else None,
        worth=tuple(_ranges(quicker)),
        longest=lengths[-1] if lengths else 0,
    )


def _ranges(quicker: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of lengths that follow each other."""
    first = 0
    for length in quicker:
        first = first or length
        if length * 2 not in quicker:
            yield first, length
            first = 0


def _seconds(
    tier: Tier, group: Forecast, used: Sequence[Pool], tokens: int, calibration: Calibration
) -> tuple[float, float]:
    """Return the seconds to load the cache of a prompt, and to compute it, where the replica does nothing else."""
    ranks = group.fit.unlike_ranks
    of_rank = max(_kept_bytes(group.fit.caches[rank.stage], tokens) for rank in ranks)
    slowest = min((_pcie_bytes_per_s(pool) for pool in used if pool.entry.pcie), default=0.0)
    load_s = of_rank / slowest if slowest else 0.0
    if tier.bytes_per_s:
        load_s = max(load_s, _prompt_bytes(group, tokens) / max(1, _nodes(group, used)) / tier.bytes_per_s)
    alone = Load(concurrency=1.0, prompt_tokens=float(tokens), output_tokens=1.0, spread=0.0)
    compute_s = predict(replace(group.deployment), alone, calibration).prefill_s.value
    return BEGIN_S[tier.kind] + load_s, compute_s


def _prompt_bytes(group: Forecast, tokens: int) -> float:
    """Return the bytes of a prompt's cache on all ranks of a replica, states included: each keeps what it caches."""
    layout, fit = group.layout, group.fit
    return layout.tensor / layout.data * sum(_kept_bytes(stage, tokens) for stage in fit.caches) or 1.0


def _kept_bytes(stage: StageCaches, tokens: int) -> int:
    """Return what is kept of a prompt on a rank: of a state, only the last one."""
    return replace(stage, states=1).bytes_of(tokens)


def _nodes(group: Forecast, used: Sequence[Pool]) -> int:
    """Return the nodes that one replica is on, about: as few as have room for its ranks."""
    return -(-group.layout.num_ranks // max(pool.cards_per_node for pool in used))


def _pcie_bytes_per_s(pool: Pool) -> float:
    generation, _, lanes = pool.entry.pcie.partition("x")
    return LANE_BYTES_PER_S.get(int(generation), LANE_BYTES_PER_S[4]) * int(lanes or 16) * REACHED
