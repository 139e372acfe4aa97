"""Stands in for what SGLang imports from CUDA's packages, so that the wheel on PyPI serves on CPUs.

``prepare`` must run before SGLang is imported, and ``mend`` after it. Both do nothing unless ``SGLANG_USE_CPU_ENGINE``
is 1, and nothing where the environment has SGLang's own kernels.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

from longboat_sglang import murmur

__all__ = ("is_needed", "mend", "prepare")

_KERNELS = "sgl_kernel"
_KERNELS_VERSION = "0.4.10"
_VISION_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_FACTORIES = ("empty", "zeros", "ones", "full", "tensor", "empty_like", "zeros_like", "ones_like")
_ATTENTION = "torch_native"
_BINDING = "SGLANG_CPU_OMP_THREADS_BIND"
_MOST_RANKS = 64
_libraries: list[Any] = []  # operators live as long as these


class _Absent(types.ModuleType):
    """A module whose attributes are functions that raise. It has no submodules: SGLang asks for some, and copes."""

    __path__: list[str] = []  # noqa: RUF012 - a module's own attribute

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_args: Any, **_kwargs: Any) -> Any:
            raise NotImplementedError(f"{_KERNELS}.{name} needs SGLang's own kernels, which this environment lacks")

        return absent


def is_needed() -> bool:
    """Return whether this process serves on CPUs and without SGLang's own kernels."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return False
    return isinstance(sys.modules.get(_KERNELS), _Absent) or importlib.util.find_spec(_KERNELS) is None


def prepare() -> None:
    """Define the operators and the module that SGLang's imports need. May be called again."""
    if _KERNELS in sys.modules or not is_needed():
        return
    # SGLang otherwise wants one NUMA node for each rank. Without its kernels, it binds no thread to these cores.
    os.environ.setdefault(_BINDING, "|".join(["0"] * _MOST_RANKS))
    _define_vision_operators()
    module = _Absent(_KERNELS)
    module.__spec__ = ModuleSpec(_KERNELS, None, is_package=True)
    module.__version__ = _KERNELS_VERSION  # type: ignore[attr-defined]
    sys.modules[_KERNELS] = module
    _libraries.append(murmur.define())


def mend() -> None:
    """Let seeds work on CPUs, and pinned memory be plain memory. May be called again."""
    if is_needed():
        _allow_seeds()
        _leave_out_pinning()
        _compile_nothing()


def _define_vision_operators() -> None:
    """Define operators of torchvision, whose build for CUDA cannot load its compiled part here."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in _VISION_OPERATORS:
        library.define(operator)
    _libraries.append(library)


def _allow_seeds() -> None:
    """Let ``--enable-deterministic-inference``, by which SGLang honours seeds, work with torch's own attention.

    Matrix products of torch on one CPU need none of the kernels that make CUDA's the same in each batch.
    """
    from sglang.srt import batch_invariant_ops
    from sglang.srt.arg_groups import choices

    for known in (
        choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
        choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
    ):
        if _ATTENTION not in known:
            known.append(_ATTENTION)
    batch_invariant_ops.enable_batch_invariant_mode = lambda *_args, **_kwargs: None


def _compile_nothing() -> None:
    """Run small functions of SGLang as they are: compiling them needs a C++ compiler and 20 s within a request."""
    import torch

    torch.compiler.set_stance("force_eager")


def _leave_out_pinning() -> None:
    """Drop ``pin_memory`` from torch's factories: without an accelerator it is an error."""
    import torch

    for name in _FACTORIES:
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_args, **_kwargs: tensor


def _unpinned(factory: Any) -> Any:
    if hasattr(factory, "__wrapped__"):
        return factory

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return make
