"""The Serve applications: one per model, one for the fleet controller; built on the cluster from plain arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve

from longboat.cluster.fleet.controller import FleetController
from longboat.cluster.fleet.deployed import bundle_labels
from longboat.cluster.gang.supervisor import EngineSupervisor
from longboat.cluster.protocol.model import read_model, read_shape
from longboat.cluster.protocol.names import CONTROLLER_DEPLOYMENT, SUPERVISOR_DEPLOYMENT
from longboat.cluster.ray.actors import create_agents, daemon_of, end_daemon
from longboat.cluster.ray.autoscaler import ask_for_nodes
from longboat.cluster.ray.fleet_orders import carry_out
from longboat.cluster.ray.held_room import HeldRoom

__all__ = ("controller_app", "model_app")

HEALTH_PERIOD_S = 1.0
GANG_HEALTH_PERIOD_S = 2.0
"""A supervisor exits by itself when its gang is lost, and hundreds of them are asked."""

HEALTH_TIMEOUT_S = 5.0
LONGEST_END_S = 3700.0
"""The supervisor itself ends in time (``models[].update``, an hour at most); Serve's limit is for one that hangs."""


def model_app(args: Mapping[str, Any]) -> serve.Application:
    """``args``: fleet, model (its entry in the fleet file), shape, bundles, strategy, labels, stages, digest."""
    labels = bundle_labels(args)
    deployment = serve.deployment(EngineSupervisor).options(
        name=SUPERVISOR_DEPLOYMENT,
        ray_actor_options={"num_cpus": 0, "num_gpus": args["bundles"][0].get("GPU", 0)},
        placement_group_bundles=list(args["bundles"]),
        placement_group_strategy=args["strategy"],
        **({"placement_group_bundle_label_selector": labels} if labels else {}),
        max_ongoing_requests=100,
        health_check_period_s=GANG_HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=LONGEST_END_S,
    )
    return deployment.bind(
        args["fleet"], read_model(args["model"]), read_shape(args["shape"]), args["digest"], create_agents
    )


def controller_app(args: Mapping[str, Any]) -> serve.Application:
    """Make the controller's application. Its values come as ``user_config``: a changed fleet does not restart it."""
    del args
    deployment = serve.deployment(FleetController).options(
        name=CONTROLLER_DEPLOYMENT,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=10_000,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=20.0,
    )
    return deployment.bind(daemon_of, end_daemon, carry_out, HeldRoom, ask_for_nodes)
