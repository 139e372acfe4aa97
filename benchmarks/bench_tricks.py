"""What each trick of the gateway's path brings: Longboat with all features on, with one trick switched off at a time.

A trick is an optimisation that repeats what simpler code does already. Each is switched off in a gateway of its own (by
the patches of ``gateway_bench/tricks/``), all of them get the same load in turns, and a row says what a request costs
without it. What brings less than 2 % of a request is to be removed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from gateway_bench.figures import median, ratio
from gateway_bench.longboat_gateway import start_longboat
from gateway_bench.stand import Stand, say
from gateway_bench.targets import ALIAS, Running, Starter, Target
from gateway_bench.tricks.switches import OFF, TRICKS

PATCHES = Path(__file__).resolve().parent / "gateway_bench" / "tricks"
ALL = "all on"
SCENARIOS = {
    "chunk": (32, ("--clients", 32, "--chunks", 32, "--prompt-chars", 800, "--stagger-s", 0.17, "--requests", 300)),
    "one chunk": (1, ("--clients", 16, "--chunks", 1, "--prompt-chars", 2000, "--stagger-s", 0.01)),
    "whole": (1, ("--clients", 16, "--chunks", 1, "--prompt-chars", 2000, "--stagger-s", 0.01, "--whole")),
}
REQUESTS = 1500


def main() -> int:
    """Measure, print a table, keep it in a file when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(TRICKS), help="only these tricks, with commas")
    parser.add_argument("--json", metavar="FILE", help="write all rounds there")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(TRICKS):
        sys.exit(f"not a trick: {', '.join(sorted(unknown))}; known: {', '.join(TRICKS)}")
    rounds = measure((ALL, *names), options.rounds)
    show(rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(rounds, indent=1) + "\n")
    return 0


def measure(names: Sequence[str], num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the microseconds of each round: trick that is off → scenario → rounds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    targets = [Target(name=f"without-{name}".replace(" ", "-"), title=name, starter=starter(name)) for name in names]
    with Stand() as stand:
        stand.mock_engines()
        for number in range(num_rounds):
            say(f"round {number + 1} of {num_rounds}")
            turn = number % len(targets)
            for scenario, (per, words) in SCENARIOS.items():
                for target in (*targets[turn:], *targets[:turn]):
                    running = stand.start(target)
                    if running is None:
                        continue
                    result = stand.load(running, "--requests", REQUESTS, "--max-s", 8.0, *words)
                    if result["failures"]:
                        raise RuntimeError(f"{target.name}: {result['failures']}")
                    found[target.title][scenario].append(1e6 * result["cpu_s"] / (result["requests"] * per))
    return found


def starter(name: str) -> Starter:
    """Return what starts a gateway without this trick."""

    def start(upstreams: Sequence[str], folder: Path) -> Running:
        before = os.environ.copy()
        os.environ["PYTHONPATH"] = str(PATCHES)
        os.environ[OFF] = name
        try:
            proxy, port, keys = start_longboat(upstreams, folder)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return Running(url=f"http://127.0.0.1:{port}", proxy=proxy, keys=keys, model=ALIAS)

    return start


def show(rounds: dict[str, dict[str, list[float]]]) -> None:
    """Print one row for each trick: what a request costs without it, as a ratio to all of them on."""
    print(f"\n{'':16}" + "".join(f"{name:>26}" for name in SCENARIOS))
    for name, of in rounds.items():
        cells = [
            f"{median(of[scenario]):9.1f} us {compared(of[scenario], rounds[ALL][scenario]):>14}" for scenario in of
        ]
        print(f"{name:16}" + "".join(cells))


def compared(without: Sequence[float], with_all: Sequence[float]) -> str:
    """Return the ratio and its interval."""
    found = ratio(without, with_all)
    return "" if found is None else f"{found.middle:.2f} ({found.low:.2f}-{found.high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
