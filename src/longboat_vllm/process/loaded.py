"""Reports in the log what a rank on CPUs has loaded, and gives back the memory that loading left over.

vLLM repacks the matrices for the processor and drops the loaded ones: afterwards they cannot be counted, and the C
library keeps the freed memory, up to several layers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
from collections.abc import Callable
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("TOLD", "install")

TOLD = "weights: %d bytes in %d tensors, tables: %d bytes"
"""The line in the log. Tables are computed when the model is made, such as rotations."""
_TELLS = "_longboat_tells"


def install(log: Callable[[str], None]) -> None:
    """Count every model that is loaded from now on. Raises UnexpectedShapeError where vLLM differs."""
    from vllm.model_executor.model_loader import base_loader

    process = base_loader.process_weights_after_loading
    if hasattr(process, _TELLS):
        return
    source = inspect.getsource(base_loader.BaseModelLoader.load_model)
    expect("process_weights_after_loading(model, " in source, "weights are not processed after loading")

    @functools.wraps(process)
    def count_and_process(model: Any, *args: Any, **kwargs: Any) -> Any:
        log(_told(model))
        done = process(model, *args, **kwargs)
        _give_back()
        return done

    setattr(count_and_process, _TELLS, True)
    base_loader.process_weights_after_loading = count_and_process


def _give_back() -> None:
    """Free unused pages of the heap, also those between used pieces. Only the GNU C library has a call for it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _told(model: Any) -> str:
    """Return the log line of a model. Tensors that several layers share count once."""
    weights = list(model.parameters())
    return TOLD % (_bytes_of(weights), len(weights), _bytes_of(model.buffers()))


def _bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
