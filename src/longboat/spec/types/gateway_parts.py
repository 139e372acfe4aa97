"""The readable parts of a gateway section: what the checks between parts can look at while other values are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from longboat.core.policy import ANONYMOUS, DEFAULT_TENANT
from longboat.spec.types.external import PriceSpec
from longboat.spec.types.gateway import (
    AdminSpec,
    AliasSpec,
    GatewaySpec,
    OverflowSpec,
    RuleSpec,
    TenantSpec,
)
from longboat.spec.types.section import Section
from longboat.spec.types.sign_in import GroupSpec

__all__ = ("GatewayParts", "currency_of", "parts_of")

Part = TypeVar("Part", bound=Section)
Numbered = tuple[tuple[int, Part], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """Entries of a gateway section that can be read, each with its position in the file."""

    auth: str | None = None
    """``keys``, ``none``, None where the file says nothing, and ``""`` where what it says cannot be read."""
    tenants: Numbered[TenantSpec] = ()
    admin: Numbered[AdminSpec] = ()
    sign_in_groups: Numbered[GroupSpec] = ()
    aliases: Numbered[AliasSpec] = ()
    rules: Numbered[RuleSpec] = ()
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overflow: Mapping[str, OverflowSpec] = field(default_factory=dict)
    prices: Mapping[str, str] = field(default_factory=dict)
    """Models with a price, and its currency; empty where that cannot be read."""
    tenant_names: frozenset[str] | None = frozenset()
    """Names of all tenants; None where one of them cannot be read."""
    tags: frozenset[str] | None = frozenset()
    """Tags of all tenants; None where one of them cannot be read."""
    alias_names: frozenset[str] | None = frozenset()
    """Names of all aliases; None where one of them cannot be read."""


def parts_of(section: object) -> GatewayParts:
    """Read what can be read of a gateway section: plain values, with tuples where the file has lists."""
    values = section if isinstance(section, dict) else {}
    tenants, aliases = _entries(values, "tenants", TenantSpec), _entries(values, "aliases", AliasSpec)
    auth, sign_in = values.get("auth"), values.get("sign_in")
    return GatewayParts(
        auth=auth if auth in ("keys", "none", None) else "",
        tenants=tenants,
        admin=_entries(values, "admin", AdminSpec),
        sign_in_groups=_entries(sign_in if isinstance(sign_in, dict) else {}, "groups", GroupSpec),
        aliases=aliases,
        rules=_entries(values, "rules", RuleSpec),
        fallbacks=_fallbacks(values.get("fallbacks")),
        overflow=_overflow(values.get("overflow")),
        prices=_prices(values.get("prices")),
        tenant_names=_tenant_names(_names(values, "tenants"), auth),
        tags=_tags(values, tenants),
        alias_names=_names(values, "aliases"),
    )


def _tenant_names(names: frozenset[str] | None, auth: object) -> frozenset[str] | None:
    """Return the names of the file, or the one that exists where the file names none."""
    if names or names is None:
        return names
    return {"keys": frozenset({DEFAULT_TENANT}), "none": frozenset({ANONYMOUS})}.get(str(auth or "none"))


def _items(values: Mapping[str, Any], name: str) -> tuple[object, ...]:
    found = values.get(name, ())
    return found if isinstance(found, tuple) else ()


def _entries(values: Mapping[str, Any], name: str, kind: type[Part]) -> Numbered[Part]:
    read = ((index, _entry(item, kind)) for index, item in enumerate(_items(values, name)))
    return tuple((index, part) for index, part in read if part is not None)


def _entry(value: object, kind: type[Part]) -> Part | None:
    """Return the entry without its fields that are wrong; None where it cannot do without them."""
    if not isinstance(value, dict):
        return None
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        wrong = {detail["loc"][0] for detail in error.errors(include_url=False) if detail["loc"]}
    try:
        return kind.model_validate({key: item for key, item in value.items() if key not in wrong})
    except ValidationError:
        return None


def _names(values: Mapping[str, Any], name: str) -> frozenset[str] | None:
    if not isinstance(values.get(name, ()), tuple):
        return None
    names = [item.get("name") if isinstance(item, dict) else None for item in _items(values, name)]
    known = frozenset(found for found in names if isinstance(found, str))
    return known if all(isinstance(found, str) for found in names) else None


def _tags(values: Mapping[str, Any], tenants: Iterable[tuple[int, TenantSpec]]) -> frozenset[str] | None:
    read = dict(tenants)
    given = [item.get("tags", ()) if isinstance(item, dict) else None for item in _items(values, "tenants")]
    whole = all(
        index in read and isinstance(tags, tuple) and len(tags) == len(read[index].tags)
        for index, tags in enumerate(given)
    )
    return frozenset(tag for tenant in read.values() for tag in tenant.tags) if whole else None


def _overflow(value: object) -> dict[str, OverflowSpec]:
    items = value.items() if isinstance(value, dict) else ()
    read = {str(name): _entry(item, OverflowSpec) for name, item in items}
    return {name: entry for name, entry in read.items() if entry is not None}


def _prices(value: object) -> dict[str, str]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): currency_of(item) for name, item in items}


def currency_of(price: object) -> str:
    """Return the currency of a price as the file has it; empty where there is no price that can be read."""
    read = _entry(price, PriceSpec)
    return "" if read is None else read.currency


def _fallbacks(value: object) -> dict[str, tuple[str, ...]]:
    return dict(_readable_fallbacks(value)) if isinstance(value, dict) else {}


def _readable_fallbacks(value: Mapping[Any, object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, others in value.items():
        try:
            yield from GatewaySpec.model_validate({"fallbacks": {name: others}}).fallbacks.items()
        except ValidationError:
            continue
