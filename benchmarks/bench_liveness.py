"""Measures how soon gateways find out that a replica does not work: a cut link, a stopped or killed rank.

Fake engines, real Ray, two hosts of the network lab, default settings. Time runs from the fault to the moment when a
gateway takes the replica out of use, which also is when its streams begin to move.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fleet.fleet_lab import wait_until  # noqa: E402
from fleet.liveness_lab import LivenessLab, liveness_lab  # noqa: E402
from netlab.lab import why_unavailable  # noqa: E402

FAKE = "source: 'builtin:tiny', engine: fake, resources: {cpus: 0.1}"
MODELS = (
    f"name: split, {FAKE}, split: {{pipeline: 2}}, placement: {{nodes: 2}}",
    f"name: near, {FAKE}, placement: {{labels: {{host: a}}}}",
    f"name: far, {FAKE}, placement: {{labels: {{host: b}}}}",
)
LIMITS_S = {"cut link": 2.0, "cut inside a gang": 2.0}
RANK_LIMIT_S = 3.0


def main() -> int:
    """Measure every fault and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="rounds for each fault")
    parser.add_argument("--json", type=Path, help="write the seconds of every round here")
    options = parser.parse_args()
    if reason := why_unavailable():
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    rounds: dict[str, list[float]] = {}
    with liveness_lab(MODELS) as lab:
        for _ in range(options.runs):
            rounds.setdefault("cut link", []).extend(cut(lab))
            rounds.setdefault("cut inside a gang", []).append(cut_gang(lab))
            for rank in (0, 1):
                for signal in ("STOP", "KILL"):
                    rounds.setdefault(f"rank {rank} SIG{signal}", []).append(signalled(lab, rank, signal))
        lab.fleet.must("down", timeout_s=180)
    show(rounds)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rounds))
    return 0


def cut(lab: LivenessLab) -> list[float]:
    """The far replica seen from the near gateway, and the other way round."""
    near, far = lab.ready("near"), lab.ready("far")
    lab.lab.cut(lab.hosts[1])
    began_s = time.monotonic()
    first, _ = lab.lost_after(lab.hosts[0], far, began_s)
    second, _ = lab.lost_after(lab.hosts[1], near, began_s)
    restore(lab)
    return [first, second]


def cut_gang(lab: LivenessLab) -> float:
    """A split gang whose ranks cannot reach each other, seen by the gateway beside its first rank."""
    victim = lab.ready("split")
    lab.lab.cut(lab.hosts[1])
    found_s, _ = lab.lost_after(lab.host_of(victim["ranks"][0]), victim, time.monotonic())
    restore(lab)
    return found_s


def restore(lab: LivenessLab) -> None:
    lab.lab.restore(lab.hosts[1])
    for model in ("near", "far", "split"):
        wait_until(f"{model} answers", lambda model=model: lab.fleet.answers(model), 180)  # type: ignore[misc]


def signalled(lab: LivenessLab, node_rank: int, signal: str) -> float:
    """One rank of the split gang gets a signal."""
    victim = lab.ready("split")
    rank = victim["ranks"][node_rank]
    host = lab.host_of(rank)
    began_s = time.monotonic()
    host.run(["kill", f"-{signal}", str(rank["pid"])])
    found_s, _ = lab.lost_after(lab.hosts[0], victim, began_s)
    wait_until("another gang is ready", lambda: lab.ready("split")["replica"] != victim["replica"], 180)
    return found_s


def show(rounds: dict[str, list[float]]) -> None:
    """One row for each fault."""
    print("\nseconds from the fault until a gateway sends the replica nothing more: median, worst, limit")
    for fault, values in rounds.items():
        limit_s = LIMITS_S.get(fault, RANK_LIMIT_S)
        verdict = "" if max(values) <= limit_s else "  OVER"
        median = statistics.median(values)
        print(f"  {fault:20}{median:6.2f}  {max(values):6.2f}  {limit_s:4.1f}  ({len(values)} rounds){verdict}")


if __name__ == "__main__":
    sys.exit(main())
