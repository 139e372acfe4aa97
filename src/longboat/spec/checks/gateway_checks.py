"""Mistakes between the parts of a gateway section, and between it and the models behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from longboat.core.errors import Problem
from longboat.core.policy import ANONYMOUS
from longboat.spec.checks.mistakes import near
from longboat.spec.policy import tenant_names
from longboat.spec.text.location import Path, show
from longboat.spec.types.gateway import GatewaySpec

__all__ = ("gateway_problems",)

ANY = "*"


def gateway_problems(gateway: GatewaySpec, models: Collection[str], *, at: Path = ("gateway",)) -> list[Problem]:
    """Every mistake that no single value shows. models: names that are served; at: where the section stands."""
    aliases = {alias.name for alias in gateway.aliases} - set(models)
    return [
        *_doubles([tenant.name for tenant in gateway.tenants], (*at, "tenants")),
        *_doubles([admin.name for admin in gateway.admin], (*at, "admin")),
        *_doubles([alias.name for alias in gateway.aliases], (*at, "aliases")),
        *_tenants_without_keys(gateway, at),
        *_alias_problems(gateway, models, (*at, "aliases")),
        *_fallback_problems(gateway, models, aliases, (*at, "fallbacks")),
        *_rule_problems(gateway, {*models, *aliases}, (*at, "rules")),
        *_tenant_model_problems(gateway, {*models, *aliases}, (*at, "tenants")),
    ]


def _doubles(names: Sequence[str], at: Path) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if (first := names.index(name)) != index:
            what = f"{name!r} is the name of {at[-1]}[{first}] already"
            yield Problem(where=show((*at, index, "name")), what=what, hint="give one of them another name")


def _tenants_without_keys(gateway: GatewaySpec, at: Path) -> Iterator[Problem]:
    for index, tenant in enumerate(gateway.tenants):
        if gateway.auth != "keys" and tenant.name != ANONYMOUS:
            yield Problem(
                where=show((*at, "tenants", index, "name")),
                what=f"nobody is known as {tenant.name!r} where no keys are asked for",
                hint=f"write auth: keys, or name it {ANONYMOUS}: the tenant of every request without keys",
            )


def _alias_problems(gateway: GatewaySpec, models: Collection[str], at: Path) -> Iterator[Problem]:
    for index, alias in enumerate(gateway.aliases):
        if alias.name in models:
            what = f"{alias.name!r} is the name of a model"
            yield Problem(
                where=show((*at, index, "name")), what=what, hint="use a rule: rules: [{model: ..., to: ...}]"
            )
        if alias.model is not None:
            yield from _unknown(alias.model, models, (*at, index, "model"))
        for number, pool in enumerate(alias.pools):
            yield from _unknown(pool.model, models, (*at, index, "pools", number, "model"))


def _fallback_problems(
    gateway: GatewaySpec, models: Collection[str], aliases: Collection[str], at: Path
) -> Iterator[Problem]:
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
            what = f"{' -> '.join(cycle)} goes in a circle"
            yield Problem(where=show(where), what=what, hint=f"take {cycle[-1]} out of the list of {cycle[-2]}")


def _cycle_from(start: str, fallbacks: dict[str, tuple[str, ...]]) -> list[str]:
    """The shortest way from a model back to itself; told once, for its first model. Empty where there is none."""
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


def _rule_problems(gateway: GatewaySpec, names: Collection[str], at: Path) -> Iterator[Problem]:
    tenants = tenant_names(gateway) or (ANONYMOUS,)
    tags = {tag for tenant in gateway.tenants for tag in tenant.tags}
    for index, rule in enumerate(gateway.rules):
        yield from _unknown(rule.to, names, (*at, index, "to"))
        if rule.model != ANY:
            yield from _unknown(rule.model, names, (*at, index, "model"))
        for number, tenant in enumerate(rule.tenants):
            yield from _unknown(tenant, tenants, (*at, index, "tenants", number), kind="tenant")
        for number, tag in enumerate(rule.tags):
            yield from _unknown(tag, tags, (*at, index, "tags", number), kind="tag of a tenant")


def _tenant_model_problems(gateway: GatewaySpec, names: Collection[str], at: Path) -> Iterator[Problem]:
    for index, tenant in enumerate(gateway.tenants):
        for number, model in enumerate(tenant.models or ()):
            yield from _unknown(model, names, (*at, index, "models", number))


def _unknown(name: str, known: Iterable[str], where: Path, kind: str = "model") -> Iterator[Problem]:
    names = sorted(set(known))
    if name not in names:
        close = near(name, names)
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        hint = f"write {close}" if close else f"there is: {listed}" if names else "leave it out: there is none"
        yield Problem(where=show(where), what=f"there is no {kind} {name!r}", hint=hint)
