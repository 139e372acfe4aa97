"""Kills parts of Longboat under load, and compares every answer with that of an unfaulted run.

usage: python benchmarks/chaos.py [--seed 7] [--streams 500] [--faults 40] [--engine fake|vllm|sglang] [--kinds kill …]
Writes build/chaos.json. Exit status 1: an answer failed, differed, or hung.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_suite.asks import KINDS, Ask, make_asks
from chaos_suite.figures import counts, differing_kinds, figures_of, is_good
from chaos_suite.loader import Loader
from chaos_suite.parts import MODEL
from chaos_suite.places import Place, best_place
from chaos_suite.play import Played, play_all
from chaos_suite.report import machine, show, write
from chaos_suite.schedule import ANY_ENGINE_FAULTS, FAULTS, GATEWAY_FAULTS, LINK_FAULTS, Fault, make_schedule
from chaos_suite.stand import Stand, fake_commands
from rich.console import Console

Found = tuple[dict[str, Any], list[dict[str, Any]]]
"""The document, and all answers that were no good."""

Play = Callable[[], Coroutine[Any, Any, list[Played]]]

if TYPE_CHECKING:
    from chaos_suite.fleet_stand import FleetStand

BACK_S = {"fake": 1.5, "vllm": 4.0, "sglang": 4.0}
"""What an engine needs to come back, about. The next fault of another engine waits for it, except ``kill-all``."""

ROOT = Path(__file__).resolve().parent.parent


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--streams", type=int, default=500, help="answers at least, while faults are played")
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--every-s", type=float, default=0.6, help="seconds between two faults, about")
    parser.add_argument("--asks", type=int, default=240, help="different requests")
    parser.add_argument("--engine", choices=[*BACK_S], default="fake")
    parser.add_argument("--engines", type=int, help="4 fake ones, or 2 real ones")
    parser.add_argument("--gpus", type=float, default=0.0, help="part of a card that each real engine has")
    parser.add_argument("--args", default="", help="more arguments of real engines, by comma")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--deadline-s", type=float, default=60.0, help="of one answer")
    parser.add_argument("--itl-ms", type=float, default=15.0, help="of fake engines")
    parser.add_argument("--kinds", default="", help=f"faults, by comma: {', '.join(FAULTS)}")
    parser.add_argument("--ask-kinds", default="", help=f"requests, by comma: {', '.join(KINDS)}")
    parser.add_argument("--fleet", action="store_true", help="a whole fleet, with Ray, in the network lab")
    parser.add_argument("--calm-s", type=float, default=3.0, help="between two faults of a fleet, and with --whole")
    parser.add_argument("--whole", action="store_true", help="each fault waits until every engine serves")
    parser.add_argument("--faults-s", type=float, default=3600.0, help="begin no fault after this time")
    parser.add_argument("--alone", action="store_true", help="compare with answers that were asked one after another")
    parser.add_argument("--plain", action="store_true", help="without the network lab")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos.json")
    options = parser.parse_args(argv)
    options.engines = options.engines or (4 if options.engine == "fake" else 2)
    return options


def _schedule(options: argparse.Namespace, place: Place) -> list[Fault]:
    possible = FAULTS if options.engine == "fake" else (*ANY_ENGINE_FAULTS, *GATEWAY_FAULTS)
    kinds = tuple(filter(None, options.kinds.split(","))) or possible
    return make_schedule(
        options.seed, options.faults, every_s=options.every_s, num_engines=options.engines,
        num_gateways=options.gateways, back_s=BACK_S[options.engine],
        kinds=[kind for kind in kinds if place.has_links or kind not in LINK_FAULTS],
    )  # fmt: skip


async def _run(options: argparse.Namespace, place: Place, folder: Path) -> Found:
    """Gateways and engines without a fleet around them."""
    commands = fake_commands(options.itl_ms, 2 * options.itl_ms, 0.2)
    if options.engine != "fake":
        from chaos_suite.real_engines import real_commands

        args = tuple(filter(None, options.args.split(",")))
        commands = real_commands(options.engine, folder, place.interface, num_gpus=options.gpus, args=args)
    stand = Stand(place, folder, commands, num_engines=options.engines, num_gateways=options.gateways)
    try:
        await stand.start(_asks(options, [MODEL]), concurrency=options.concurrency, deadline_s=options.deadline_s)
        calm_s = options.calm_s if options.whole else None
        play = lambda: play_all(stand, _schedule(options, place), calm_s=calm_s, within_s=options.faults_s)  # noqa: E731
        found, bad = await _phases(options, stand.load, play, folder)
        return {**found, "counted": await stand.resumes()}, bad
    finally:
        await stand.stop()


async def _run_fleet(options: argparse.Namespace, stand: FleetStand) -> Found:
    """A fleet that is up."""
    from chaos_suite.fleet_play import FLEET_FAULTS, fleet_schedule, play_fleet

    asks = _asks(options, [MODEL, f"{MODEL}-split"])
    kinds = tuple(filter(None, options.kinds.split(","))) or FLEET_FAULTS
    faults = fleet_schedule(options.seed, options.faults, kinds)
    try:
        await stand.start(asks, concurrency=options.concurrency, deadline_s=options.deadline_s)
        async with asyncio.TaskGroup() as group:
            counting = group.create_task(stand.count_always())
            play = lambda: play_fleet(stand, faults, options.calm_s)  # noqa: E731
            found, bad = await _phases(options, stand.load, play, stand.folder)
            counting.cancel()
        return {**found, "counted": await stand.count()}, bad
    finally:
        await stand.load.stop()


async def _phases(options: argparse.Namespace, load: Loader, play: Play, folder: Path) -> Found:
    """What unfaulted answers say; whether another unfaulted run says the same; then the faults.

    folder: where the faults that were played are written, for who keeps it
    """
    reference = await load.phase("reference", 0, concurrency=1 if options.alone else None)
    control = await load.phase("control", options.asks)
    playing = asyncio.create_task(play())
    faulted = await load.phase("faulted", options.streams, playing)
    calm = [*reference, *control]
    document = {"control": {**counts(calm), "differing_kinds": differing_kinds(calm)}}
    document |= {**figures_of(faulted, await playing), "differing_kinds": differing_kinds(faulted)}
    write(folder / "played.json", {"played": [asdict(p) for p in await playing]})
    return document, [a for a in (*reference, *control, *faulted) if a["failure"] or a["wrongs"]]


def _asks(options: argparse.Namespace, models: Sequence[str]) -> list[Ask]:
    kinds = tuple(filter(None, options.ask_kinds.split(",")))
    share = options.asks // len(models)
    is_long = options.engine != "fake"
    asks = [make_asks(options.seed, share, model, kinds, is_long=is_long) for model in models]
    return [ask for together in zip(*asks, strict=True) for ask in together]  # all models are busy at any time


def _measure(options: argparse.Namespace, folder: Path) -> tuple[Found, str]:
    """What was found, and where, in words."""
    if options.fleet:
        from chaos_suite.fleet_stand import FleetStand, engine_environment, fleet_file

        text = fleet_file(options.engine, itl_ms=options.itl_ms, replicas=2, environment=engine_environment())
        with FleetStand(folder) as stand:
            stand.up(text)
            return asyncio.run(_run_fleet(options, stand)), "a fleet in the network lab, 2 hosts"
    place, words = best_place(options.engines, plain=options.plain)
    with place:
        return asyncio.run(_run(options, place, folder)), words


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 when every answer is whole and right."""
    options = _options(argv)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    try:
        (found, bad), words = _measure(options, folder)
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
