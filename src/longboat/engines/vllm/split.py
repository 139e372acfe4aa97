"""The part of vLLM's command line that divides a replica: tensor, pipeline, data and expert parallel, over nodes."""

from __future__ import annotations

from collections.abc import Mapping

from longboat.core.plan import GangPlan, GangShape, RankPlan
from longboat.engines.contract import Ability, PortRequest

__all__ = ("UNABLE_ON", "ports", "split_arguments")

UNABLE_ON: Mapping[str, Mapping[Ability, str]] = {
    "cpu": {"expert": "write expert: false; tensor and data divide each expert instead, which works on processors"}
}
"""vLLM 0.32's kernel for experts on processors crashes where a rank does not hold all experts."""


def ports(shape: GangShape) -> tuple[PortRequest, ...]:
    """Return the ports of the head: its API, and where ranks of other nodes meet."""
    api = PortRequest(purpose="api", node_rank=0)
    if shape.num_nodes == 1:
        return (api,)
    return (api, PortRequest(purpose="data" if shape.data > 1 else "master", node_rank=0))


def split_arguments(plan: GangPlan, rank: RankPlan) -> list[str]:
    """Return the arguments of one node rank."""
    shape = plan.shape
    args = ["--tensor-parallel-size", str(shape.tensor), "--pipeline-parallel-size", str(shape.pipeline)]
    if shape.tensor * shape.pipeline > 1:
        args += ["--distributed-executor-backend", "mp"]
    if shape.expert:
        args += ["--enable-expert-parallel"]
    if shape.data > 1:
        args += _data_arguments(plan, rank)
    elif shape.num_nodes > 1:
        head = plan.head
        args += ["--nnodes", str(shape.num_nodes), "--node-rank", str(rank.node_rank)]
        args += ["--master-addr", head.address, "--master-port", str(head.ports["master"])]
    return [*args, "--headless"] if rank.node_rank > 0 else args


def _data_arguments(plan: GangPlan, rank: RankPlan) -> list[str]:
    """Return the arguments for data ranks, each within one node; the head's API server divides requests among them."""
    shape, head = plan.shape, plan.head
    args = ["--data-parallel-size", str(shape.data)]
    if shape.num_nodes > 1:
        args += ["--data-parallel-size-local", str(shape.data_per_node)]
        args += ["--data-parallel-address", head.address, "--data-parallel-rpc-port", str(head.ports["data"])]
    if rank.node_rank == 0:
        return [*args, "--api-server-count", "1"]  # vLLM would start one for each data rank
    return [*args, "--data-parallel-start-rank", str(rank.node_rank * shape.data_per_node)]
