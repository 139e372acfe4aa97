"""Kills parts of Longboat under load, and compares every answer with that of an unfaulted run.

usage: python benchmarks/chaos.py [--seed 7] [--streams 500] [--faults 40] [--engine fake|vllm] [--kinds kill,stop …]
Writes build/chaos.json. Exit status 1: an answer failed, differed, or hung.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos_suite.asks import KINDS, make_asks
from chaos_suite.figures import counts, figures_of, is_good
from chaos_suite.parts import MODEL
from chaos_suite.places import Place, best_place
from chaos_suite.play import play_all
from chaos_suite.report import machine, show, write
from chaos_suite.schedule import FAULTS, LINK_FAULTS, Fault, make_schedule
from chaos_suite.stand import Stand, fake_commands
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--streams", type=int, default=500, help="answers at least, while faults are played")
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--every-s", type=float, default=0.6, help="seconds between two faults, about")
    parser.add_argument("--asks", type=int, default=240, help="different requests")
    parser.add_argument("--engine", choices=["fake", "vllm"], default="fake")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--deadline-s", type=float, default=60.0, help="of one answer")
    parser.add_argument("--itl-ms", type=float, default=15.0, help="of fake engines")
    parser.add_argument("--kinds", default="", help=f"faults, by comma: {', '.join(FAULTS)}")
    parser.add_argument("--ask-kinds", default="", help=f"requests, by comma: {', '.join(KINDS)}")
    parser.add_argument("--plain", action="store_true", help="without the network lab")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos.json")
    return parser.parse_args(argv)


def _schedule(options: argparse.Namespace, place: Place) -> list[Fault]:
    kinds = tuple(filter(None, options.kinds.split(","))) or FAULTS
    return make_schedule(
        options.seed, options.faults, every_s=options.every_s, num_engines=options.engines,
        num_gateways=options.gateways, kinds=[kind for kind in kinds if place.has_links or kind not in LINK_FAULTS],
    )  # fmt: skip


async def _run(options: argparse.Namespace, place: Place, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document, and all answers that were no good."""
    asks = make_asks(options.seed, options.asks, MODEL, tuple(filter(None, options.ask_kinds.split(","))))
    commands = fake_commands(options.itl_ms, 2 * options.itl_ms, 0.2)
    stand = Stand(place, folder, commands, num_engines=options.engines, num_gateways=options.gateways)
    try:
        await stand.start(asks, concurrency=options.concurrency, deadline_s=options.deadline_s)
        reference = await stand.phase("reference", 0)
        control = await stand.phase("control", len(asks))
        playing = asyncio.create_task(play_all(stand, _schedule(options, place)))
        faulted = await stand.phase("faulted", options.streams, playing)
        document = {"control": counts([*reference, *control]), **figures_of(faulted, await playing)}
    finally:
        await stand.stop()
    bad = [answer for answer in (*reference, *control, *faulted) if answer["failure"] or answer["wrongs"]]
    return document, bad


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 when every answer is whole and right."""
    options = _options(argv)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    place, words = best_place(options.engines, plain=options.plain)
    try:
        with place:
            found, bad = asyncio.run(_run(options, place, folder))
    finally:
        if options.keep:
            print(f"logs: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    document = {**machine(), "engine": options.engine, "seed": options.seed, "place": words, **found}
    write(options.out, {**document, "bad": bad[:50]})
    show(document, bad, Console())
    return 0 if is_good(found) and is_good(found["control"]) else 1


if __name__ == "__main__":
    sys.exit(main())
