"""The zygote: a parent with SGLang imported and one thread, which forks complete engine servers on request.

    python -m longboat_sglang.zygote --socket PATH --token-file PATH --fingerprint F --lifeline-pid PID

It is ``longboat_vllm.process.zygote`` with SGLang's modules and SGLang's server.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from longboat_sglang import without_cuda
from longboat_vllm.process import preload, zygote

__all__ = ("MODULES", "main")

ENTRY = "longboat_sglang.launcher:main"

MODULES = (
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "longboat_sglang.plugin",
    "longboat_sglang.prefixes.front_end",
    "longboat_sglang.prefixes.tree",
    "longboat_sglang.server",
    "longboat_sglang.resume.front_end",
    "longboat_sglang.resume.replay",
    "longboat_sglang.resume.seeds",
    "sglang.launch_server",
    "sglang.srt.server_args",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.tokenizer_manager",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.models.registry",  # imports the files of all models
    "sglang.srt.model_loader.loader",
    "sglang.srt.constrained.xgrammar_backend",
    "sglang.srt.utils.auth",
    "multiprocessing.popen_fork",
    "prometheus_client.multiprocess",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.auto",
    "uvloop",
)
"""Modules that a server imports until its first token, in this order. Missing ones are skipped and reported."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the zygote's command line; return when it was stopped or its lifeline process ended."""
    given = sys.argv[1:] if words is None else [*words]
    return zygote.main(["--entry", ENTRY, *given, "--preload", *MODULES], prepare)


def prepare() -> None:
    """Set the variables that keep libraries from starting threads, and stand in for what CUDA would have."""
    preload.prepare()
    without_cuda.prepare()


if __name__ == "__main__":
    main()
