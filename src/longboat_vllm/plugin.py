"""The vLLM plugin: fixes vLLM's CPU runner, forks children after a zygote's fork, and resumes streams exactly.

vLLM loads it in each of its processes (entry point group ``vllm.general_plugins``); loading it again changes nothing.
``LONGBOAT_VLLM_PLUGIN=0`` turns it off. A fix is applied only while vLLM's code is as it was in 0.32, for which the fix
was written; otherwise the fix stays off and the log says so. Most fixes are for the CPU platform alone. ``resume``
describes how streams are resumed.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from longboat_vllm import media, tool_tokens
from longboat_vllm.adapters import mend_plain_rows_on_cpu, mend_prompt_logprobs_on_cpu
from longboat_vllm.expert_groups import mend_expert_groups_on_cpu
from longboat_vllm.message_queues import mend_memory_left_behind, mend_spinning_on_cpu
from longboat_vllm.prefixes import front_end as prefixes
from longboat_vllm.process import lineage, loaded, server_end
from longboat_vllm.process.forked import FORKED
from longboat_vllm.resume import install as resume
from longboat_vllm.resume.seeds import mend_seeded_parts_on_cpu
from longboat_vllm.shapes import UnexpectedShapeError, expect, expect_parameters
from longboat_vllm.speculation import mend_speculation_on_cpu

__all__ = (
    "SWITCH",
    "fork_children",
    "mend_eager_on_cpu",
    "mend_inspection_on_cpu",
    "mend_pipeline_on_cpu",
    "mend_ranks_per_node_on_cpu",
    "register",
)

SWITCH = "LONGBOAT_VLLM_PLUGIN"
_MENDED = "_longboat_mended"
_RANKS_MENDED = "_longboat_mended_ranks"
_EAGER_MENDED = "_longboat_mended_eager"


def register() -> None:
    """Apply everything that fits this process: the entry point of the plugin."""
    if os.environ.get(SWITCH) == "0":
        return
    if "LONGBOAT_GANG" in os.environ:
        lineage.end_together()
        _apply(end_server_with_its_core)
    if os.environ.get(FORKED) == "1":
        fork_children()
    resume.install(_log)
    _apply(tell_prefixes)
    _apply(parse_calls_by_tokens)
    if os.environ.get("VLLM_MEDIA_CONNECTOR") == media.NAME:
        _apply(guard_media)
        _apply(media.resample_by_pyav)
    _apply(mend_memory_left_behind)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _apply(mend_pipeline_on_cpu)
        _apply(mend_ranks_per_node_on_cpu)
        _apply(mend_eager_on_cpu)
        _apply(mend_inspection_on_cpu)
        _apply(mend_expert_groups_on_cpu)
        _apply(mend_speculation_on_cpu)
        _apply(mend_spinning_on_cpu)
        _apply(mend_seeded_parts_on_cpu)
        _apply(mend_prompt_logprobs_on_cpu)
        _apply(mend_plain_rows_on_cpu)
        _apply(tell_loaded_bytes_on_cpu)


def _apply(mend: Callable[[], None]) -> None:
    name = mend.__name__.replace("_", " ")
    try:
        mend()
    except (ImportError, AttributeError, UnexpectedShapeError) as error:
        _log(f"{name} is off: this vLLM's code differs ({error})")


def _log(text: str) -> None:
    from vllm.logger import init_logger

    init_logger("vllm.longboat").info("Longboat: %s", text)


def end_server_with_its_core() -> None:
    """Let a server break its connections off where it cannot finish its responses: see ``server_end``."""
    server_end.install()


def guard_media() -> None:
    """Let vLLM load media by the rules of the fleet file: see ``media``."""
    media.install()


def parse_calls_by_tokens() -> None:
    """Let some parsers of tool calls say the same words however tokens arrive: see ``tool_tokens``."""
    tool_tokens.install()


def tell_prefixes() -> None:
    """Let vLLM tell gateways which prefixes it holds: see ``prefixes``."""
    prefixes.install()


def tell_loaded_bytes_on_cpu() -> None:
    """Let every rank log how many bytes of weights it loaded: see ``loaded``."""
    loaded.install(_log)


def fork_children() -> None:
    """Let vLLM fork its engine core and workers: everything that they import is loaded already.

    vLLM reads ``envs.VLLM_WORKER_MULTIPROC_METHOD`` each time it starts a child, and its CPU platform and command line
    set that variable to ``spawn``. A process that uses a device, or that binds to NUMA nodes, still spawns. Can be
    dropped when vLLM lets its user choose ``fork`` on every platform.
    """
    from vllm import envs

    envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = _start_method


def _start_method() -> str:
    torch = sys.modules.get("torch")
    holds_device = torch is not None and torch.cuda.is_initialized()
    return "spawn" if holds_device or "--numa-bind" in sys.argv else "fork"


def mend_pipeline_on_cpu() -> None:
    """Allocate the tensors in which a pipeline rank receives from the rank before it.

    vLLM allocates them in its dummy run, and its CPU worker skips that run in eager mode with a given KV cache size;
    the first request then fails with ``assert self.intermediate_tensors is not None``. This fix allocates them, as the
    dummy run does, when the model is loaded. Can be dropped when vLLM allocates them without a dummy run.
    """
    from vllm.distributed.parallel_state import get_pp_group
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    load_model = CPUModelRunner.load_model
    if hasattr(load_model, _MENDED):
        return
    source = inspect.getsource(GPUModelRunner._dummy_run)
    expect("self.model.make_empty_intermediate_tensors(" in source, "the dummy run allocates no tensors")

    @functools.wraps(load_model)
    def load_model_and_allocate(runner: Any, *args: Any, **kwargs: Any) -> None:
        load_model(runner, *args, **kwargs)
        if get_pp_group().is_first_rank or runner.intermediate_tensors is not None:
            return
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )
        _log("pipeline fixed: the tensors received from the previous rank are allocated")

    setattr(load_model_and_allocate, _MENDED, True)
    CPUModelRunner.load_model = load_model_and_allocate


def mend_ranks_per_node_on_cpu() -> None:
    """Give vLLM's message queues the number of ranks on a node.

    They use the platform's device count, which is 1 on CPU; a gang with several ranks on each of several nodes then
    waits for readers on the wrong node. Can be dropped when the queues use ParallelConfig.local_world_size.
    """
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_worker import CPUWorker

    init_device = CPUWorker.init_device
    if hasattr(init_device, _RANKS_MENDED):
        return
    expect("device_count" not in vars(CpuPlatform), "CpuPlatform counts its devices itself")
    source = inspect.getsource(shm_broadcast.MessageQueue.create_from_process_group_single_reader)
    expect("current_platform.device_count()" in source, "message queues do not use the device count")

    @functools.wraps(init_device)
    def init_device_with_ranks_per_node(worker: Any) -> Any:
        num_ranks = int(worker.parallel_config.local_world_size)
        if worker.parallel_config.nnodes > 1:
            CpuPlatform.device_count = classmethod(lambda _cls: num_ranks)
        return init_device(worker)

    setattr(init_device_with_ranks_per_node, _RANKS_MENDED, True)
    CPUWorker.init_device = init_device_with_ranks_per_node


def mend_eager_on_cpu() -> None:
    """Make ``--enforce-eager`` mean that nothing is compiled.

    Small functions of vLLM (embeddings under tensor parallelism, log-probabilities, seeded sampling) are otherwise
    compiled at their first use: 10-30 s within the first request, while the other ranks spin. Can be dropped when vLLM
    leaves ``torch.compile`` out of them in eager mode.
    """
    import torch
    from vllm.v1.worker.cpu_worker import CPUWorker

    init_device = CPUWorker.init_device
    if hasattr(init_device, _EAGER_MENDED):
        return
    set_stance = torch.compiler.set_stance

    @functools.wraps(init_device)
    def init_device_without_compiling(worker: Any) -> Any:
        if worker.model_config.enforce_eager:
            set_stance("force_eager")
        return init_device(worker)

    setattr(init_device_without_compiling, _EAGER_MENDED, True)
    CPUWorker.init_device = init_device_without_compiling


def mend_inspection_on_cpu() -> None:
    """Inspect the class of a model in this process.

    vLLM lets another process do it, which imports vLLM again: 11 CPU seconds for the first engine of an architecture.
    It does so to keep CUDA out of this process. Can be dropped when vLLM inspects here on platforms without CUDA.
    """
    from vllm.model_executor.models import registry

    source = inspect.getsource(registry._LazyRegisteredModel.inspect_model_cls)
    expect("in another process to avoid initializing CUDA" in source, "models are inspected for another reason")
    expect_parameters(registry._run_in_subprocess, ("fn",))
    registry._run_in_subprocess = _run_here


def _run_here(fn: Callable[[], Any]) -> Any:
    return fn()
