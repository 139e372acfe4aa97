"""What a rank on processors has loaded: tells its bytes in the log, and gives back the memory that loading left over.

vLLM packs the matrices anew for the processor and drops the loaded ones: afterwards nobody can count them, and the C
library keeps the holes, up to several layers, to itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
from collections.abc import Callable
from typing import Any

from longboat_vllm.resume.shapes import expect

__all__ = ("TOLD", "install")

TOLD = "weights: %d bytes in %d tensors, tables: %d bytes"
"""What stands in the log. Tables: what is computed when the model is made, such as rotations."""
_TELLS = "_longboat_tells"


def install(log: Callable[[str], None]) -> None:
    """Have every model that is loaded from now on counted. Raises UnexpectedShapeError where vLLM looks otherwise."""
    from vllm.model_executor.model_loader import base_loader

    process = base_loader.process_weights_after_loading
    if hasattr(process, _TELLS):
        return
    source = inspect.getsource(base_loader.BaseModelLoader.load_model)
    expect("process_weights_after_loading(model, " in source, "weights are not processed after they are loaded")

    @functools.wraps(process)
    def count_and_process(model: Any, *args: Any, **kwargs: Any) -> Any:
        log(_told(model))
        done = process(model, *args, **kwargs)
        _give_back()
        return done

    setattr(count_and_process, _TELLS, True)
    base_loader.process_weights_after_loading = count_and_process


def _give_back() -> None:
    """Free pages of the heap, also those between pieces that are in use. Only the GNU C library has a call for it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _told(model: Any) -> str:
    """Tensors that several layers share are one."""
    weights = list(model.parameters())
    return TOLD % (_bytes_of(weights), len(weights), _bytes_of(model.buffers()))


def _bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
