"""Mistakes between the parts of a gateway section, and between it and the models behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from longboat.core.errors import Problem
from longboat.core.policy import ANONYMOUS
from longboat.spec.checks.wording import near
from longboat.spec.text.location import Path, show
from longboat.spec.types.gateway_parts import GatewayParts

__all__ = ("gateway_problems",)

ANY = "*"
Names = Collection[str] | None
"""Names that may be written; None where they cannot be known."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})


def gateway_problems(
    gateway: GatewayParts, models: Names, *, external: Mapping[str, str] = NO_NAMES, at: Path = ("gateway",)
) -> list[Problem]:
    """Return every mistake that no single value shows.

    models: names that are served, None where one of them cannot be read
    external: those that other people serve, with the currency of their price, empty where they have none
    at: where the section stands
    """
    aliases = gateway.alias_names
    served = None if models is None or aliases is None else {*models, *aliases}
    return [
        *_doubles(((index, tenant.name) for index, tenant in gateway.tenants), (*at, "tenants")),
        *_doubles(((index, admin.name) for index, admin in gateway.admin), (*at, "admin")),
        *_doubles(((index, alias.name) for index, alias in gateway.aliases), (*at, "aliases")),
        *_tenants_without_keys(gateway, at),
        *_sign_in_problems(gateway, (*at, "sign_in", "groups")),
        *_alias_problems(gateway, models, (*at, "aliases")),
        *_fallback_problems(gateway, models, (*at, "fallbacks")),
        *_overflow_problems(gateway, models, (*at, "overflow")),
        *_price_problems(gateway, models, external, (*at, "prices")),
        *_unused_external(gateway, external, at),
        *_rule_problems(gateway, served, (*at, "rules")),
        *_tenant_model_problems(gateway, served, (*at, "tenants")),
        *_money_problems(gateway, external, (*at, "tenants")),
    ]


def _doubles(names: Iterable[tuple[int, str]], at: Path) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, name in names:
        if (first := seen.setdefault(name, index)) != index:
            what = f"{name!r} is already the name of {at[-1]}[{first}]"
            yield Problem(where=show((*at, index, "name")), what=what, hint="give one of them another name")


def _tenants_without_keys(gateway: GatewayParts, at: Path) -> Iterator[Problem]:
    for index, tenant in gateway.tenants:
        if gateway.auth in ("none", None) and tenant.name != ANONYMOUS:
            yield Problem(
                where=show((*at, "tenants", index, "name")),
                what=f"no request belongs to {tenant.name!r} where no keys are required",
                hint=f"write auth: keys, or name it {ANONYMOUS}: the tenant of every request without keys",
            )


def _sign_in_problems(gateway: GatewayParts, at: Path) -> Iterator[Problem]:
    for index, entry in gateway.sign_in_groups:
        if entry.tenant is not None:
            yield from _unknown(entry.tenant, gateway.tenant_names, (*at, index, "tenant"), kind="tenant")


def _alias_problems(gateway: GatewayParts, models: Names, at: Path) -> Iterator[Problem]:
    for index, alias in gateway.aliases:
        if alias.name in (models or ()):
            what = f"{alias.name!r} is the name of a model"
            yield Problem(
                where=show((*at, index, "name")), what=what, hint="use a rule: rules: [{model: ..., to: ...}]"
            )
        if alias.model is not None:
            yield from _unknown(alias.model, models, (*at, index, "model"))
        for number, pool in enumerate(alias.pools):
            yield from _unknown(pool.model, models, (*at, index, "pools", number, "model"))


def _fallback_problems(gateway: GatewayParts, models: Names, at: Path) -> Iterator[Problem]:
    aliases = (gateway.alias_names or frozenset()) - set(models or ())
    for name, others in gateway.fallbacks.items():
        where = (*at, name)
        if name in aliases:
            yield Problem(where=show(where), what=f"{name!r} is an alias", hint="write the model that it stands for")
            continue
        yield from _unknown(name, models, where)
        for index, other in enumerate(others):
            yield from _unknown(other, models, (*where, index))
        if not others:
            yield Problem(where=show(where), what="the list is empty", hint="name a model, or leave the line out")
        if cycle := _cycle_from(name, gateway.fallbacks):
            what = f"{' -> '.join(cycle)} is a circle"
            yield Problem(where=show(where), what=what, hint=f"take {cycle[-1]} out of the list of {cycle[-2]}")


def _overflow_problems(gateway: GatewayParts, models: Names, at: Path) -> Iterator[Problem]:
    for name, overflow in gateway.overflow.items():
        yield from _unknown(name, models, (*at, name))
        yield from _unknown(overflow.to, models, (*at, name, "to"))
        if overflow.to == name:
            yield Problem(where=show((*at, name, "to")), what="it is the model itself", hint="name another model")


def _price_problems(gateway: GatewayParts, models: Names, external: Collection[str], at: Path) -> Iterator[Problem]:
    for name in gateway.prices:
        yield from _unknown(name, models, (*at, name))
        if name in external:
            hint = "write its price into its engine: {kind: external, price: ...}"
            yield Problem(where=show((*at, name)), what=f"{name!r} is an external model", hint=hint)


def _unused_external(gateway: GatewayParts, external: Collection[str], at: Path) -> Iterator[Problem]:
    """Yield fallbacks and overflows to external models that no tenant allows: they would never happen."""
    if gateway.tenant_names is None or any(tenant.external for _, tenant in gateway.tenants):
        return
    places = [
        *(((*at, "overflow", name, "to"), overflow.to) for name, overflow in gateway.overflow.items()),
        *(
            ((*at, "fallbacks", name, index), other)
            for name, others in gateway.fallbacks.items()
            if name not in external
            for index, other in enumerate(others)
        ),
    ]
    name = min(gateway.tenant_names, default=ANONYMOUS)
    for where, model in places:
        if model in external:
            what = f"no tenant allows its requests to go to {model!r}, outside the fleet"
            yield Problem(where=show(where), what=what, hint=f"write tenants: [{{name: {name}, external: true}}]")


def _cycle_from(start: str, fallbacks: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the shortest way from a model back to itself, only for its first model. Empty where there is none."""
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:
        for other in fallbacks.get(way[-1], ()):
            if other == start:
                return [*way, start] if min(way, key=list(fallbacks).index) == start else []
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def _rule_problems(gateway: GatewayParts, names: Names, at: Path) -> Iterator[Problem]:
    for index, rule in gateway.rules:
        yield from _unknown(rule.to, names, (*at, index, "to"))
        if rule.model != ANY:
            yield from _unknown(rule.model, names, (*at, index, "model"))
        for number, tenant in enumerate(rule.tenants):
            yield from _unknown(tenant, gateway.tenant_names, (*at, index, "tenants", number), kind="tenant")
        for number, tag in enumerate(rule.tags):
            yield from _unknown(tag, gateway.tags, (*at, index, "tags", number), kind="tag of a tenant")


def _tenant_model_problems(gateway: GatewayParts, names: Names, at: Path) -> Iterator[Problem]:
    for index, tenant in gateway.tenants:
        for number, model in enumerate(tenant.models or ()):
            yield from _unknown(model, names, (*at, index, "models", number))


def _money_problems(gateway: GatewayParts, external: Mapping[str, str], at: Path) -> Iterator[Problem]:
    """Yield limits of money that no price fills, or that prices in several currencies would fill."""
    prices = {**external, **gateway.prices}
    currencies = sorted({currency for currency in prices.values() if currency})
    if len(currencies) == 1 or (gateway.prices and not currencies):  # unreadable prices are other mistakes
        return
    for index, tenant in gateway.tenants:
        where = show((*at, index, "money_per_day"))
        if tenant.money_per_day is None:
            continue
        if currencies:
            listed = ", ".join(f"{name} in {currency}" for name, currency in sorted(prices.items()) if currency)
            what = f"a limit of money needs all prices in one currency: {listed}"
            yield Problem(where=where, what=what, hint=f"write currency: {currencies[0]} in every price")
        else:
            hint = "write gateway.prices: {MODEL: {input_per_million: 0.5, output_per_million: 1.5}}"
            yield Problem(where=where, what="no model has a price, so the limit of money never applies", hint=hint)


def _unknown(name: str, known: Names, where: Path, kind: str = "model") -> Iterator[Problem]:
    if known is None or name in known:
        return
    names = sorted(set(known))
    close = near(name, names)
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    hint = f"write {close}" if close else f"known: {listed}" if names else "leave it out: there is none"
    yield Problem(where=show(where), what=f"there is no {kind} {name!r}", hint=hint)
