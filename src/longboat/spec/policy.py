"""Makes the policy of gateways from the file's gateway section, the keys and the secrets around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from longboat.core.external import Budget, ExternalModel, Overflow, Price
from longboat.core.media import MediaRules
from longboat.core.policy import (
    DEFAULT_TENANT,
    AdapterRights,
    AdminCredential,
    Alias,
    CorsPolicy,
    KeyRecord,
    Policy,
    PreemptionPolicy,
    QueuePolicy,
    ResumePolicy,
    RouteRule,
    RoutingRules,
    TenantPolicy,
    WeightedPool,
)
from longboat.core.sign_in import GroupRights, SignIn
from longboat.spec.types.adapters import AdapterSpec
from longboat.spec.types.external import ExternalModelSpec
from longboat.spec.types.fleet import ModelSpec
from longboat.spec.types.gateway import AliasSpec, GatewaySpec, QueueSpec, TenantSpec
from longboat.spec.types.sign_in import SignInSpec

__all__ = ("adapter_rights", "policy_of", "prices_of", "tenant_names")

_LOADS_FROM_TEXTS = frozenset(("tgi",))
"""Engines whose vision models load each image that a prompt names in Markdown.

Their text models load none, yet the rule applies to them too: what decides is ``model_type`` in a folder on the nodes,
which can become another while the policy stays.
"""


def policy_of(
    gateway: GatewaySpec,
    keys: Iterable[KeyRecord] = (),
    salt: str = "",
    num_gateways: int = 1,
    admins: Iterable[AdminCredential] = (),
    external: Iterable[ExternalModelSpec] = (),
    served: Mapping[str, ModelSpec] | None = None,
    adapters: Iterable[tuple[ModelSpec, AdapterSpec]] = (),
) -> Policy:
    """Make the policy of a checked section (see ``gateway_problems``).

    external: the models that other people serve; served: those of the fleet, by each name that they serve
    adapters: each with its model
    admins: ``spec.secrets.admin_credentials`` reads them; keys of tenants that the section does not name open nothing
    """
    named, adapters = served or {}, tuple(adapters)
    return Policy(
        auth=gateway.auth or "none",
        tenants=_tenants(gateway),
        keys=tuple(keys),
        admins=tuple(admins),
        sign_in=None if gateway.sign_in is None else _sign_in(gateway.sign_in),
        aliases=tuple(_alias(alias) for alias in gateway.aliases),
        fallbacks=dict(gateway.fallbacks),
        overflow={name: Overflow(to=spec.to, after_s=spec.after_s) for name, spec in gateway.overflow.items()},
        prices=prices_of(gateway, adapters),
        tasks={name: model.task for name, model in named.items()},
        media={name: _media(model) for name, model in named.items()},
        external=tuple(_external(model) for model in external),
        adapters=adapter_rights(adapters),
        rules=tuple(RouteRule(**rule.model_dump()) for rule in gateway.rules),
        queue=_queue(gateway.queue),
        resume=ResumePolicy(**gateway.resume.model_dump()),
        routing=RoutingRules(policy=gateway.routing.policy, sticky=gateway.routing.sticky or ""),
        cors=CorsPolicy(**gateway.cors.model_dump()),
        trusted_proxies=gateway.trusted_proxies,
        demo=gateway.demo,
        num_gateways=num_gateways,
        salt=salt,
    )


def adapter_rights(adapters: Iterable[tuple[ModelSpec, AdapterSpec]]) -> tuple[AdapterRights, ...]:
    """Return who may use which adapter. adapters: each with its model"""
    return tuple(AdapterRights(name=entry.name, model=m.name, tenants=entry.tenants) for m, entry in adapters)


def prices_of(gateway: GatewaySpec, adapters: Iterable[tuple[ModelSpec, AdapterSpec]]) -> dict[str, Price]:
    """Return the price of each model that has one, and of its adapters."""
    own = {name: Price(**spec.model_dump()) for name, spec in gateway.prices.items()}
    return {**{entry.name: own[model.name] for model, entry in adapters if model.name in own}, **own}


def tenant_names(gateway: GatewaySpec) -> tuple[str, ...]:
    """Tenants that keys can be made for."""
    return tuple(tenant.name for tenant in _tenants(gateway)) if gateway.auth == "keys" else ()


def _tenants(gateway: GatewaySpec) -> tuple[TenantPolicy, ...]:
    if gateway.auth == "keys" and not gateway.tenants:
        return (TenantPolicy(name=DEFAULT_TENANT),)
    return tuple(_tenant(tenant) for tenant in gateway.tenants)


def _tenant(tenant: TenantSpec) -> TenantPolicy:
    return TenantPolicy(**{**tenant.model_dump(), "cache_group": tenant.cache_group or ""})


def _media(model: ModelSpec) -> MediaRules:
    return replace(model.media.rules, in_texts=model.engine.kind in _LOADS_FROM_TEXTS)


def _sign_in(spec: SignInSpec) -> SignIn:
    groups = tuple(GroupRights(group=g.group, role=g.role or "", tenant=g.tenant or "") for g in spec.groups)
    return SignIn(**spec.model_dump(exclude={"groups"}), groups=groups)


def _queue(spec: QueueSpec) -> QueuePolicy:
    values = spec.model_dump(exclude={"preemption"})
    return QueuePolicy(**values, preemption=PreemptionPolicy(**spec.preemption.model_dump()))


def _external(spec: ExternalModelSpec) -> ExternalModel:
    engine = spec.engine
    values = engine.model_dump(exclude={"kind", "model", "limits", "price"})
    return ExternalModel(
        **values,
        name=spec.name,
        model=engine.model or spec.name,
        limits=Budget(**engine.limits.model_dump()),
        price=None if engine.price is None else Price(**engine.price.model_dump()),
    )


def _alias(alias: AliasSpec) -> Alias:
    pools = tuple(WeightedPool(model=pool.model, weight=pool.weight) for pool in alias.pools)
    return Alias(name=alias.name, pools=pools or (WeightedPool(model=str(alias.model)),), sticky=alias.sticky)
