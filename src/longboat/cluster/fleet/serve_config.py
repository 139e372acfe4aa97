"""The desired fleet as Serve's declarative document: one application per model and one for the controller. Pure.

Serve compares each application's arguments with what runs: what is not in the arguments may change in flight. So
replica counts travel as an override of ``num_replicas``, and what the controller must know as its ``user_config``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from longboat.cluster.fleet.adapters import adapter_values, room_values
from longboat.cluster.fleet.deployed import SCALED_FROM_OUTSIDE, plain_policy
from longboat.cluster.protocol.names import (
    CONTROLLER_APP,
    CONTROLLER_DEPLOYMENT,
    MODEL_APP_PREFIX,
    SUPERVISOR_DEPLOYMENT,
    model_app_name,
)
from longboat.cluster.weights.orders import weights_values
from longboat.core.plan import GangShape
from longboat.core.policy import Policy
from longboat.engines.model_arguments import arguments_of
from longboat.engines.registry import adapter_for
from longboat.planner.fleet.place import bundles, strategy
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.gateway import GatewaySpec
from longboat.spec.types.replicas import ReplicasSpec
from longboat.spec.types.source import is_fetched

__all__ = (
    "ShapedModel",
    "controller_document",
    "digests_in",
    "document_as_deployed",
    "gateway_settings",
    "plain_policy",
    "serve_document",
)

IMPORT_ROOM = "longboat.cluster.ray.serve_app"
ONE_MORE = 1
"""Serve rounds up: one percent is one replica more, for up to a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedModel:
    """A model of the fleet with the shape its gangs will have."""

    spec: ModelSpec
    shape: GangShape


def serve_document(
    fleet: Fleet,
    shaped: Iterable[ShapedModel],
    text: str,
    *,
    policy: Policy = Policy(),  # noqa: B008 (frozen)
    planned: Mapping[str, Any] = MappingProxyType({}),
    deployed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    in_force: Mapping[str, int] = MappingProxyType({}),
    others: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Make the document of everything that Serve is to run.

    planned: the values of the plan, for a later comparison with the measured ones
    deployed: model → the application as it was deployed, for models that keep running whatever shape they would get
    today; only their replica count is taken from the file
    in_force: model → the number of replicas that it has now; one that follows the load keeps it
    others: applications on this cluster that are not Longboat's, left as they are
    """
    running = [entry for entry in shaped if entry.spec.max_replicas > 0]
    return {
        "proxy_location": "Disabled",
        "applications": [
            *others,
            _application(CONTROLLER_APP, "controller_app", {}, CONTROLLER_DEPLOYMENT)
            | {
                "deployments": [
                    {"name": CONTROLLER_DEPLOYMENT, "user_config": controller_document(fleet, text, policy, planned)}
                ]
            },
            *(
                _model_application(fleet.name, entry, deployed.get(entry.spec.name), in_force.get(entry.spec.name, 0))
                for entry in running
            ),
        ],
    }


def controller_document(
    fleet: Fleet,
    text: str,
    policy: Policy = Policy(),  # noqa: B008 (frozen)
    planned: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Make the fleet controller's values (see ``FleetController.reconfigure``)."""
    warm = {
        (m.engine.kind, m.engine.version, m.engine.environment, not m.source.startswith("hf:") or is_fetched(m.source))
        for m in fleet.models
        if m.engine.startup != "plain" and adapter_for(m.engine.kind).overlay is not None
    }
    return {
        "fleet": fleet.name,
        "text": text,
        "models": [model.name for model in fleet.models],
        "updates": {
            m.name: {"replicas": m.num_replicas, **m.update.model_dump()} for m in fleet.models if m.max_replicas
        },
        "gateway": gateway_settings(fleet.gateway),
        "policy": plain_policy(policy),
        "planned": dict(planned),
        "adapters": adapter_values(fleet),
        "weights": weights_values(fleet),
        "warm": [{"kind": k, "version": v, "path": p, "offline": o} for k, v, p, o in sorted(warm, key=str)],
    }


def gateway_settings(gateway: GatewaySpec) -> dict[str, Any]:
    """Make the arguments of ``messages.GatewaySettings``: what gateways cannot change while they run."""
    tls, tracing, redis = gateway.tls, gateway.tracing, gateway.redis
    return {
        "host": gateway.host,
        "port": gateway.port,
        "processes": gateway.processes,
        "tls_certificate": tls.certificate if tls else None,
        "tls_key": tls.key if tls else None,
        "access_log": gateway.logs.access,
        "access_log_max_bytes": gateway.logs.size_bytes,
        "access_log_keep": gateway.logs.keep,
        "tracing_endpoint": tracing.endpoint if tracing else None,
        "tracing_sample_ratio": tracing.sample_ratio if tracing else 1.0,
        "redis_url": redis.url if redis else None,
        "redis_url_file": redis.url_file if redis else None,
        "redis_url_env": redis.url_env if redis else None,
    }


def document_as_deployed(document: Mapping[str, Any], kept: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document with these models' applications as they are declared now.

    Serve then leaves their numbers of replicas alone, which orders by hand and the load changed since. kept: model →
    its application
    """
    whole = {model_app_name(model): {**app, **SCALED_FROM_OUTSIDE} for model, app in kept.items()}
    return {**document, "applications": [whole.get(app["name"], app) for app in document["applications"]]}


def digests_in(document: Mapping[str, Any]) -> dict[str, str]:
    """Return model → digest of what its replicas are started with."""
    return {
        app["name"].removeprefix(MODEL_APP_PREFIX): app["args"]["digest"]
        for app in document["applications"]
        if app["name"].startswith(MODEL_APP_PREFIX)
    }


def _model_application(
    fleet: str, entry: ShapedModel, deployed: Mapping[str, Any] | None, in_force: int
) -> dict[str, Any]:
    spec = entry.spec
    override = {
        "name": SUPERVISOR_DEPLOYMENT,
        "num_replicas": _declared(spec, in_force),
        "max_surge_percent": ONE_MORE if spec.update.surge else 0,
    }
    if deployed is not None:
        return {**deployed, **SCALED_FROM_OUTSIDE, "deployments": [override]}
    args = {
        "fleet": fleet,
        "model": _static_part(spec),
        "shape": dataclasses.asdict(dataclasses.replace(entry.shape, reason="")),
        "bundles": bundles(entry.shape),
        "strategy": strategy(entry.shape),
        "labels": dict(spec.placement.labels),
    }
    if entry.shape.stages:
        args["stages"] = [dict(labels) for labels in entry.shape.stages]
    args["digest"] = hashlib.sha256(json.dumps(args, sort_keys=True).encode()).hexdigest()[:16]
    return _application(model_app_name(spec.name), "model_app", args, SUPERVISOR_DEPLOYMENT) | {
        **SCALED_FROM_OUTSIDE,
        "deployments": [override],
    }


def _declared(spec: ModelSpec, in_force: int) -> int:
    """Return the number of replicas for Serve's document, which has no zero: the controller sets it afterwards."""
    if not isinstance(spec.replicas, ReplicasSpec):
        return spec.num_replicas
    kept = min(max(in_force, spec.replicas.min), spec.max_replicas) if in_force else spec.num_replicas
    return max(1, kept)


def _static_part(spec: ModelSpec) -> dict[str, Any]:
    document: dict[str, Any] = spec.model_dump(mode="json", exclude={"replicas", "update", "load", "adapters"})
    if spec.adapters is not None:
        document["adapters"] = room_values(spec.adapters)
    document["engine"]["options"] = spec.engine.given_options
    document["engine"]["args"] = list(arguments_of(spec))
    if not spec.engine.env:
        del document["engine"]["env"]
    return document


def _application(name: str, builder: str, args: Mapping[str, Any], deployment: str) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": None,
        "import_path": f"{IMPORT_ROOM}:{builder}",
        "args": dict(args),
        "deployments": [{"name": deployment}],
    }
