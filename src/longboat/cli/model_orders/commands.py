"""``longboat start`` and ``longboat stop``: serve a model that the fleet file lacks, and end it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from longboat.cli.fleet.model_changes import end_started
from longboat.cli.fleet.readiness import wait_ready
from longboat.cli.model_orders.order import StartOrder, start_model, started_values, wanted_model
from longboat.cli.shared.cluster_at_hand import connect
from longboat.cli.shared.console import make_console
from longboat.core.errors import UserInputError
from longboat.user import user_name

__all__ = ("run_start", "run_stop")


def run_start(given: Mapping[str, object], *, wait: bool, timeout_s: float, as_json: bool) -> None:
    """Start a model. given: the fields of a StartOrder without ``by``; what is empty or None was not given.

    Raises UserInputError where it cannot be and nothing changed, EngineError and ClusterError where it does not get
    ready: it stays in the fleet then, with its error, until it is stopped.
    """
    order = _order(given)
    wanted_model(order, os.getcwd())  # mistakes are said without a cluster
    with connect() as session:
        added = start_model(session, order)
        found = started_values(added)
        if not as_json:
            _say(found)
        if wait:
            wait_ready(session, added.goal, make_console(stderr=as_json), timeout_s)
    if as_json:
        print(json.dumps({**found, "ready": wait}, indent=2))
    else:
        print(f"{found['started']} is ready" if wait else f"{found['started']} is starting: longboat status shows it")


def run_stop(model: str, *, as_json: bool) -> None:
    """End a model that was started without the file. Raises UserInputError for any other one."""
    with connect() as session:
        end_started(session, model)
    print(json.dumps({"ended": model}, indent=2) if as_json else f"{model} is ending: its running requests have 20 s")


def _order(given: Mapping[str, object]) -> StartOrder:
    fields = {name: value for name, value in given.items() if value not in ("", None)}
    if "source" not in fields:
        raise UserInputError("the model's source is empty", hint="write builtin:tiny, /a/folder or hf:org/name")
    if isinstance(price := fields.get("price"), str):
        fields["price"] = _price(price)
    by = f"{user_name()}@{socket.gethostname()}"
    try:
        return msgspec.convert({**fields, "order": "start", "by": by}, StartOrder)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        name = place.strip("`$.") or "model"
        words = f"{name}: {what[:1].lower()}{what[1:]}"
        raise UserInputError(words, hint="longboat start --help lists limits") from None


def _price(text: str) -> dict[str, object]:
    """Read ``0.5/1.5`` or ``0.5/1.5/EUR``. Raises UserInputError."""
    prompt, _, rest = text.partition("/")
    completion, _, currency = rest.partition("/")
    try:
        price: dict[str, object] = {"input_per_million": float(prompt), "output_per_million": float(completion)}
    except ValueError:
        hint = "write what a million prompt tokens and a million completion tokens cost: 0.5/1.5, or 0.5/1.5/EUR"
        raise UserInputError(f"price: {text!r} is not two numbers", hint=hint) from None
    return {**price, "currency": currency} if currency else price


def _say(found: Mapping[str, Any]) -> None:
    print(f"{found['started']}: {found['shape']}; {found['why']}")
    for note in found["notes"]:
        print(f"  {note}")
    price = f", and into its gateway's prices: {found['price']}" if found["price"] else ""
    print(f"to keep it, write into the fleet file: - {found['entry']}{price}")
