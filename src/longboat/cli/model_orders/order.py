"""One order: start a model that no file has, or end it. The console, the admin API and the commands give it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from longboat.core.errors import LongboatError, UserInputError

if TYPE_CHECKING:
    from longboat.cli.fleet.model_changes import AddedModel, WantedModel
    from longboat.cluster.ray.session import Session

__all__ = (
    "EndOrder",
    "PriceOrder",
    "StartOrder",
    "answer_bytes",
    "entry_of",
    "start_model",
    "started_values",
    "wanted_model",
)

_Name = Annotated[str, Meta(max_length=256)]


_Price = Annotated[float, Meta(ge=0, le=1_000_000)]


class PriceOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model's tokens cost its tenants, as in ``gateway.prices`` of the fleet file."""

    input_per_million: _Price
    output_per_million: _Price
    currency: Annotated[str, Meta(max_length=3)] = "USD"


class StartOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="start", tag_field="order"):
    """A model, as a form or a command names it. It has no argument, environment or path of an engine: the file has."""

    # as in the fleet file: hf:ORG/NAME, builtin:NAME, a folder, or a place in storage
    source: Annotated[str, Meta(min_length=1, max_length=4096)]
    by: Annotated[str, Meta(min_length=1, max_length=300)]
    name: _Name = ""  # empty: it follows from the source
    engine: Annotated[str, Meta(max_length=64)] = ""  # empty: the fleet file's default
    replicas: Annotated[int, Meta(ge=1, le=10_000)] = 1
    context: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None  # None: the model's longest
    cpus: Annotated[float, Meta(gt=0, le=1024)] | None = None  # of one rank; None: the fleet file's default
    price: PriceOrder | None = None


class EndOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="end", tag_field="order"):
    """The name of a model that was started here."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]


Order = StartOrder | EndOrder


def answer_bytes(order: bytes) -> bytes:
    """Return ``{"value": …}``, or ``{"error", "hint", "status"}``. Raises nothing."""
    return json.dumps(_answer(order)).encode()


def _answer(order: bytes) -> dict[str, Any]:
    try:
        return {"value": _carry_out(msgspec.json.decode(order, type=Order))}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return {"status": 400, "error": f"the form cannot be read: {error}", "hint": ""}
    except UserInputError as error:
        return {"status": 400, "error": error.message, "hint": error.hint}
    except LongboatError as error:
        return {"status": 503, "error": error.message, "hint": error.hint}
    except Exception as error:  # the person at the console learns it
        return {"status": 503, "error": f"the change failed: {type(error).__name__}: {error}"[:2000], "hint": ""}


def _carry_out(order: Order) -> dict[str, Any]:
    """Change the fleet. Raises LongboatError."""
    from longboat.cli.fleet.model_changes import end_started
    from longboat.cli.shared.cluster_at_hand import connect

    with connect() as session:
        if isinstance(order, EndOrder):
            end_started(session, order.model)
            return {"ended": order.model}
        return started_values(start_model(session, order))


def start_model(session: Session, order: StartOrder) -> AddedModel:
    """Add the model to the running fleet, with a mark that no file has it. Raises LongboatError."""
    from longboat.cli.fleet.model_changes import add_model
    from longboat.cli.shared.console import make_console
    from longboat.cluster.fleet.started import StartedModel

    mark = StartedModel(by=order.by, since_s=round(time.time(), 3))
    return add_model(session, wanted_model(order), mark, make_console(stderr=True))


def wanted_model(order: StartOrder, folder: str = "/") -> WantedModel:
    """Read the order as the fleet file's lines would be. Raises UserInputError with its mistakes.

    folder: where a path that is relative was meant, for the hint
    """
    from longboat.cli.fleet.model_changes import only_model

    return only_model(entry_of(order), None if order.price is None else msgspec.to_builtins(order.price), folder)


def started_values(added: AddedModel) -> dict[str, Any]:
    """Return what was decided, and the entry and price that keep the model once they stand in the fleet file."""
    from longboat.spec.files.dump import dump_model, dump_price

    name, plan = added.model.name, added.plan
    return {
        "started": name,
        "shape": plan.shapes[name].title,
        "why": plan.decision.reasons.get(name) or plan.shapes[name].reason,
        "notes": list(plan.decision.notes.get(name, ())),
        "entry": dump_model(added.model),
        "price": "" if added.price is None else dump_price(name, added.price),
    }


def entry_of(order: StartOrder) -> dict[str, Any]:
    """Return the model's entry as it would stand in the fleet file; the planner decides the split."""
    return {
        "source": order.source,
        **({"name": order.name} if order.name else {}),
        **({"engine": order.engine} if order.engine else {}),
        **({"context": order.context} if order.context else {}),
        **({"resources": {"cpus": order.cpus}} if order.cpus else {}),
        "replicas": order.replicas,
        "split": "auto",
    }
