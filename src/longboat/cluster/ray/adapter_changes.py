"""Adds and removes adapters of the running fleet, and waits until replicas and gateways know."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from longboat.cluster.fleet.adapters import (
    running_fleet,
    values_with_adapters,
    with_adapter,
    without_adapter,
    without_adapters,
)
from longboat.cluster.fleet.applications import FleetSession
from longboat.cluster.fleet.deployed import controller_values, document_with, running_values
from longboat.cluster.node.write_turn import until_written
from longboat.cluster.preflight.adapters import adapter_problems, with_adapter_facts
from longboat.cluster.preflight.checks import NodeFindings, PreflightRequest
from longboat.cluster.preflight.knowledge import built_in_basis, shape_of
from longboat.core.errors import ClusterError, LongboatError, UserInputError
from longboat.core.states import Phase
from longboat.spec.types.adapters import AdapterSpec
from longboat.spec.types.source import is_local_path, name_from_source

if TYPE_CHECKING:
    from longboat.catalog.shape.model_shape import ModelShape
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.core.topology import Node
    from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = ("AdapterSession", "adapter_entry", "adapter_rows", "add_adapter", "remove_adapter")

POLL_S = 0.2


class AdapterSession(FleetSession, Protocol):
    """The questions to the cluster that a change of adapters asks."""

    def nodes(self) -> tuple[Node, ...]: ...
    def inspect(self, node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]: ...
    def try_report(self) -> FleetReport | None: ...
    def expect(self, document: str) -> None: ...


def adapter_entry(source: str, name: str, tenants: Sequence[str] | None) -> AdapterSpec:
    """Return an adapter as it was asked for; without a name, it has its folder's. Raises UserInputError."""
    try:
        return AdapterSpec(
            name=name or name_from_source(source), source=source, tenants=tuple(tenants) if tenants else None
        )
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        raise UserInputError(found["msg"], hint=str(found.get("ctx", {}).get("hint", ""))) from None


def add_adapter(session: AdapterSession, model: str, entry: AdapterSpec, timeout_s: float) -> AdapterSpec:
    """Add an adapter, or change its contents; return it with its revision once every ready replica serves it.

    timeout_s: counts from now; the change continues after it

    Raises UserInputError where it cannot be used, ClusterError where a replica does not take it in time.
    """
    deadline_s = time.monotonic() + timeout_s

    def change(fleet: Fleet) -> Fleet:
        return _looked_at(session, with_adapter(fleet, model, entry), model, entry.name)

    fleet = _change(session, change)
    found = fleet.model_named(model)
    added = found.adapters.named(entry.name) if found is not None and found.adapters is not None else None
    assert added is not None
    _wait(session, lambda report: _is_served(report, model, added), deadline_s)
    return added


def remove_adapter(session: AdapterSession, name: str, timeout_s: float) -> None:
    """Remove an adapter; return once no gateway sends requests for it. Requests under way end as they began."""
    deadline_s = time.monotonic() + timeout_s
    _change(session, lambda fleet: without_adapter(fleet, name))
    _wait(session, lambda _report: True, deadline_s)


def adapter_rows(fleet: Fleet, report: FleetReport) -> list[dict[str, Any]]:
    """Return what is known of each adapter, in the order of the file."""
    return [_row(model, entry, report) for model, entry in fleet.adapters()]


def _row(model: ModelSpec, entry: AdapterSpec, report: FleetReport) -> dict[str, Any]:
    ready = [s for s in report.replicas if s.model == model.name and s.phase is Phase.READY]
    return {
        "name": entry.name,
        "model": model.name,
        "revision": entry.revision,
        "source": entry.source,
        "tenants": None if entry.tenants is None else list(entry.tenants),
        "replicas": len(ready),
        "served_by": [s.replica for s in ready if s.adapters.get(entry.name) == entry.revision],
        "held_by": [s.replica for s in ready if entry.name in s.adapters_held],
        "problems": {s.replica: s.adapter_problems[entry.name] for s in ready if entry.name in s.adapter_problems},
    }


def _change(session: AdapterSession, change: Callable[[Fleet], Fleet]) -> Fleet:
    """Change the running fleet's adapters. What was written is read back, and written again where it was lost."""

    def attempt() -> Fleet | None:
        text = running_values(session.apps.all())["text"]
        fleet = change(running_fleet({"text": text}))
        if (written := _write(session, text, fleet)) is not None:
            session.expect(written)
        return fleet if written is not None else None

    return until_written(attempt)


def _write(session: AdapterSession, text: str, fleet: Fleet) -> str | None:
    """Return the file that the controller then has; None where another command changed it.

    text: of the running fleet from which ``fleet`` was made; nodes were asked since then
    """
    with session.writing():
        apps = session.apps.all()
        values = controller_values(apps)
        if values.get("text") != text:
            return None
        wanted = values_with_adapters(values, fleet)
        session.rest.put(document_with(apps, wanted))
        found = controller_values(session.apps.all())
    is_written = all(found.get(part) == wanted[part] for part in ("adapters", "policy"))
    return str(wanted["text"]) if is_written else None


def _looked_at(session: AdapterSession, fleet: Fleet, model: str, name: str) -> Fleet:
    """Return the fleet with the adapter's revision, as all nodes hold it. Raises UserInputError with what is wrong."""
    served = fleet.model_named(model)
    entry = served.adapters.named(name) if served is not None and served.adapters is not None else None
    assert served is not None
    assert entry is not None
    nodes = session.nodes()
    paths = (served.source,) if is_local_path(served.source) else ()
    request = PreflightRequest(paths=paths, engines={}, gateway=None, adapters=(entry.source,))
    answers = session.inspect([node.node_id for node in nodes], request)
    told = {node.hostname or node.address: answers[node.node_id] for node in nodes}
    for node, answer in told.items():
        if not isinstance(answer, NodeFindings):
            hint = "nothing was changed; longboat status shows the nodes"
            raise ClusterError(f"node {node} did not answer in time: {answer!r}"[:500], hint=hint)
    findings = {node: answer.adapters for node, answer in told.items()}
    alone = with_adapter(without_adapters(fleet, model), model, entry.model_copy(update={"tenants": None}))
    alone = with_adapter_facts(alone, findings, fleet)
    if problems := adapter_problems(alone, findings, _shapes(served, told)):
        raise UserInputError(problems[0].what, hint=problems[0].hint)
    return with_adapter(fleet, model, alone.adapters()[0][1].model_copy(update={"tenants": entry.tenants}))


def _shapes(model: ModelSpec, told: dict[str, NodeFindings]) -> dict[str, ModelShape]:
    try:
        return {model.name: shape_of(model, told, built_in_basis())}
    except LongboatError:
        return {}


def _is_served(report: FleetReport, model: str, entry: AdapterSpec) -> bool:
    """Return whether every ready replica serves these contents. Raises ClusterError where one cannot."""
    ready = [s for s in report.replicas if s.model == model and s.phase is Phase.READY]
    for state in ready:
        why = state.adapter_problems.get(entry.name, "")
        if why.startswith(f"{entry.revision}: "):  # else it is about contents that were served before
            hint = f"longboat adapters remove {entry.name} takes it out; longboat logs {model} shows more"
            raise ClusterError(f"{model}/{state.replica[-8:]} cannot serve {entry.name}: {why}", hint=hint)
    return all(state.adapters.get(entry.name) == entry.revision for state in ready)


def _wait(session: AdapterSession, is_done: Callable[[FleetReport], bool], deadline_s: float) -> None:
    while True:
        report = session.try_report()
        if report is not None and not report.partial and is_done(report):
            gateways = [g for g in report.gateways if not g.problem]
            if all(g.policy_digest == report.policy_digest for g in gateways):
                return
        if time.monotonic() >= deadline_s:
            raise ClusterError(
                "some replicas or gateways do not know of the change yet",
                hint="they continue by themselves: longboat adapters list shows how far they are",
            )
        time.sleep(POLL_S)
