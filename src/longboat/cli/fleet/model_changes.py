"""Adds models to the running fleet and takes them out of it without a file: by the plan and document of ``up``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.deployment import put_fleet
from longboat.cli.fleet.fleet_plan import planned_document, planning_basis, up_options
from longboat.cli.fleet.readiness import Goal
from longboat.cluster.fleet.adapters import running_fleet, with_adapters_of
from longboat.cluster.fleet.deployed import key_book_in, running_values
from longboat.cluster.fleet.started import StartedModel, asked_fleet, read_started
from longboat.cluster.preflight.surroundings import CheckedPlan, checked_plan
from longboat.cluster.protocol.model import read_shape
from longboat.core.errors import ClusterError, Problem, UserInputError
from longboat.core.plan import GangShape
from longboat.core.policy import AdminCredential, Policy
from longboat.spec.diff import diff
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.keys_file import KeyBook
from longboat.spec.files.load import fleet_from, load_fleet
from longboat.spec.policy import policy_of
from longboat.spec.text.location import show
from longboat.spec.types.external import PriceSpec
from longboat.spec.types.fleet import Fleet, ModelSpec

if TYPE_CHECKING:
    from longboat.cluster.ray.session import Session

__all__ = (
    "AddedModel",
    "WantedModel",
    "add_model",
    "end_started",
    "fleet_with_model",
    "fleet_without",
    "only_model",
    "remove_models",
)

ORIGIN = "the model"


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A model that an operator asks for, and what its tokens are to cost."""

    model: ModelSpec
    price: PriceSpec | None = None


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A model that was added, as it was asked for."""

    model: ModelSpec
    price: PriceSpec | None
    plan: CheckedPlan
    # what is true once its replicas are ready
    goal: Goal


def add_model(session: Session, added: WantedModel, mark: StartedModel, console: Console) -> AddedModel:
    """Add a model to the running fleet, of which nothing else changes.

    mark: the operator. Returns once the controller has the change.

    Raises UserInputError, with the planner's words where the model has no room, ClusterError where no fleet is up.
    """
    told, model = running_values(session.apps.all()), added.model
    wanted = fleet_with_model(_asked(told), added)
    basis = planning_basis(console)
    options = up_options(wanted, told, replan=False, force=False)
    try:
        plan = checked_plan(wanted, session.nodes(), session.inspect, basis=basis, options=options)
    except UserInputError as error:
        raise _about(error, model.name, len(wanted.models) - 1) from error
    _check_only(running_fleet(told), plan.fleet, model.name)
    text = dump_fleet(plan.fleet)
    applied = Applied(
        fleet=plan.fleet, text=text, planned=planned_document(dump_fleet(wanted), plan, basis.calibration)
    )
    kept = session.apps.deployed_models()
    started = {model.name: mark}
    policy, base = _policy(told, plan.fleet), str(told["text"])
    digests = put_fleet(session, applied, policy, plan.shapes, kept, base=base, started=started)
    session.expect(text)
    goal = Goal(
        document=text,
        wanted={model.name: model.num_replicas},
        digests={model.name: digests[model.name]},
        outlives_failure=True,
        started=model.name,
        remedy=f"longboat stop {model.name} ends it",
    )
    return AddedModel(model, added.price, plan, goal)


def end_started(session: Session, name: str) -> None:
    """End a model that an operator started. Raises UserInputError where the fleet file has it, or nothing has."""
    told = running_values(session.apps.all())
    running = running_fleet(told)
    if name not in read_started(told):
        known = ", ".join(read_started(told)) or "none"
        if running.model_named(name) is None:
            raise UserInputError(f"there is no model {name!r}", hint=f"models that were started here: {known}")
        hint = f"take it out of the file and run longboat up, or pause it; models that were started here: {known}"
        raise UserInputError(f"{name} is in the fleet file, and only the file ends it", hint=hint)
    load_fleet(dump_fleet(fleet_without(running, (name,))), "the fleet without it")  # finds aliases that need it
    session.expect(remove_models(session, (name,)))


def remove_models(
    session: Session, names: Collection[str], planned: Mapping[str, GangShape] = MappingProxyType({})
) -> str:
    """Take models out of the running fleet, and leave all others as they run; return the fleet's new text.

    planned: the shapes of models that Serve may not run yet
    Raises ClusterError where no fleet is up.
    """
    told, deployed = running_values(session.apps.all()), session.apps.deployed_models()
    fleet = fleet_without(running_fleet(told), names)
    shapes = {**planned, **{model: read_shape(app["args"]["shape"]) for model, app in deployed.items()}}
    if lost := [model.name for model in fleet.models if model.max_replicas and model.name not in shapes]:
        raise ClusterError(f"{', '.join(lost)} cannot stay as they are: Serve does not run them", hint="longboat up")
    text, asked = dump_fleet(fleet), dump_fleet(fleet_without(_asked(told), names))
    applied = Applied(fleet=fleet, text=text, planned=_planned_without(told.get("planned", {}), names, asked))
    put_fleet(session, applied, _policy(told, fleet), shapes, deployed, base=str(told["text"]))
    return text


def fleet_with_model(fleet: Fleet, added: WantedModel) -> Fleet:
    """Return the fleet with one more model. Raises UserInputError for a name that is taken."""
    model = added.model
    if model.name in fleet.names:
        hint = "choose another name, or scale that one"
        raise UserInputError(f"name: the fleet already has a model {model.name}", hint=hint)
    prices = fleet.gateway.prices if added.price is None else {**fleet.gateway.prices, model.name: added.price}
    gateway = fleet.gateway.model_copy(update={"prices": prices})
    wanted = fleet.model_copy(update={"models": (*fleet.models, model), "gateway": gateway})
    return load_fleet(dump_fleet(wanted), "the fleet with it")


def fleet_without(fleet: Fleet, names: Collection[str]) -> Fleet:
    """Return the fleet without these models and their prices."""
    prices = {name: price for name, price in fleet.gateway.prices.items() if name not in names}
    return fleet.model_copy(
        update={
            "gateway": fleet.gateway.model_copy(update={"prices": prices}),
            "models": tuple(model for model in fleet.models if model.name not in names),
            "external": tuple(model for model in fleet.external if model.name not in names),
        }
    )


def only_model(entry: Mapping[str, Any], price: Mapping[str, Any] | None = None, folder: str = "/") -> WantedModel:
    """Read a model's entry and price, as they stand in the fleet file. Raises UserInputError with their mistakes.

    folder: where a path that is relative was meant, for the hint
    """
    fleet = _read({"models": [dict(entry)]}, folder)
    if not fleet.models:
        raise UserInputError("engine: external models are not started", hint="write it into the fleet file")
    (model,) = fleet.models
    if price is None:
        return WantedModel(model)
    priced = _read({"models": [dict(entry)], "gateway": {"prices": {model.name: dict(price)}}}, folder, model.name)
    return WantedModel(model, priced.gateway.prices[model.name])


def _read(values: Mapping[str, Any], folder: str, name: str = "") -> Fleet:
    try:
        return fleet_from(dict(values), ORIGIN, folder=folder)
    except UserInputError as error:
        raise _about(error, name, 0) from None


def _asked(told: Mapping[str, Any]) -> Fleet:
    return with_adapters_of(asked_fleet(told), running_fleet(told))


def _about(error: UserInputError, name: str, index: int) -> UserInputError:
    """Return the error in words of the form, which has no list of models."""
    place, price, short = f"models[{index}]", show(("gateway", "prices", name)), f"{name}: " if name else ""
    problems = tuple(
        replace(one, where=one.where.replace(place, "").replace(price, "price").lstrip(".")) for one in error.problems
    )
    words = "; ".join(dict.fromkeys(map(str, problems)))
    hints = "; ".join(dict.fromkeys(one.hint for one in problems if one.hint))
    return UserInputError(f"{short}{words}", hint=hints, problems=problems)


def _check_only(running: Fleet, planned: Fleet, name: str) -> None:
    """Raise UserInputError where the fleet with the model differs from the running one in anything else."""
    change = diff(running, planned)
    price = f"~ gateway.prices.{name}:"
    others = [line for line in change.lines() if line != f"+ {name}" and not line.startswith(price)]
    if change.added == (name,) and not others:
        return
    what = f"{name} would change other parts of the fleet: {'; '.join(others)}"
    hint = "write it into the fleet file and run longboat up, which shows all changes"
    raise UserInputError(what, hint=hint, problems=(Problem(where="", what=what, hint=hint),))


def _planned_without(planned: Mapping[str, Any], names: Collection[str], asked: str) -> dict[str, Any]:
    left = {
        part: {model: values for model, values in planned.get(part, {}).items() if model not in names}
        for part in ("models", "speeds")
    }
    return {**planned, **left, "asked": asked}


def _policy(told: Mapping[str, Any], fleet: Fleet) -> Policy:
    """Return the policy of the running fleet with other models: its keys and admins stay."""
    book = key_book_in(told) or KeyBook()
    admins = tuple(AdminCredential(**entry) for entry in told.get("policy", {}).get("admins", ()))
    served, adapters = fleet.served(), fleet.adapters()
    return policy_of(
        fleet.gateway, book.keys, book.salt, admins=admins, external=fleet.external, served=served, adapters=adapters
    )
