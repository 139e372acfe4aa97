"""The machines that a fleet file is checked against: the cluster at hand, this machine, described ones, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from longboat.cli.fleet.fleet_plan import planning_basis, up_options
from longboat.cluster.preflight.surroundings import CheckedPlan, UpOptions, checked_plan, this_machine
from longboat.core.errors import ClusterError
from longboat.spec.diff import diff
from longboat.spec.types.fleet import Fleet

__all__ = ("Machines", "machines_for")

LIVE, HERE, NONE = "live", "here", "none"
Planned = tuple[CheckedPlan, Sequence[str]]
"""A plan, and what it would change of the fleet that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Machines, and a function that plans a fleet on them: it starts nothing.

    plan raises UserInputError with every problem, ClusterError where a cluster does not answer.
    """

    title: str
    console: Console
    plan: Callable[[Fleet], Planned]
    exist: bool = True


def machines_for(on: str, console: Console) -> Machines:
    """Return the machines of ``--on``. "": the cluster at hand, else none; live, here, none, a text or a cluster file.

    Raises UserInputError for machines that cannot be read, ClusterError where ``live`` finds no cluster.
    """
    word = on.strip().lower()
    if word == HERE:
        return Machines(title="this machine", console=console, plan=lambda fleet: _plan_here(fleet, console))
    if word and word not in (LIVE, NONE):
        return _described(on, console)
    from longboat.cli.shared.cluster_at_hand import cluster_env

    env = cluster_env() if word != NONE else None
    if env is not None:
        return Machines(
            title="the running cluster", console=console, plan=lambda fleet: _plan_live(fleet, env, console)
        )
    if word == LIVE:
        hint = "longboat node start --head starts one; --on '2x(4xH100)' describes one"
        raise ClusterError("this machine belongs to no cluster", hint=hint)
    title = "placement not checked: --on here, or --on '2x(4xH100)', says whether it fits"
    return Machines(title=title, console=console, plan=lambda fleet: _plan_here(fleet, console), exist=False)


def _plan_here(fleet: Fleet, console: Console) -> Planned:
    return checked_plan(fleet, [this_machine()], basis=planning_basis(console)), ()


def _described(on: str, console: Console) -> Machines:
    from longboat.cli.check.described import described_nodes

    basis = planning_basis(console)
    found = described_nodes(on, basis.library)
    return Machines(
        title=found.title,
        console=console,
        plan=lambda fleet: (checked_plan(fleet, found.nodes, found.inspect, basis=basis, options=UpOptions()), ()),
    )


def _plan_live(fleet: Fleet, env: dict[str, str], console: Console) -> Planned:
    from longboat.cluster.fleet.deployed import controller_values
    from longboat.cluster.ray.session import Session

    with Session(env) as session:
        options = up_options(fleet, controller_values(session.apps.all()), replan=False, force=False)
        plan = checked_plan(fleet, session.nodes(), session.inspect, basis=planning_basis(console), options=options)
    changes = diff(options.running, plan.fleet).lines() if options.running is not None else ()
    return plan, changes
