"""The commands that start a plan's replicas with the engines alone, without Longboat."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from longboat.cli.plan.outputs.model_files import ModelFiles
from longboat.planner.memory.engine import engine_traits
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.reasons import settings_of

__all__ = ("engine_commands",)

PORTS = {"vllm": 8000, "sglang": 30000, "llama.cpp": 8080}
MASTER_PORT, RPC_PORT = 29500, 50052
HEAD = "HEAD_ADDRESS"


def engine_commands(group: Forecast, files: ModelFiles, cards_per_node: int) -> Iterator[str]:
    """Yield the commands of the replicas of one node, or of one replica over several, and what a reader must know.

    Each is a line, a command or a comment. Replicas of one node have a port and cards of their own.

    cards_per_node: accelerators of the node that has the most of them
    """
    num_ranks, replicas = group.layout.num_ranks, group.layout.replicas
    num_nodes = -(-num_ranks // cards_per_node)
    beside = max(1, min(replicas, cards_per_node // num_ranks))
    yield f"# {group.title}: {_how_often(replicas, beside, num_nodes)}"
    if engine_traits(group.engine).gguf and not _is_file(files):
        yield f"# MODEL.gguf: {files.name} in {group.shape.quantization or 'bf16'}"
    for copy in range(beside):
        cards = range(copy * num_ranks, (copy + 1) * num_ranks)
        own = [f"CUDA_VISIBLE_DEVICES={','.join(map(str, cards))}"] if beside > 1 and _has_gpus(group) else []
        yield from _of_replica(group, files, num_nodes, own, PORTS[group.engine] + copy)


def _how_often(replicas: int, beside: int, num_nodes: int) -> str:
    """Return on how many nodes the commands are to be started. beside: replicas on a node."""
    if replicas == 1:
        return "start this once"
    if num_nodes > 1:
        return f"start this {replicas} times, each on nodes of its own"
    nodes, rest = -(-replicas // beside), replicas % beside
    if nodes == 1:
        return f"start these {beside} on one node"
    what = f"these {beside}" if beside > 1 else "this"
    return f"start {what} on each of {nodes} nodes" + (f", on the last only the first {rest}" if rest else "")


def _has_gpus(group: Forecast) -> bool:
    return group.layout.places[0].card.kind == "gpu"


def _of_replica(group: Forecast, files: ModelFiles, num_nodes: int, own: Sequence[str], port: int) -> Iterator[str]:
    """Yield the commands of one replica, one for each node. own: variables of this replica only."""
    settings = [*settings_of(group), *((" ".join(files.args),) if files.args else ())]
    variables = [*own, *(one for one in settings if "=" in one and not one.startswith("-"))]
    options = [word for one in settings if one not in variables for word in one.split()]
    if engine_traits(group.engine).gguf:
        words = [word for one in options for word in one.split("=", 1)]
        yield from _of_llama(files, own, ["--port", str(port), *words], num_nodes)
        return
    for rank in range(num_nodes):
        if num_nodes > 1:
            yield f"# on node {rank} of {num_nodes}; {HEAD} is the address of node 0"
        told = [] if rank else ["--port", str(port)]
        words = [*_first_words(group, files), *told, *options, *_of_nodes(group, rank, num_nodes)]
        yield " ".join([*variables, *map(shlex.quote, words)])


def _first_words(group: Forecast, files: ModelFiles) -> list[str]:
    if group.engine == "vllm":
        return ["vllm", "serve", files.name]
    return ["python", "-m", "sglang.launch_server", "--model-path", files.name]


def _of_nodes(group: Forecast, rank: int, num_nodes: int) -> list[str]:
    if num_nodes == 1:
        return []
    told = ["--nnodes", str(num_nodes), "--node-rank", str(rank)]
    if group.engine == "sglang":
        return [*told, "--dist-init-addr", f"{HEAD}:{MASTER_PORT}"]
    if group.layout.data > 1:
        local = group.layout.data // num_nodes
        told = ["--data-parallel-size-local", str(local), "--data-parallel-address", HEAD]
        told += ["--data-parallel-rpc-port", str(MASTER_PORT)]
        return [*told, "--headless", "--data-parallel-start-rank", str(rank * local)] if rank else told
    told += ["--master-addr", HEAD, "--master-port", str(MASTER_PORT)]
    return [*told, "--headless"] if rank else told


def _is_file(files: ModelFiles) -> bool:
    return files.name.endswith(".gguf")


def _of_llama(files: ModelFiles, variables: Sequence[str], options: Sequence[str], num_nodes: int) -> Iterator[str]:
    """Yield the server, and before it an ``rpc-server`` for each further node."""
    peers = [f"NODE_{rank}:{RPC_PORT}" for rank in range(1, num_nodes)]
    if peers:
        yield f"# on nodes 1 to {num_nodes - 1} first; the port has no key: keep it inside the network of the machines"
        yield f"rpc-server --host 0.0.0.0 --port {RPC_PORT}"
        yield "# then on node 0"
    words = ["llama-server", "-m", files.name if _is_file(files) else "MODEL.gguf", *options]
    words += ["--rpc", ",".join(peers)] if peers else []
    yield " ".join([*variables, *map(shlex.quote, words)])
