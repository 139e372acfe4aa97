"""Our routing policy beside eight published ones, in the twin of the fleet: the same requests, replicas and seeds.

Each cell is a trace, a number of replicas and a load, as a part of the rate at which round robin saturates (where the
mean TTFT is five times that of a nearly idle fleet). Then come scenarios. Exits with 1 and a list where a peer's figure
is lower than ours by more than a percent, or where a goal is missed. Needs a folder with the traces of Mooncake
(conversation) and Azure (2023, conversation): ``make bench-routing ARGS="--traces FOLDER"``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from routing_bench.grid import LOADS, SIZES, TRACES, Cell, run_grid
from routing_bench.kept import Kept
from routing_bench.scenarios import roomy_share, run_scenarios
from routing_bench.stand import figures_document
from routing_bench.tables import lost, markdown, short_of_goal, show

REQUESTS = {8: 6000, 32: 12_000, 128: 24_000}
QUICK_REQUESTS = {8: 2000, 32: 4000, 128: 6000}
SHARE_GOAL = 0.97  # of the cached share of an infinite cache, where memory allows


def main() -> int:
    """Run, print tables, keep them in a file when asked."""
    options = _options()
    kept = Kept(options.keep)
    requests = QUICK_REQUESTS if options.quick else REQUESTS
    seeds = options.seeds or (1 if options.quick else 3)
    console = Console(width=120 if not sys.stdout.isatty() else None)
    cells = [
        Cell(trace, size, load)
        for trace in options.only_traces.split(",")
        for size in map(int, options.sizes.split(","))
        for load in LOADS
    ]
    problems: list[str] = []
    rows = run_grid(options.traces, cells, seeds, requests, kept) if options.part != "scenarios" else []
    if rows:
        show(rows, console)
        problems += lost(rows, ("p50", "p99")) + short_of_goal(rows)
    if options.part != "grid":
        scenes = run_scenarios(options.traces, requests[8], seeds, kept)
        show(scenes, console)
        problems += lost(scenes, ("mean", "p50", "p99"))
        share, infinite = roomy_share(options.traces, requests[8], seeds, kept)
        print(f"cached share where memory allows: {share:.1%}, {share / infinite:.1%} of an infinite cache's")
        if share < SHARE_GOAL * infinite:
            problems.append(f"cached share is {share / infinite:.1%} of an infinite cache's, not {SHARE_GOAL:.0%}")
        rows += scenes
    if options.json:
        document = [
            {"cell": row.cell, "policy": row.policy, "seeds": [figures_document(each) for each in row.figures]}
            for row in rows
        ]
        options.json.write_text(json.dumps({"rows": document, "problems": problems}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    print("\n".join(problems) or "no peer wins a cell, and all goals are met")
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, metavar="FOLDER", help="that holds the two traces")
    parser.add_argument("--part", choices=("grid", "scenarios", "all"), default="all")
    parser.add_argument("--quick", action="store_true", help="fewer requests and one seed")
    parser.add_argument("--seeds", type=int, default=0, help="of replicas' speeds and arrivals (3; 1 with --quick)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="replicas, with commas")
    parser.add_argument("--only-traces", default=",".join(TRACES), help="mooncake, azure, or both with a comma")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the peers' figures there, and use those it has")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a table for a page there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
