"""Fleet back to text, and to one digest by which an unchanged file is known."""

from __future__ import annotations

import hashlib
import json
import math

import yaml

from longboat.spec.text.yaml_text import RESOLVERS
from longboat.spec.types.external import PriceSpec
from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = ("dump_fleet", "dump_model", "dump_price", "fleet_digest")


LINE_BREAKS = frozenset("\x85\u2028\u2029")


class StrictDumper(yaml.SafeDumper):
    """Quotes what our reader, or a reader of YAML 1.1, would take for something else than text."""


for resolver_tag, resolver_pattern, resolver_first in RESOLVERS:
    StrictDumper.add_implicit_resolver(resolver_tag, resolver_pattern, resolver_first)


def dump_fleet(fleet: Fleet) -> str:
    """Write the fleet as a file with what differs from the defaults; load_fleet gives the same fleet back."""
    data = fleet.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data = {"apiVersion": fleet.api_version, "name": fleet.name} | data
    data["models"] = [*data["models"], *data.pop("external", ())]
    text = _yaml(data, readable=True)
    # Inside quotes the emitter writes these as they are, and a reader takes them for line breaks.
    return _yaml(data, readable=False) if LINE_BREAKS & set(text) else text


def dump_model(model: ModelSpec) -> str:
    """Write a model's entry in one line, with what differs from the defaults."""
    return _line(model.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def dump_price(name: str, price: PriceSpec) -> str:
    """Write a model's price in one line, as it stands in the fleet file below ``gateway.prices``."""
    return _line({name: price.model_dump(mode="json", exclude_defaults=True)})[1:-1]


def _line(data: dict[str, object]) -> str:
    text = yaml.dump(data, Dumper=StrictDumper, sort_keys=False, default_flow_style=True, width=math.inf)
    return str(text).strip()


def _yaml(data: dict[str, object], *, readable: bool) -> str:
    text: str = yaml.dump(data, Dumper=StrictDumper, sort_keys=False, allow_unicode=readable, width=120)
    return text


def fleet_digest(fleet: Fleet) -> str:
    """SHA-256 in hex of what the fleet means: equal for short and long forms, and for any order of models and keys."""
    data = fleet.model_dump(mode="json", by_alias=True)
    data["models"].sort(key=lambda model: model["name"])
    data["external"].sort(key=lambda model: model["name"])
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
