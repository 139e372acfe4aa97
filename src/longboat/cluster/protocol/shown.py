"""What ``longboat status`` shows of the fleet file. The controller reads the file, so that the command need not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longboat.spec.types.external import ExternalModelSpec
    from longboat.spec.types.fleet import Fleet
    from longboat.spec.types.gateway import GatewaySpec

__all__ = ("ShownExternal", "ShownFleet", "ShownGateway", "ShownModel", "shown_fleet", "shown_gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownModel:
    """One model of the fleet."""

    replicas: int
    task: str
    engine: str  # its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownExternal:
    """One model at addresses outside the fleet."""

    name: str
    api: str
    model: str  # its name there
    urls: tuple[str, ...]
    limits: Mapping[str, float]  # of a day


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGateway:
    """The gateway section: who may use the models, and how much."""

    auth: str  # "keys" or "none"
    host: str
    is_local: bool = True  # whether only the nodes' own users reach it
    has_tls: bool = False
    has_redis: bool = False
    tenants: tuple[Mapping[str, Any], ...] = ()  # as in the file
    default_tenant: str = ""  # of keys, where the file names no tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFleet:
    """The file of the fleet that runs."""

    models: Mapping[str, ShownModel]
    external: tuple[ShownExternal, ...]
    gateway: ShownGateway


def shown_fleet(fleet: Fleet) -> ShownFleet:
    """Return what people see of a fleet file. It holds no secret."""
    models = {m.name: ShownModel(replicas=m.num_replicas, task=m.task, engine=m.engine.kind) for m in fleet.models}
    external = tuple(_shown_external(model) for model in fleet.external)
    return ShownFleet(models=models, external=external, gateway=shown_gateway(fleet.gateway))


def _shown_external(model: ExternalModelSpec) -> ShownExternal:
    engine = model.engine
    limits = engine.limits.model_dump(exclude_none=True)
    return ShownExternal(
        name=model.name, api=engine.api, model=engine.model or model.name, urls=tuple(engine.urls), limits=limits
    )


def shown_gateway(gateway: GatewaySpec) -> ShownGateway:
    """Return what people see of a file's gateway section."""
    from longboat.core.policy import DEFAULT_TENANT
    from longboat.spec.types.section import is_loopback

    return ShownGateway(
        auth=gateway.auth or "none",
        host=gateway.host,
        is_local=is_loopback(gateway.host),
        has_tls=gateway.tls is not None,
        has_redis=gateway.redis is not None,
        tenants=tuple(tenant.model_dump(mode="json") for tenant in gateway.tenants),
        default_tenant=DEFAULT_TENANT if gateway.auth == "keys" and not gateway.tenants else "",
    )
