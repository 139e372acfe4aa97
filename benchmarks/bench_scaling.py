"""Our scaler beside five published ones, in the twin of the fleet: the same requests, engines and cold starts.

Each cell is a load and a cold start; it has the part of the requests that kept the objective, the replica seconds over
those of the clairvoyant minimum, and the starts. A peer has the best of two targets that cost no more than ours (its
cheapest where all do). Exits with 1 and a list of the goals that are missed. Needs a folder with the traces of Mooncake
(conversation) and Azure (2023, conversation): ``make bench-scaling ARGS="--traces FOLDER"``. Each figure is kept in a
file as soon as it is made, so a run that was ended goes on where it was; ``--drawn FOLDER`` writes a picture of each of
our runs of a shape; ``--held-out`` plays other loads than the table's, and ``--fresh SEED`` loads that the seed draws.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from kept_values import KeptValues
from scaling_bench.grid import Lines, Row, knowing_of, minimum_of, ours_of, peers_of
from scaling_bench.held_out import fresh_of, held_out_of
from scaling_bench.loads import SHAPES, Load, loads_of
from scaling_bench.tables import html, markdown, svg, verdicts

COLD_STARTS_S = (2.0, 30.0, 240.0)
DRAWN_COLD_START_S = 30.0


def main() -> int:
    """Run, print the table and what is missed."""
    options = _options()
    options.keep.parent.mkdir(parents=True, exist_ok=True)
    kept, rows, curves = KeptValues(options.keep), list[Row](), dict[str, Lines]()
    for load in _loads(options):
        for cold_s in map(float, options.cold_starts.split(",")):
            ours, lines = ours_of(load, cold_s, kept, as_reported=options.as_reported)
            curves[f"{load.name}, cold start {cold_s:g} s"] = lines
            rows += [ours, minimum_of(load, cold_s, kept)[0]]
            rows += knowing_of(load, cold_s, kept) if options.knowing or not options.alone else []
            rows += [] if options.alone else peers_of(load, cold_s, kept)
            print(f"{load.name} {cold_s:g}: {ours.kept_share:.4f} {ours.cost:.3f} {ours.starts}", flush=True)
            if options.drawn and load.name in SHAPES and cold_s == DRAWN_COLD_START_S:
                options.drawn.mkdir(parents=True, exist_ok=True)
                (options.drawn / f"{load.name}.svg").write_text(svg(lines))
    table, problems = list(markdown(rows)), list(verdicts(rows))
    print("\n".join([*table, "", *problems]))
    if options.html:
        options.html.write_text(html(curves, table))
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "problems": problems}) + "\n")
    return 1 if problems else 0


def _loads(options: argparse.Namespace) -> Iterator[Load]:
    only = [name for name in options.only.split(",") if name]
    if options.fresh:
        return fresh_of(options.traces, options.fresh, only)
    if options.held_out:
        return held_out_of(options.traces, only)
    return loads_of(options.traces, quick=options.quick, only=only)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the two traces")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter loads")
    parser.add_argument("--held-out", action="store_true", help="other loads, which were held out once")
    parser.add_argument(
        "--fresh", default="", metavar="SEED", help="loads that this seed draws, for a rule not made for them"
    )
    parser.add_argument("--only", default="", help="names of loads, with commas between them")
    parser.add_argument("--cold-starts", default=",".join(f"{one:g}" for one in COLD_STARTS_S), help="in seconds")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--knowing", action="store_true", help="with the rule that measures the load exactly, if alone")
    parser.add_argument("--as-reported", action="store_true", help="our scaler sees what gateways report, and no more")
    parser.add_argument("--keep", type=Path, default=Path("build/scaling-cells.jsonl"), help="file for kept figures")
    parser.add_argument("--drawn", type=Path, help="folder for pictures of our runs of the shapes")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--html", type=Path, help="file for curves")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
