"""Imports vLLM's server, engine core, executors and runner in a zygote before it forks, without starting threads."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ("VLLM_ENTRY", "VLLM_MODULES", "Loaded", "load", "prepare")

VLLM_ENTRY = "longboat_vllm.process.launcher:main"

VLLM_MODULES = (
    # command line
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.cli.download_kernels",
    "vllm.entrypoints.cli.preload",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.snapshot",
    "vllm.plugins.lora_resolvers.filesystem_resolver",
    "vllm.plugins.lora_resolvers.hf_hub_resolver",
    # API server
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.run_batch",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.generative_scoring.serving",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.chat_completion.batch_serving",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.models.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.cohere.api_router",
    "vllm.entrypoints.scale_out.render.api_router",
    "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.token_in_token_out.api_router",
    "vllm.entrypoints.serve.elastic_ep.api_router",
    "vllm.entrypoints.serve.instrumentator.metrics",
    "vllm.entrypoints.serve.instrumentator.offline_docs",
    "vllm.entrypoints.serve.lora.api_router",
    "vllm.entrypoints.serve.middleware.authenticate",
    "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "vllm.entrypoints.serve.utils.fingerprint",
    "vllm.entrypoints.serve.utils.orca_metrics",
    "vllm.entrypoints.serve.utils.sse_keep_alive",
    "vllm.renderers.hf",
    "vllm.transformers_utils.chat_templates.registry",
    "model_hosting_container_standards.sagemaker",
    "fastapi.staticfiles",
    "httptools",
    "pydantic.v1",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
    "uvloop",
    # engine core
    "vllm.v1.engine.core",
    "vllm.v1.engine.core_client",
    "vllm.v1.engine.async_llm",
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.metrics.reader",
    "vllm.v1.structured_output.backend_xgrammar",
    "multiprocessing.popen_fork",
    "setproctitle",
    # model loading
    "compressed_tensors.quantization",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.model_executor.layers.quantization.online.base",
    "transformers.file_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
"""Modules that a server imports until its first token, in this order. Missing ones are skipped and reported."""

_CPU_MODULES = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.distributed.device_communicators.cpu_communicator",
    "vllm.utils.cpu_triton_utils",
)
_GPU_MODULES = ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner")
_MODEL_MODULES = ("vllm.model_executor.models.qwen3", "vllm.model_executor.models.llama")

_NO_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "SPT_NOENV": "1",
}
"""Values for unset variables. The last keeps process titles from overwriting the environment in /proc."""


@dataclass(frozen=True)
class Loaded:
    """The result of the imports."""

    modules: list[str]
    missing: dict[str, str]  # module → why it could not be imported
    import_s: float
    vllm_version: str


def prepare() -> None:
    """Set the variables that keep libraries from starting threads at import."""
    for name, value in _NO_THREADS.items():
        os.environ.setdefault(name, value)


def load(modules: Iterable[str]) -> Loaded:
    """Import ``modules`` and, with vLLM, the runner and models of this machine's platform.

    The garbage collector rests meanwhile: nearly all that is made stays, and looking through it again and again takes a
    sixth of the time.
    """
    began_s = time.monotonic()
    imported: list[str] = []
    missing: dict[str, str] = {}
    gc.disable()
    try:
        _import_all(modules, imported, missing)
        if "vllm" in sys.modules:
            _import_all((*_platform_modules(), *_MODEL_MODULES), imported, missing)
            _register_kernels()
    finally:
        gc.enable()
    took_s = round(time.monotonic() - began_s, 3)
    return Loaded(imported, missing, took_s, getattr(sys.modules.get("vllm"), "__version__", ""))


def _platform_modules() -> tuple[str, ...]:
    from vllm.platforms import current_platform

    return _CPU_MODULES if current_platform.is_cpu() else _GPU_MODULES


def _register_kernels() -> None:
    """Let vLLM replace its Triton kernels now instead of in each worker.

    On CPU, it searches every object of every module for them. In a forked worker that copies most of the memory shared
    with the zygote, and is half of the worker's start.
    """
    from vllm.platforms import current_platform

    platform = type(current_platform)
    if current_platform.is_cpu() and hasattr(platform, "register_triton_kernel_overrides"):
        platform.register_triton_kernel_overrides()
        platform.register_triton_kernel_overrides = classmethod(lambda _cls: None)


def _import_all(modules: Iterable[str], imported: list[str], missing: dict[str, str]) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
            imported.append(name)
        except ImportError as error:
            missing[name] = str(error)
