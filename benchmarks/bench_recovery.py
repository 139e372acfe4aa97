"""How long a gang over two hosts is away after one of its parts was killed: from SIGKILL to the next answer.

Real vLLM, real Ray, two hosts of the network lab; the zygotes are warm. Every round kills one part of the only replica
and asks again and again, through the gateway, until a completion comes back.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until  # noqa: E402
from netlab.lab import Lab, why_unavailable  # noqa: E402

PARTS = ("rank 0", "rank 1", "agent of rank 1", "supervisor")
LIMIT_S = 10.0
FLEET = """name: bench
models:
  - {name: m, source: 'builtin:tiny', context: 512, split: {pipeline: 2}, placement: {nodes: 2}}
"""


def main() -> int:
    """Measure every part and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="rounds for each part")
    runs: int = parser.parse_args().runs
    if reason := why_unavailable():
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    with Lab(2) as lab:
        fleet = start(lab)
        rounds = {part: [kill_and_wait(lab, fleet, part) for _ in range(runs)] for part in PARTS}
        fleet.stop_watching()
        fleet.must("down", timeout_s=180)
    show(rounds, runs)
    return 0


def start(lab: Lab) -> FleetLab:
    """Ray on both hosts, and the fleet up."""
    first, second = lab.hosts
    common = ("--num-cpus", "4", "--token-file", str(lab.folder / "token"))
    first.run([*COMMAND, "node", "start", "--head", *common], timeout=240)
    second.run([*COMMAND, "node", "start", "--join", first.address, *common], timeout=240)
    fleet = fleet_at(lab, first)
    path = fleet.folder / "bench.yaml"
    path.write_text(FLEET)
    fleet.must("up", str(path), "--detach", timeout_s=600)
    return fleet


def kill_and_wait(lab: Lab, fleet: FleetLab, part: str) -> float:
    """Seconds from SIGKILL to the first answer after it."""
    wait_until("the gang is ready", lambda: len(fleet.replicas("m")) == 1 and fleet.answers("m"))
    time.sleep(2.0)
    (victim,) = fleet.replicas("m")
    rank, pid = target(victim, part)
    host = next(host for host in lab.hosts if host.address == rank["address"])
    host.run(["kill", "-KILL", str(pid)])
    began_s = time.monotonic()
    wait_until("it has stopped answering", lambda: not answers(fleet), 30)
    wait_until("it answers again", lambda: answers(fleet), 180)
    return time.monotonic() - began_s


def target(victim: dict[str, Any], part: str) -> tuple[dict[str, Any], int]:
    """The rank on whose host a process is killed, and that process."""
    rank = victim["ranks"][1 if "rank 1" in part else 0]
    pids = {"supervisor": victim["supervisor_pid"], "agent of rank 1": rank["agent_pid"]}
    return rank, pids.get(part, rank["pid"])


def answers(fleet: FleetLab) -> bool:
    """Asked without patience: an engine that lost a rank hangs."""
    return fleet.ask("m", timeout_s=1.0)[0] == 200


def show(rounds: dict[str, list[float]], runs: int) -> None:
    """One row for each part."""
    print(f"\nseconds from SIGKILL to the next answer, median of {runs} (range); limit {LIMIT_S:.0f}")
    for part, values in rounds.items():
        print(f"  {part:16}{statistics.median(values):7.2f}  {min(values):.2f} – {max(values):.2f}")


if __name__ == "__main__":
    sys.exit(main())
