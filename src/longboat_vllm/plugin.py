"""The vLLM plugin: mends of vLLM's CPU runner for gangs, and forked instead of spawned children after a zygote's fork.

vLLM loads it in each of its processes (entry point group ``vllm.general_plugins``); loading it again changes nothing.
``LONGBOAT_VLLM_PLUGIN=0`` turns it off. A mend is applied only on the CPU platform, only while vLLM still looks the way
it was written for (0.32); else it stays off and says so in the log. Nothing changes on GPUs.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from longboat_vllm import lineage
from longboat_vllm.forked import FORKED

__all__ = ("SWITCH", "fork_children", "mend_pipeline_on_cpu", "mend_ranks_per_node_on_cpu", "register")

SWITCH = "LONGBOAT_VLLM_PLUGIN"
_MENDED = "_longboat_mended"


def register() -> None:
    """Entry point of the plugin."""
    if os.environ.get(SWITCH) == "0":
        return
    if "LONGBOAT_GANG" in os.environ:
        lineage.end_together()
    if os.environ.get(FORKED) == "1":
        fork_children()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _apply(mend_pipeline_on_cpu)
        _apply(mend_ranks_per_node_on_cpu)


def _apply(mend: Callable[[], None]) -> None:
    name = mend.__name__.replace("_", " ")
    try:
        mend()
    except (ImportError, AttributeError, _UnexpectedShapeError) as error:
        _log(f"{name} is off: this vLLM looks otherwise ({error})")


class _UnexpectedShapeError(Exception):
    """vLLM's code is not what the mend was written for."""


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise _UnexpectedShapeError(what)


def _log(text: str) -> None:
    from vllm.logger import init_logger

    init_logger("vllm.longboat").info("Longboat: %s", text)


def fork_children() -> None:
    """Let vLLM fork its engine core and workers: all they import is here already.

    vLLM asks ``envs.VLLM_WORKER_MULTIPROC_METHOD`` each time it starts a child, and its CPU platform and command line
    set that variable to ``spawn``. A process that has a device in use, or that binds to NUMA nodes, still spawns.
    Can be dropped when vLLM lets its user choose ``fork`` on every platform.
    """
    from vllm import envs

    envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = _start_method


def _start_method() -> str:
    torch = sys.modules.get("torch")
    holds_device = torch is not None and torch.cuda.is_initialized()
    return "spawn" if holds_device or "--numa-bind" in sys.argv else "fork"


def mend_pipeline_on_cpu() -> None:
    """Let a pipeline rank allocate the tensors that it receives from the rank before it.

    vLLM allocates them in its dummy run, and its CPU worker skips that run in eager mode with a given KV cache size;
    the first request then fails with ``assert self.intermediate_tensors is not None``.
    Can be dropped when CPUWorker warms up (or allocates them otherwise) for every pipeline_parallel_size above 1.
    """
    from vllm.config import CompilationMode
    from vllm.v1.worker import cpu_model_runner
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    should_warm_up, warm_up = CPUWorker._should_warm_up_model, CPUModelRunner.warming_up_model
    if hasattr(warm_up, _MENDED):
        return
    settings = cpu_model_runner._set_global_compilation_settings
    _expect(list(inspect.signature(should_warm_up).parameters) == ["self"], "CPUWorker._should_warm_up_model")
    _expect(list(inspect.signature(warm_up).parameters) == ["self"], "CPUModelRunner.warming_up_model")
    _expect("CompilationMode.NONE" in inspect.getsource(warm_up), "CPUModelRunner.warming_up_model runs in eager mode")

    @functools.wraps(should_warm_up)
    def should_warm_up_in_a_pipeline(worker: Any) -> bool:
        return worker.parallel_config.pipeline_parallel_size > 1 or bool(should_warm_up(worker))

    @functools.wraps(warm_up)
    def warm_up_in_a_pipeline(runner: Any) -> None:
        config = runner.vllm_config
        eager = config.compilation_config.mode == CompilationMode.NONE
        if not (eager and config.parallel_config.pipeline_parallel_size > 1):
            warm_up(runner)
            return
        with settings(config):
            runner.profile_run()
        _log("pipeline mended: dummy run done (vLLM's CPU worker skips it in eager mode)")

    setattr(warm_up_in_a_pipeline, _MENDED, True)
    CPUWorker._should_warm_up_model = should_warm_up_in_a_pipeline
    CPUModelRunner.warming_up_model = warm_up_in_a_pipeline


def mend_ranks_per_node_on_cpu() -> None:
    """Tell vLLM's message queues how many ranks a node has.

    They take the platform's device count for it, which is 1 on CPU; a gang with several ranks on each of several nodes
    then waits for readers on the wrong node. Can be dropped when the queues ask ParallelConfig.local_world_size.
    """
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_worker import CPUWorker

    init_device = CPUWorker.init_device
    if hasattr(init_device, _MENDED):
        return
    _expect("device_count" not in vars(CpuPlatform), "CpuPlatform counts its devices itself")
    source = inspect.getsource(shm_broadcast.MessageQueue.create_from_process_group_single_reader)
    _expect("current_platform.device_count()" in source, "message queues do not ask for the device count")

    @functools.wraps(init_device)
    def init_device_with_ranks_per_node(worker: Any) -> Any:
        num_ranks = int(worker.parallel_config.local_world_size)
        if worker.parallel_config.nnodes > 1:
            CpuPlatform.device_count = classmethod(lambda _cls: num_ranks)
        return init_device(worker)

    setattr(init_device_with_ranks_per_node, _MENDED, True)
    CPUWorker.init_device = init_device_with_ranks_per_node
