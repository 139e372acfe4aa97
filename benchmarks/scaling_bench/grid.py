"""All rules on all loads, with figures that were made before kept in a file.

Our own figures are kept under a digest of the scaler's source, so that they are made again when it changes. Figures of
peers and of the minimum are kept under the load's name: remove the file when the twin, a load or a peer changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kept_values import KeptValues

import longboat.scaling
from longboat.simulator.scaled.scaled_fleet import ScaledResult
from scaling_bench.clairvoyant import clairvoyant, knowing
from scaling_bench.loads import Load
from scaling_bench.peers import PEERS, Peer
from scaling_bench.stand import bears, run_ours, run_rule

__all__ = (
    "COST_GOAL",
    "KNOWING",
    "OURS",
    "PARTS",
    "Lines",
    "Row",
    "knowing_of",
    "lines_of",
    "minimum_of",
    "ours_of",
    "peers_of",
    "source_digest",
)

OURS, KNOWING = "longboat", "knows the rate"
COST_GOAL = 1.25
PARTS = (0.7, 0.9)
"""Targets of the peers, as parts of the requests under way that a replica bears."""
_POINTS = 400
"""Of one curve."""

Lines = dict[str, list[tuple[float, float]]]
"""Curves by their name: seconds, and replicas or requests each second."""


@dataclass(frozen=True)
class Row:
    """What came of one rule."""

    load: str
    cold_start_s: float
    rule: str
    part: float  # target of a peer; 0: it has none
    kept_share: float
    replica_s: float
    cost: float  # replica seconds over the clairvoyant minimum's
    starts: int
    starts_per_hour: float


def minimum_of(load: Load, cold_s: float, kept: KeptValues) -> tuple[Row, int]:
    """Return the clairvoyant minimum, and the replicas with which every rule begins."""
    found = kept.get(f"minimum {_place(load, cold_s)}", lambda: _minimum(load, cold_s))
    share, replica_s, starts = found["kept_share"], found["replica_s"], int(found["starts"])
    return Row(load.name, cold_s, "clairvoyant", 0.0, share, replica_s, 1.0, starts, 0.0), int(found["initial"])


def ours_of(load: Load, cold_s: float, kept: KeptValues, *, as_reported: bool = False) -> tuple[Row, Lines]:
    """Return what came of the scaler, and its curves. as_reported: where it sees what gateways report"""
    least, initial = minimum_of(load, cold_s, kept)

    def made() -> dict[str, object]:
        result = run_ours(load, cold_s, initial, as_reported=as_reported)
        row = _row(load, cold_s, OURS, 0.0, result, least.replica_s)
        return {"row": asdict(row), "lines": lines_of(result)}

    name = f"{OURS} as reported" if as_reported else OURS
    found = kept.get(f"{name} {source_digest()} {_place(load, cold_s)}", made)
    return Row(**found["row"]), found["lines"]


def peers_of(load: Load, cold_s: float, kept: KeptValues) -> Iterator[Row]:
    """Yield each peer with each target."""
    least, initial = minimum_of(load, cold_s, kept)
    borne = float(kept.get(f"bears {load.name} {len(load.requests)}", lambda: bears(load)))
    for name, make in PEERS.items():
        for part in PARTS:

            def made(name: str = name, make: Peer = make, part: float = part) -> dict[str, object]:
                result = run_rule(load, lambda _: make(load, borne, part), cold_s, initial)
                return asdict(_row(load, cold_s, name, part, result, least.replica_s))

            yield Row(**kept.get(f"{name} {part:g} {_place(load, cold_s)}", made))


def knowing_of(load: Load, cold_s: float, kept: KeptValues) -> Iterator[Row]:
    """Yield the rule that knows the present load and nothing ahead, at 1.25 times the minimum's cost."""
    least, initial = minimum_of(load, cold_s, kept)

    def made() -> dict[str, object]:
        found = knowing(load, cold_s, initial, COST_GOAL * least.replica_s)
        cost = found.replica_s / least.replica_s
        return asdict(Row(load.name, cold_s, KNOWING, 0.0, found.kept_share, found.replica_s, cost, found.starts, 0.0))

    yield Row(**kept.get(f"{KNOWING} {_place(load, cold_s)}", made))


def source_digest() -> str:
    """Return a digest of the scaler's source."""
    found = hashlib.sha256()
    for path in sorted(Path(longboat.scaling.__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def lines_of(result: ScaledResult) -> Lines:
    """Return the curves of a run, thinned out: the highest counts and the mean rate of each stretch."""
    width = max(15, len(result.moments) // _POINTS)
    groups = [result.moments[at : at + width] for at in range(0, len(result.moments), width)]
    return {
        "wanted": [(group[0].at_s, float(max(one.wanted for one in group))) for group in groups],
        "ready": [(group[0].at_s, float(max(one.ready for one in group))) for group in groups],
        "requests/s": [(group[0].at_s, round(sum(one.arrived for one in group) / len(group), 3)) for group in groups],
    }


def _place(load: Load, cold_s: float) -> str:
    return f"{load.name} {len(load.requests)} {cold_s:g}"


def _minimum(load: Load, cold_s: float) -> dict[str, float]:
    found = clairvoyant(load, cold_s)
    return {
        "replica_s": found.replica_s,
        "starts": found.starts,
        "kept_share": found.kept_share,
        "most": max(found.counts),
        "initial": max(found.counts[: round(cold_s) + 60]),
    }


def _row(load: Load, cold_s: float, rule: str, part: float, result: ScaledResult, minimum: float) -> Row:
    return Row(
        load.name, cold_s, rule, part, result.kept_share, result.replica_s, result.replica_s / minimum, result.starts,
        result.starts_per_hour,
    )  # fmt: skip
