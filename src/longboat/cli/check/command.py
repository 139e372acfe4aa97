"""``longboat check``: everything about fleet files that can be known before anything is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from longboat.cli.file.beside_mistakes import problems_beside_mistakes, read_admins
from longboat.cli.file.target import STDIN, check_names, first_and_rest, read_target
from longboat.core.errors import LongboatError, Problem, UserInputError
from longboat.engines.fleet_checks import engine_problems, source_problems
from longboat.spec.files.load import Reading

if TYPE_CHECKING:
    from longboat.cli.check.machines import Machines
    from longboat.cluster.preflight.surroundings import CheckedPlan

__all__ = ("Checked", "check_target", "run_check", "run_dry")

EXIT_CODE = UserInputError.exit_code


@dataclass(slots=True, kw_only=True)
class Checked:
    """What was found out about one target."""

    title: str
    reading: Reading | None = None  # None: it could not be read
    problems: Sequence[Problem] = ()
    plan: CheckedPlan | None = None  # None: there was no machine to plan on, or there are problems
    changes: Sequence[str] = ()  # what `up` would change of the fleet that runs
    notes: list[str] = field(default_factory=list)

    def line_of(self, problem: Problem) -> tuple[str, int] | None:
        """Return file and line of a problem; None where it stands in no file."""
        return self.reading.line_of(problem) if self.reading is not None else None


def run_check(targets: Sequence[str], overlays: Sequence[str], *, on: str = "", as_json: bool = False) -> None:
    """Print what each target describes, or all its mistakes. Exits with 2 where one has some.

    overlays: files that are merged onto each target, or, without a target, onto the first of them
    on: machines on which it is placed; "": the cluster at hand, if there is one
    Raises UserInputError for machines that cannot be read, ClusterError where ``live`` finds no cluster.
    """
    from longboat.cli.check.machines import machines_for
    from longboat.cli.shared.console import make_console

    if not targets:
        first, overlays = first_and_rest(None, overlays)
        targets = (first,)
    check_names([name for target in targets for name in (target, *overlays)])
    console = make_console(stderr=as_json)
    machines = machines_for(on, console)
    found = [check_target(target, overlays, machines) for target in targets]
    if as_json:
        print(json.dumps({"machines": machines.title, "targets": [_values(one) for one in found]}, indent=2))
    else:
        for one in found:
            _show(one, machines)
    if any(one.problems for one in found):
        sys.exit(EXIT_CODE)


def run_dry(target: str, overlays: Sequence[str], *, as_json: bool) -> None:
    """Check as ``up`` would, on the cluster at hand, else on this machine."""
    from longboat.cli.shared.cluster_at_hand import cluster_env

    run_check((target,), overlays, on="live" if cluster_env() is not None else "here", as_json=as_json)


def check_target(target: str, overlays: Sequence[str], machines: Machines) -> Checked:
    """Find everything that is wrong with one target."""
    title = " + ".join("stdin" if name == STDIN else name for name in (target, *overlays))
    try:
        reading = read_target(target, overlays)
    except UserInputError as error:
        return Checked(title=title, problems=error.problems)
    checked = Checked(title=title, reading=reading)
    _, secret_problems = read_admins(reading)
    more = [*secret_problems, *problems_beside_mistakes(reading), *_placement_problems(reading, machines, checked)]
    if reading.fleet is None or more:
        checked.problems, checked.plan = reading.refusal(more).problems, None
    return checked


def _placement_problems(reading: Reading, machines: Machines, checked: Checked) -> Sequence[Problem]:
    """Try the part of the file that has no mistakes on the machines; without any, name what the file itself shows."""
    if reading.sound is None:
        return ()
    if not machines.exist:
        return _file_problems(reading)
    try:
        checked.plan, checked.changes = machines.plan(reading.sound)
    except UserInputError as error:
        is_tried = reading.gateway is not None
        return reading.placed_in_file([p for p in error.problems if is_tried or not p.where.startswith("gateway")])
    except LongboatError as error:
        checked.notes.append(f"not placed on {machines.title}: {error.message}")
        return _file_problems(reading)
    return ()


def _file_problems(reading: Reading) -> Sequence[Problem]:
    """Return what is wrong with models without mistakes, and needs no machine to be found."""
    assert reading.sound is not None
    found = [problem for index, model in enumerate(reading.sound.models) for problem in source_problems(model, index)]
    return reading.placed_in_file([*found, *engine_problems(reading.sound)])


def _show(checked: Checked, machines: Machines) -> None:
    """Print mistakes on stderr with their lines, else what the fleet is and where it goes."""
    if checked.problems:
        plural = "s" if len(checked.problems) > 1 else ""
        print(f"error: {checked.title}: {len(checked.problems)} problem{plural}", file=sys.stderr)
        for problem in checked.problems:
            at = checked.line_of(problem)
            words = str(problem).replace(f"line {at[1]}: ", "", 1) if at else str(problem)
            print(f"  {words}{f'  ({at[0]}, line {at[1]})' if at else ''}", file=sys.stderr)
            if problem.hint:
                print(f"    → {problem.hint}", file=sys.stderr)
        return
    assert checked.reading is not None
    fleet = checked.reading.whole()
    print(f"{checked.title}: no mistakes; fleet {fleet.name} with {', '.join(fleet.names)}")
    for note in (*checked.notes, *(() if machines.exist else (machines.title,))):
        print(f"  {note}")
    if checked.plan is not None:
        from longboat.cli.fleet.fleet_plan import show_plan

        print(f"  placed on {machines.title}")
        show_plan(fleet, checked.plan, machines.console)
        for change in checked.changes:
            print(f"  {change}")


def _values(checked: Checked) -> dict[str, Any]:
    """Return everything as values of JSON."""
    values: dict[str, Any] = {"target": checked.title, "ok": not checked.problems, "notes": checked.notes}
    values["problems"] = [
        {**asdict(problem), **dict(zip(("file", "line"), checked.line_of(problem) or (None, None), strict=True))}
        for problem in checked.problems
    ]
    if checked.plan is not None and checked.reading is not None:
        from longboat.cli.fleet.up_document import up_values

        document = up_values(checked.reading.whole(), checked.plan, None, action="unchanged")
        values["plan"] = {name: document[name] for name in ("fleet", "models", "auth")}
        values["changes"] = list(checked.changes)
    return values
