"""How SGLang's environment is built.

The wheel on PyPI is made for CUDA. On CPUs, what only CUDA uses is left out, and the overlay
(``longboat_sglang.without_cuda``) stands in for what SGLang imports nevertheless.
"""

from __future__ import annotations

from pathlib import Path

from longboat.engines.contract import InstallRecipe

__all__ = ("RECIPE",)

_ONLY_CUDA = (
    "sglang-kernel",
    "sgl-kernel",
    "sgl-deep-ep",
    "sgl-deep-gemm",
    "sgl-flash-mla",
    "flashinfer-python",
    "flashinfer-cubin",
    "flash-attn-4",
    "humming-kernels",
    "kernels",
    "nvidia-cutlass-dsl",
    "nvidia-mathdx",
    "nvshmem4py-cu13",
    "quack-kernels",
    "tilelang",
    "tokenspeed-mla",
    "torch-memory-saver",
    "cuda-python",
)
_OTHER_WORK = (  # diffusion, audio, download of models from another hub, gRPC, tests
    "torchaudio",
    "torchcodec",
    "torchao",
    "blobfile",
    "build",
    "deepseek-recipe",
    "easydict",
    "modelscope",
    "ninja",
    "py-spy",
    "smg-grpc-servicer",
    "timm",
    "tml-renderers",
)

RECIPE = InstallRecipe(
    version="0.5.23",
    distributions={"cpu": "sglang", "cuda": "sglang"},
    free_bytes={"cpu": 5 * 10**9, "cuda": 25 * 10**9},
    locks=Path(__file__).parent / "locks",
    excluded_on={"cpu": (*_ONLY_CUDA, *_OTHER_WORK)},
    # SGLang asks for one build of torch, for its CUDA kernels; on CPUs it also works with the one that vLLM uses.
    replaced_on={"cpu": ("torch==2.13.0", "torchvision==0.28.0")},
    pins_torch=True,
)
