"""What one ``longboat up`` did, for the commands that show it and take it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longboat.cli.fleet.readiness import Goal
from longboat.cli.fleet.up_document import Action
from longboat.cluster.preflight.surroundings import CheckedPlan
from longboat.core.plan import GangShape
from longboat.core.policy import AdminCredential
from longboat.spec.types.fleet import Fleet

__all__ = ("Applied",)


@dataclass(slots=True)
class Applied:
    """What one ``up`` did: everything that has to be undone when it is interrupted.

    digests: model → what its replicas must have been started with to count as ready
    shapes: model → the shape that its gangs were deployed with
    admins: who may use the gateways' admin API, as the file's secrets say now
    fleet, text: with numbers, once they are decided; asked, asked_text: as the file has it
    plan: how the numbers were found; planned: what the controller gets of it
    replan, force, end_started: the options of ``up``
    changes: from what ran before, in lines
    before: texts of the fleets in whose place this one was put
    asleep: models that run on as they are, and may have no replica now
    replaced_by: text of the fleet that another command put in this one's place while it came up
    """

    fleet: Fleet
    text: str
    asked: Fleet | None = None
    asked_text: str = ""
    plan: CheckedPlan | None = None
    planned: Mapping[str, Any] = field(default_factory=dict)
    replan: bool = False
    force: bool = False
    end_started: bool = False
    admins: tuple[AdminCredential, ...] = ()
    started_cluster: bool = False
    started_fleet: bool = False
    added: tuple[str, ...] = ()
    action: Action = "unchanged"
    changes: tuple[str, ...] = ()
    before: frozenset[str] = frozenset()
    asleep: frozenset[str] = frozenset()
    replaced_by: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    shapes: Mapping[str, GangShape] = field(default_factory=dict)

    @property
    def holds_something(self) -> bool:
        """Whether there is anything that the end of this ``up`` takes down."""
        return self.started_fleet or bool(self.added)

    @property
    def fate(self) -> str:
        """A sentence for the user: how to end what this ``up`` started."""
        if not self.holds_something:
            return "the fleet keeps running, as before; longboat down ends it"
        others = "longboat status, longboat chat and longboat logs work from other terminals"
        if self.started_fleet:
            return f"Ctrl-C takes it down; {others}"
        return f"Ctrl-C takes down {', '.join(self.added)}; the other models keep running; {others}"

    @property
    def goal(self) -> Goal:
        wanted = {m.name: 0 if m.name in self.asleep else m.num_replicas for m in self.fleet.models}
        return Goal(
            document=self.text,
            wanted=wanted,
            digests=self.digests,
            outlives_failure=not self.started_fleet,
            before=self.before | {""} if self.before else None,
        )
