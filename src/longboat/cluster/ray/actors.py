"""The plain classes wrapped into Ray actors, and where each is placed."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from longboat.cluster.gang.agent import NodeAgent
from longboat.cluster.protocol.model import ServedModel
from longboat.cluster.protocol.names import NAMESPACE, daemon_name
from longboat.cluster.protocol.ports import AgentPort, RayAgent
from longboat.core.plan import GangShape

__all__ = ("create_agents", "daemon_of", "end_daemon")


def create_agents(model: ServedModel, shape: GangShape) -> list[AgentPort]:
    """Create this replica's agents: rank 0's in the supervisor itself, and an actor in each further bundle.

    Each takes its bundle's accelerators, so Ray names them.
    """
    agents: list[AgentPort] = [NodeAgent(model, 0, lease_s=None)]
    group = get_current_placement_group()
    remote = ray.remote(NodeAgent)
    for bundle in range(1, shape.num_nodes):
        handle = remote.options(
            num_cpus=0,
            num_gpus=shape.gpus_per_node,
            max_concurrency=100,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
        ).remote(model, bundle)
        agents.append(RayAgent(handle))
    return agents


def daemon_of(node_id: str) -> Any:
    """Return a node's daemon actor, made where there is none. It outlives its creator, and restarts by itself."""
    from longboat.cluster.node.node_daemon import NodeDaemon  # a supervisor, which starts in a hurry, needs none of it

    return (
        ray.remote(NodeDaemon)
        .options(
            name=daemon_name(node_id),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=100,
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote()
    )


async def end_daemon(node_id: str, timeout_s: float = 15.0) -> bool:
    """Stop a node's gateway and zygotes, then its daemon. False when the node did not answer."""
    try:
        daemon = ray.get_actor(daemon_name(node_id), namespace=NAMESPACE)
    except ValueError:
        return True
    try:
        await asyncio.wait_for(daemon.shutdown.remote(), timeout_s)
        return True
    except Exception:
        return False
    finally:
        ray.kill(daemon)
