"""What Longboat's gateway costs beside other proxies, and whether it keeps its limits.

Starts two mock engines, Longboat with all features on and every peer that is installed, puts the same load on each in
turns, and prints medians and ratios. `make bench-peers` installs the peers, each in an environment of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway_bench.figures import Figure
from gateway_bench.install import install_peers
from gateway_bench.part_connections import measure_connections
from gateway_bench.part_fairness import measure_fairness
from gateway_bench.part_journal import measure_journal
from gateway_bench.part_large import measure_large
from gateway_bench.part_memory import measure_memory
from gateway_bench.part_proxies import measure_proxies
from gateway_bench.targets import PEERS, Target, installed_version

PARTS = ("proxies", "journal", "large", "memory", "connections", "fairness")
BUSY = 0.3


def main() -> int:
    """Measure the chosen parts, print what they found, keep it in a file when asked."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # what was started is taken down
    options = arguments()
    if options.install:
        return install_peers(chosen_peers(options.peers))
    versions = {peer.name: installed_version(peer) for peer in chosen_peers(options.peers)}
    for name in (name for name, version in versions.items() if version is None):
        print(f"{name} is not there: make bench-peers installs it")
    peers = [peer for peer in PEERS if versions.get(peer.name)]
    document: dict[str, Any] = {"about": about(versions), "quick": options.quick, "parts": {}}
    print("; ".join(f"{name} {value}" for name, value in document["about"].items()))
    for name in options.part or PARTS:
        began_s = time.monotonic()
        part = measures(options, peers)[name]()
        show_figures(part["figures"])
        print(f"  ({name}: {time.monotonic() - began_s:.0f} s)", flush=True)
        document["parts"][name] = part
    if options.json:
        Path(options.json).write_text(json.dumps(document, default=as_plain, indent=1) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given again")
    parser.add_argument(
        "--peers", default=",".join(peer.name for peer in PEERS), help="only these, with commas; or none"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of proxies; large and fairness take at most 3")
    parser.add_argument("--heavy-rounds", type=int, default=2, help="rounds of LiteLLM and Ray Serve")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--quick", action="store_true", help="little load and one round: shows that it runs, no more")
    parser.add_argument("--install", action="store_true", help="install the peers, measure nothing")
    options = parser.parse_args()
    if options.quick:
        options.rounds = options.heavy_rounds = 1
    return options


def chosen_peers(names: str) -> list[Target]:
    """:raises SystemExit: a name is not known."""
    wanted = [] if names in ("", "none") else names.split(",")
    if unknown := set(wanted) - {peer.name for peer in PEERS}:
        sys.exit(f"not a peer: {', '.join(sorted(unknown))}; known: {', '.join(peer.name for peer in PEERS)}")
    return [peer for peer in PEERS if peer.name in wanted]


def measures(options: argparse.Namespace, peers: Sequence[Target]) -> dict[str, Callable[[], dict[str, Any]]]:
    """Part → what measures it."""
    rounds, few, quick = options.rounds, min(3, options.rounds), options.quick
    return {
        "proxies": lambda: measure_proxies(peers, rounds, options.heavy_rounds, quick=quick),
        "journal": lambda: measure_journal(peers, rounds, quick=quick),
        "large": lambda: measure_large(peers, few, quick=quick),
        "memory": lambda: measure_memory(quick=quick),
        "connections": lambda: measure_connections(quick=quick),
        "fairness": lambda: measure_fairness(few, quick=quick),
    }


def about(versions: dict[str, str | None]) -> dict[str, str]:
    """Date, machine and versions. A busy machine is said to be one: its figures are worth little."""
    load = os.getloadavg()[0]
    busy = " (busy: expect noise)" if load > BUSY * (os.cpu_count() or 1) else ""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cores": str(os.cpu_count()),
        "processor": names[0].partition(":")[2].strip() if names else platform.machine(),
        "load": f"{load:.2f}{busy}",
        "python": platform.python_version(),
        **{name: version for name, version in versions.items() if version},
    }


def show_figures(figures: Sequence[Figure]) -> None:
    """Each beside its limit."""
    for figure in figures:
        between = f" [{figure.interval[0]:.2f} to {figure.interval[1]:.2f}]" if figure.interval else ""
        verdict = {None: "", True: "  holds", False: "  DOES NOT HOLD"}[figure.holds]
        limit = "" if figure.limit is None else f"  limit {figure.limit:.4g}"
        print(f"  {figure.name:44}{figure.value:10.2f} {figure.unit}{between}{limit}{verdict}")


def as_plain(value: Any) -> Any:
    """What JSON does not know."""
    if isinstance(value, Figure):
        return {**dataclasses.asdict(value), "holds": value.holds}
    raise TypeError(f"{type(value).__name__} is no JSON")


if __name__ == "__main__":
    sys.exit(main())
