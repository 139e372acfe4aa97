"""``longboat weights pull``: weights of one source, or of a fleet file, are fetched to this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from longboat.cli.file.target import read_target
from longboat.cli.shared.console import make_console
from longboat.cli.weights.share import open_member, read_token
from longboat.core.errors import UserInputError
from longboat.folders import home_folder
from longboat.spec.types.fleet import Fleet
from longboat.spec.types.source import is_fetched
from longboat.weights.fetch.node_weights import NodeWeights
from longboat.weights.fetch.options_from import options_from
from longboat.weights.pieces.rate import Progress
from longboat.weights.swarm.swarm_member import SwarmMember

__all__ = ("PullOptions", "run_pull")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """The options of the command."""

    endpoint: str
    disk: str
    trackers: tuple[str, ...]
    address: str
    port: int
    token_file: Path | None
    stay_s: float
    as_json: bool


def run_pull(target: str, options: PullOptions) -> None:
    """Fetch every source that nodes fetch. Raises UserInputError where there is none."""
    fleet = _with_options(read_target(target).whole(), options)
    sources = list(dict.fromkeys(model.source for model in fleet.models if is_fetched(model.source)))
    if not sources:
        raise UserInputError(
            f"{target} names no weights that nodes fetch",
            hint="write a revision (hf:ORGANISATION/NAME@main); without one, the engine downloads the model itself",
        )
    with _member(options) as member:
        weights = NodeWeights(home_folder(), options_from(fleet.weights), member.address if member else None)
        for source in sources:
            _pull(weights, source, as_json=options.as_json)
        if member is not None:
            _stay(member, options.stay_s)


def _with_options(fleet: Fleet, options: PullOptions) -> Fleet:
    """Return the fleet with the command's settings in its section ``weights``."""
    given: dict[str, Any] = {"endpoint": options.endpoint, "disk": options.disk}
    given = {name: value for name, value in given.items() if value}
    if not given:
        return fleet
    from longboat.spec.files.load import fleet_from

    data = fleet.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data["weights"] = {**data.get("weights", {}), **given}
    return fleet_from(data, "the command line", folder=str(Path.cwd()))


def _member(options: PullOptions) -> Any:
    if not options.trackers:
        return nullcontext(None)
    if not options.address:
        raise UserInputError("--swarm needs --address", hint="give the address by which the others reach this machine")
    return open_member(options.address, options.port, read_token(options.token_file), options.trackers)


def _pull(weights: NodeWeights, source: str, *, as_json: bool) -> None:
    started_s = time.monotonic()
    last: list[Progress] = []
    with _shown(source, quiet=as_json) as show:

        def report(progress: Progress) -> None:
            last[:] = [progress]
            show(progress)

        held = weights.hold(source, report)
    held.release()
    seconds = time.monotonic() - started_s
    if as_json:
        progress = msgspec.to_builtins(last[0]) if last else None
        told = {"key": held.key, "path": str(held.path), "seconds": seconds, "progress": progress}
        print(json.dumps(told), flush=True)
    else:
        print(f"{source} is in {held.path} ({seconds:.1f} s)", flush=True)


@contextmanager
def _shown(source: str, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show a bar with rate and time left, or a line every few seconds without a terminal; quiet: nothing."""
    console = make_console(stderr=True)
    if quiet:
        yield lambda progress: None
        return
    if not console.is_terminal:
        yield _lines(source)
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
    with Bar(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(source, total=None)
        yield lambda progress: bar.update(task, total=progress.total_bytes, completed=progress.have_bytes)


def _lines(source: str, every_s: float = 5.0) -> Callable[[Progress], None]:
    told_s = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= every_s:
            told_s = time.monotonic()
            print(f"{source}: {progress}", file=sys.stderr, flush=True)

    return show


def _stay(member: SwarmMember, stay_s: float) -> None:
    """Stay in the swarm while other nodes lack pieces, at most this long."""
    end_s = time.monotonic() + stay_s
    while time.monotonic() < end_s and member.seeder.take_turns():
        time.sleep(0.5)
