"""What a zygote imports before it forks (vLLM's server, engine core, executors, runner), and that no thread starts."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ("VLLM_ENTRY", "VLLM_MODULES", "Loaded", "load", "prepare")

VLLM_ENTRY = "longboat_vllm.launcher:main"

VLLM_MODULES = (
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
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.core",
    "vllm.v1.engine.core_client",
    "vllm.v1.engine.async_llm",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.structured_output.backend_xgrammar",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "uvicorn",
    "uvloop",
)
"""Imported in this order. One that this version of vLLM does not have is skipped and reported."""

_CPU_MODULES = ("vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner")
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
"""Unset variables get these values. The last keeps process titles from overwriting the environment in /proc."""


@dataclass(frozen=True)
class Loaded:
    """What was imported, what was not there (module → why), and how long it took in seconds."""

    modules: list[str]
    missing: dict[str, str]
    import_s: float
    vllm_version: str


def prepare() -> None:
    """Set what keeps libraries from starting threads at import."""
    for name, value in _NO_THREADS.items():
        os.environ.setdefault(name, value)


def load(modules: Iterable[str]) -> Loaded:
    """Import ``modules``, and with vLLM the runner and models of the platform that this machine has."""
    began_s = time.monotonic()
    imported: list[str] = []
    missing: dict[str, str] = {}
    _import_all(modules, imported, missing)
    if "vllm" in sys.modules:
        _import_all((*_platform_modules(), *_MODEL_MODULES), imported, missing)
    took_s = round(time.monotonic() - began_s, 3)
    return Loaded(imported, missing, took_s, getattr(sys.modules.get("vllm"), "__version__", ""))


def _platform_modules() -> tuple[str, ...]:
    from vllm.platforms import current_platform

    return _CPU_MODULES if current_platform.is_cpu() else _GPU_MODULES


def _import_all(modules: Iterable[str], imported: list[str], missing: dict[str, str]) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
            imported.append(name)
        except ImportError as error:
            missing[name] = str(error)
