"""Finds everything that is wrong with a fleet file in one pass: what the file says, its secrets, and the machines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from longboat.cli.file.beside_mistakes import problems_beside_mistakes, read_admins
from longboat.cli.file.target import read_target
from longboat.cli.fleet.fleet_plan import planning_basis, up_options
from longboat.cluster.fleet.deployed import controller_values
from longboat.cluster.preflight.surroundings import checked_plan, this_machine
from longboat.cluster.ray.session import Session
from longboat.core.errors import LongboatError, Problem, UserInputError
from longboat.core.policy import AdminCredential
from longboat.spec.files.load import Reading
from longboat.spec.types.fleet import Fleet

__all__ = ("read_whole",)


def read_whole(
    target: str, console: Console, overlays: Sequence[str] = (), *, replan: bool = False, force: bool = False
) -> tuple[Fleet, tuple[AdminCredential, ...]]:
    """Return the fleet of ``target`` with ``overlays`` merged onto it, and its admins.

    replan, force: as ``longboat up`` was given them.

    Raises UserInputError with every mistake. Where the file has some, its sound part is also tried on the machines, so
    that what they cannot do is named at once and not only after the file was mended.
    """
    reading = read_target(target, overlays)
    admins, problems = read_admins(reading)
    if reading.fleet is not None and not problems:
        return reading.fleet, admins
    problems += problems_beside_mistakes(reading)
    if reading.sound is not None:
        problems += _placed_as_written(reading, _placement_problems(reading.sound, console, replan, force))
    raise reading.refusal(problems)


def _placement_problems(fleet: Fleet, console: Console, replan: bool, force: bool) -> Sequence[Problem]:
    """Return why the fleet cannot run on the cluster at hand, else on this machine; nothing is started."""
    try:
        _check_placement(fleet, console, replan, force)
    except UserInputError as error:
        return error.problems
    except LongboatError:  # the cluster does not answer: the file's mistakes come first
        return ()
    return ()


def _check_placement(fleet: Fleet, console: Console, replan: bool, force: bool) -> None:
    from longboat.cli.shared.cluster_at_hand import cluster_env

    basis = planning_basis(console)
    if (env := cluster_env()) is None:
        checked_plan(fleet, [this_machine()], basis=basis, options=up_options(fleet, {}, replan=replan, force=force))
        return
    with Session(env) as session:
        options = up_options(fleet, controller_values(session.apps.all()), replan=replan, force=force)
        checked_plan(fleet, session.nodes(), session.inspect, basis=basis, options=options)


def _placed_as_written(reading: Reading, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems with their places in the file.

    Those of the gateway are left out where its section has mistakes: defaults were tried in its place.
    """
    is_tried = reading.gateway is not None
    return reading.placed_in_file([p for p in problems if is_tried or not p.where.startswith("gateway")])
